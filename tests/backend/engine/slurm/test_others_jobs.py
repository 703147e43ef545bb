from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from wattline.backend.engine.protocol import HeldByOthers
from wattline.backend.engine.slurm.cluster_state import NodeUse, SlurmJob, SlurmState
from wattline.backend.engine.slurm.node_list import NodeList, host_share
from wattline.backend.engine.slurm.node_power import find_power_problem
from wattline.backend.engine.slurm.others_jobs import OthersJobs
from wattline.backend.engine.slurm.submission import NodeShare
from wattline.cluster import nodes

COMMENT = "wl:a:1:1"
SHARES: Mapping[str, Sequence[NodeShare]] = {COMMENT: [NodeShare("n1", "", 2, 8, 16_384)]}


def make_others(*, counts_memory: bool = True) -> OthersJobs:
    table = nodes("a100", count=2, gpus=8, cpus=32, mem_gib=64)
    return OthersJobs(NodeList("p", table, ("n1", "n2"), ("", ""), None, ""), counts_memory=counts_memory)


def make_state(number: int, use: NodeUse, state: str = "") -> SlurmState:
    jobs = {COMMENT: SlurmJob("1", state, "", "n1", "root", COMMENT)} if state else {}
    return SlurmState(number, number, jobs, {}, {"n1": use, "n2": NodeUse()})


def test_others_hold_what_the_services_own_jobs_do_not() -> None:
    others = make_others()
    others.update(make_state(1, NodeUse(6, 12, 20_480), "RUNNING"), SHARES)
    assert others.held == {0: HeldByOthers(4, 4, 4.0)}


def test_an_own_job_that_starts_between_two_readings_is_not_one_of_others() -> None:
    others = make_others()
    others.update(make_state(1, NodeUse(), "PENDING"), SHARES)
    others.update(make_state(2, NodeUse(2, 8, 16_384), "PENDING"), SHARES)
    assert others.held == {}
    others.update(make_state(3, NodeUse(2, 8, 16_384), "RUNNING"), SHARES)
    others.update(make_state(4, NodeUse(2, 8, 16_384), "RUNNING"), SHARES)
    assert others.held == {}


def test_a_change_counts_when_two_readings_agree() -> None:
    others = make_others()
    others.update(make_state(1, NodeUse()), {})
    others.update(make_state(2, NodeUse(6, 6)), {})
    assert others.held == {}
    others.update(make_state(2, NodeUse(6, 6)), {})  # the same reading again
    assert others.held == {}
    others.update(make_state(3, NodeUse(6, 6)), {})
    assert others.held == {0: HeldByOthers(6, 6, 0.0)}
    for number in (4, 5):
        others.update(make_state(number, NodeUse()), {})
    assert others.held == {}


def test_a_released_job_that_slurm_still_ends_is_the_services_own() -> None:
    others = make_others()
    others.update(make_state(1, NodeUse(2, 8, 16_384), "RUNNING"), SHARES)
    for number in (2, 3):
        others.update(make_state(number, NodeUse(2, 8, 16_384), "COMPLETING"), {})
    assert others.held == {}


def test_memory_counts_only_where_slurm_counts_it() -> None:
    others = make_others(counts_memory=False)
    others.update(make_state(1, NodeUse(0, 0, 64_000)), {})
    assert others.held == {}


@pytest.mark.parametrize(
    ("use", "all_held"),
    [
        (NodeUse(8, 8, 0), True),
        (NodeUse(7, 31, 0), False),
        (NodeUse(0, 32, 0), True),
        (NodeUse(0, 0, 65_500), True),
    ],
)
def test_a_node_without_gpus_or_cores_or_memory_is_held_by_others(use: NodeUse, all_held: bool) -> None:
    others = make_others()
    others.update(make_state(1, use), {})
    assert others.hold_all(0) == all_held
    assert not others.hold_all(1)


def test_a_job_gets_no_more_cores_and_memory_for_its_gpus_than_others_leave() -> None:
    others = make_others()
    others.update(make_state(1, NodeUse(4, 24, 16_384)), {})
    # 8 cores and 48 GiB are left for 4 GPUs; the proportional share of a GPU is 4 cores and 8 GiB.
    assert host_share(others.share_list, 0, 2, 0, 0) == (4, 16_384)
    assert host_share(others.share_list, 1, 2, 0, 0) == (8, 16_384)


def test_nodes_are_switched_only_if_slurm_has_programs_and_a_time_for_that() -> None:
    config = {"SuspendProgram": "/off", "ResumeProgram": "/on", "SuspendTime": "1000000 sec"}
    assert find_power_problem(config) == ""
    assert find_power_problem({**config, "SuspendProgram": "(null)"}) == "slurm.conf has no SuspendProgram"
    assert "SuspendTime" in find_power_problem({**config, "SuspendTime": "NONE"})

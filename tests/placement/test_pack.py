"""Best-fit placement in cases small enough to check by hand."""

import numpy as np
import pytest

from support.simulations import finish_times, first_start_times, simulate
from wattline import policy as p
from wattline.backend.sim.simulator import Sim
from wattline.cluster import join_nodes, nodes
from wattline.core.actions import ACTION_JOB, ACTION_VERB, START, STOP
from wattline.core.jobs import Jobs
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.reasons import REASONS
from wattline.core.snapshot import Snapshot
from wattline.errors import GrantedTwice, PlanError, UnknownJob
from wattline.loop.run import run
from wattline.models import TraceModels
from wattline.placement import Pack


def build_jobs(gpus: list[int], duration_s: list[float], **more: object) -> Jobs:
    return Jobs.of(submit_s=[float(i) for i in range(len(gpus))], gpus=gpus, duration_s=duration_s, **more)  # type: ignore[arg-type]


def find_first_nodes(jobs: Jobs, **cluster: object) -> dict[int, dict[int, int]]:
    """Return nodes and GPUs of each job at its first start."""
    log = simulate(jobs, p.fifo, **cluster)  # type: ignore[arg-type]
    where: dict[int, dict[int, int]] = {}
    for verb, job, _, node, gpus, *_ in log.actions.tolist():
        assert verb == START
        where.setdefault(job, {})[node] = gpus
    return where


def test_a_job_goes_where_the_least_room_is_enough() -> None:
    where = find_first_nodes(build_jobs([3, 2, 1], [100, 100, 100]), count=2, gpus=4)
    assert where == {0: {0: 3}, 1: {1: 2}, 2: {0: 1}}


def test_a_job_too_big_for_a_node_takes_the_fewest_nodes() -> None:
    where = find_first_nodes(build_jobs([1, 9], [100, 100]), count=4, gpus=4)
    assert where[1] == {1: 4, 2: 4, 0: 1}


def test_a_job_stays_on_one_kind_of_gpu() -> None:
    cluster = join_nodes(nodes("v100", gpus=4), nodes("a100", gpus=4))
    where = find_first_nodes(build_jobs([3, 4, 2], [100, 100, 100]), nodes=cluster)
    assert where == {0: {0: 3}, 1: {1: 4}, 2: {0: 2}}  # the last waits for four of one kind


def test_a_job_goes_to_the_kinds_it_accepts() -> None:
    cluster = join_nodes(nodes("v100", gpus=4), nodes("a100", gpus=4))
    where = find_first_nodes(build_jobs([1, 1], [9, 9], gpu_kind=["a100", "v100"]), nodes=cluster)
    assert where == {0: {1: 1}, 1: {0: 1}}


def test_a_job_that_loses_its_gpu_kind_goes_on_with_another_it_accepts() -> None:
    cluster = join_nodes(nodes("v100", gpus=1), nodes("a100", gpus=1))
    jobs = Jobs.of(
        id=["any", "picky"],
        submit_s=[0, 10],
        gpus=[1, 1],
        duration_s=[100, 1000],
        priority=[0, 5],
        gpu_kind=["", "v100"],
    )
    assert finish_times(simulate(jobs, p.priority, nodes=cluster)) == {"any": 100.0, "picky": 1010.0}


def test_a_group_runs_only_on_kinds_that_all_its_members_accept() -> None:
    cluster = join_nodes(nodes("v100", gpus=1), nodes("a100", gpus=1))
    jobs = build_jobs([1, 1, 1, 1], [500] * 4, gpu_kind=["v100", "a100", "a100", "v100"])
    log = simulate(jobs, p.Gandiva(slice_s=100), nodes=cluster)
    for verb, job, _, node, *_ in log.actions.tolist():
        if verb == START:
            assert cluster.kind.word(node) == jobs.gpu_kind.word(job)


def test_a_job_that_keeps_running_is_never_moved() -> None:
    jobs = build_jobs([1, 1, 1, 2, 1], [1000, 5, 1000, 1000, 1000])
    log = simulate(jobs, p.srtf, count=2, gpus=2, place=Pack("greedy"))
    stopped = log.actions[log.actions[:, ACTION_VERB] == STOP, ACTION_JOB].tolist()
    assert 0 not in stopped
    assert 2 not in stopped


def test_spanning_nodes_costs_the_penalty_of_the_true_model() -> None:
    jobs = build_jobs([3], [100])
    cluster = nodes("v100", count=2, gpus=2)
    log = run(Sim(jobs, cluster, truth=TraceModels(span_penalty=1.5)), p.fifo)
    assert finish_times(log) == {"0": 150.0}


def find_start_times(mode: str) -> dict[str, float]:
    """Return start times on 4 GPUs: a holds 3 till 100; b needs all; c (long) and d (short) fit beside a."""
    jobs = Jobs.of(id=list("abcd"), submit_s=[0, 1, 2, 3], gpus=[3, 4, 1, 1], duration_s=[100, 10, 500, 50])
    return first_start_times(simulate(jobs, p.fifo, gpus=4, place=Pack(mode)))  # type: ignore[arg-type]


def test_without_backfill_no_job_overtakes() -> None:
    assert find_start_times("none") == {"a": 0, "b": 100, "c": 110, "d": 110}


def test_easy_backfill_lets_jobs_overtake_that_delay_no_other() -> None:
    assert find_start_times("easy") == {"a": 0, "d": 3, "b": 100, "c": 110}


def test_greedy_backfill_lets_every_job_overtake_that_fits() -> None:
    assert find_start_times("greedy") == {"a": 0, "c": 2, "d": 100, "b": 502}


def test_easy_backfill_uses_gpus_that_the_head_does_not_need() -> None:
    jobs = Jobs.of(id=list("abc"), submit_s=[0, 1, 2], gpus=[4, 5, 2], duration_s=[100, 10, 5000])
    # At 100 the head takes 5 of 8; three are left over, so c may run for any time.
    assert first_start_times(simulate(jobs, p.fifo, gpus=8)) == {"a": 0, "c": 2, "b": 100}


def test_reasons_say_why_a_job_waits() -> None:
    jobs = Jobs.of(
        id=list("abcde"), submit_s=[0, 1, 2, 3, 4], gpus=[3, 4, 1, 9, 2], duration_s=[100, 10, 500, 5, 5]
    )
    log = simulate(jobs, p.fifo, gpus=4)
    first: dict[int, str] = {}
    for job, reason in log.wait_reasons.tolist():
        first.setdefault(job, REASONS[reason].name)
    assert first == {1: "NO_ROOM", 2: "OUTRANKED", 3: "TOO_BIG", 4: "OUTRANKED"}


def test_a_job_too_big_for_the_cluster_does_not_block_the_others() -> None:
    jobs = build_jobs([9, 1], [10, 10])
    for mode in ("none", "easy", "greedy"):
        assert finish_times(simulate(jobs, p.fifo, gpus=4, place=Pack(mode))) == {"1": 11.0}  # type: ignore[arg-type]


def test_no_reservation_is_needed_under_a_preemptive_plan() -> None:
    jobs = Jobs.of(
        id=list("abc"), submit_s=[0, 1, 2], gpus=[3, 4, 1], duration_s=[100, 10, 5000], priority=[3, 2, 1]
    )
    log = simulate(jobs, p.priority, gpus=4)
    assert first_start_times(log) == {"a": 0, "c": 2, "b": 100}
    assert np.count_nonzero(log.actions[:, ACTION_VERB] == STOP) == 1


@pytest.mark.parametrize(
    ("row", "gpus", "group", "error", "words"),
    [
        ([5], [1], [5], UnknownJob, "row 5 of a queue of 2 jobs"),
        ([-1], [1], [-1], UnknownJob, "row -1"),
        ([0, 0], [1, 1], [0, 0], GrantedTwice, "grants GPUs to row 0 twice"),
        ([0], [0], [0], PlanError, "grants 0 GPUs to row 0, expected at least 1"),
        ([0], [1], [1], PlanError, "puts row 0 into the group of row 1, which leads no group"),
    ],
)
def test_an_invalid_plan_is_refused(
    row: list[int], gpus: list[int], group: list[int], error: type[Exception], words: str
) -> None:
    def broken(snapshot: Snapshot, models: Models) -> Plan:
        columns = (np.array(column, dtype=np.int64) for column in (row, gpus, group))
        return Plan(*columns) if len(snapshot.queue) == 2 else p.fifo(snapshot, models)

    with pytest.raises(error, match=words):
        simulate(build_jobs([1, 1], [10, 10]), broken)


def test_a_plan_of_the_wrong_type_is_refused_before_it_reaches_a_kernel() -> None:
    rows = np.zeros(1, dtype=np.int64)
    with pytest.raises(
        PlanError, match=r"Plan\.gpus is int32 with 1 dimensions, expected a contiguous array"
    ):
        Plan(rows, np.ones(1, dtype=np.int32), rows)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="1, 2 and 1 entries"):
        Plan(rows, np.ones(2, dtype=np.int64), rows)

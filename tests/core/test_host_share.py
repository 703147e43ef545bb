"""The proportional share of cores and memory."""

import numpy as np
import pytest

from wattline.cluster import join_nodes, nodes
from wattline.core.events import ARRIVED, Event, build_events
from wattline.core.host_share import fill_host_shares
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.plan import Placement
from wattline.errors import Oversubscribed
from wattline.loop.check import check_placement
from wattline.loop.state import advance, build_empty_decision, build_empty_state

MIXED = join_nodes(
    nodes("v100", gpus=8, cpus=24, mem_gib=400), nodes("a100", gpus=4, cpus=64, mem_gib=100, storage_mib_s=90)
)


def test_host_share_is_proportional_to_one_gpu() -> None:
    assert MIXED.host_share.tolist() == [[3000, 16000], [51200, 25600], [0, 22]]


def test_jobs_without_host_resources_get_their_share() -> None:
    jobs = Jobs.of(
        submit_s=[0, 1, 2, 3],
        gpus=[1, 2, 1, 1],
        duration_s=[1, 1, 1, 1],
        gpu_kind=["v100", "a100", "", "t4"],
        cpus=[0, 0, 7, 0],
    )
    filled = fill_host_shares(jobs, MIXED)
    assert filled.cpus.tolist() == [3, 32, 7, 3]
    assert filled.mem_gib.tolist() == [50, 50, 25, 25]


def test_jobs_with_host_resources_are_unchanged() -> None:
    jobs = Jobs.of(submit_s=[0], gpus=[1], duration_s=[1], cpus=[4], mem_gib=[8])
    assert fill_host_shares(jobs, MIXED) is jobs


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ([[4000], [0], [0]], "node v100-0 is oversubscribed by 8000 thousandths of a core"),
        ([[0], [60000], [0]], "node v100-0 is oversubscribed by 70400 MiB of memory"),
        ([[3000], [51200], [999]], ""),  # storage bandwidth is unlimited
    ],
)
def test_a_host_cannot_be_oversubscribed(host: list[list[int]], words: str) -> None:
    jobs = Jobs.of(submit_s=[0], gpus=[8], duration_s=[1])
    state = build_empty_state(jobs, MIXED)
    arrival = build_events(Event(ARRIVED, 0, 0.0))
    state = advance(
        state, build_empty_decision(state), 0.0, arrival, jobs, MIXED.accepted_kinds(jobs.gpu_kind)
    )
    leases = Leases.of([0], [0], [0], [8], host=host)
    placement = Placement(leases, np.zeros(1, dtype=np.int64), 0)
    if not words:
        check_placement(placement, state)
        return
    with pytest.raises(Oversubscribed, match=words):
        check_placement(placement, state)

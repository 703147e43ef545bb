"""What jobs of others leave of nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_engine import FakeCluster, FakeEngine
from wattline.backend.engine.backend import EngineBackend
from wattline.backend.engine.node_capacity import compute_capacity
from wattline.backend.engine.protocol import HeldByOthers
from wattline.cluster import nodes
from wattline.core.actions import ACTION_COLUMNS, POWER_OFF
from wattline.core.events import ARRIVED, CAPACITY, NODE_BACK, Event, build_events, list_events
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.plan import Placement
from wattline.core.snapshot import Snapshot
from wattline.errors import Oversubscribed
from wattline.loop.check import check_placement
from wattline.loop.state import advance, build_empty_decision, build_empty_state

NODES = nodes("a100", gpus=8, cpus=32, mem_gib=64)


def test_a_node_has_what_others_leave() -> None:
    none = Leases.of((), (), (), ())
    assert compute_capacity(NODES, none, 0, HeldByOthers(6, 20.0, 16.0)) == (2, 12.0, 48.0)
    assert compute_capacity(NODES, none, 0, HeldByOthers()) == (8, 32.0, 64.0)


def test_a_lease_keeps_its_gpus_although_others_were_first() -> None:
    leases = Leases.of([0], [0], [0], [4])
    assert compute_capacity(NODES, leases, 0, HeldByOthers(6, 24.0, 48.0))[0] == 4


@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from((0, 500, 4000, 9000))), max_size=3),
    st.integers(0, 8),
    st.floats(0, 32),
)
def test_leases_never_exceed_the_capacity(own: list[tuple[int, int]], gpus: int, cpus: float) -> None:
    count = len(own)
    host = [[mcpus for _, mcpus in own], [0] * count, [0] * count]
    leases = Leases.of(range(count), range(count), [0] * count, [one for one, _ in own], host=host)
    if sum(one * mcpus for one, mcpus in own) > 32_000 or leases.gpus.sum() > 8:
        return
    capacity = compute_capacity(NODES, leases, 0, HeldByOthers(gpus, cpus, 0.0))
    rows = np.array([0])
    smaller = NODES.resize(rows, *(np.array([value]) for value in capacity))
    host_mcpus, share = int(smaller.host[0, 0]), int(smaller.host_share[0, 0])
    used = sum(one * (mcpus or share) for one, mcpus in own)
    assert leases.gpus.sum() <= capacity[0]
    assert used <= host_mcpus or all(mcpus == 0 for _, mcpus in own)


class Others:
    """A backend on two nodes of two GPUs, of which others hold a changing part."""

    def __init__(self, root: Path) -> None:
        self.cluster = FakeCluster(nodes("v100", count=2, gpus=2, cpus=8, mem_gib=32))
        self.backend = EngineBackend(root, FakeEngine(root, self.cluster), stay_open=True)

    def wait(self) -> list[Event]:
        return [one for one in list_events(self.backend.wait(0.0)[1]) if one.verb != 8]


def test_each_change_of_what_others_hold_is_an_event(tmp_path: Path) -> None:
    others = Others(tmp_path)
    assert others.wait() == []
    others.cluster.held_by_others[1] = HeldByOthers(1, 2.0, 8.0)
    assert [(event[:2], event[3:]) for event in others.wait()] == [((CAPACITY, 1), (1.0, 6.0, 24.0))]
    assert others.wait() == []
    others.cluster.held_by_others.clear()
    assert [(event[:2], event[3:]) for event in others.wait()] == [((CAPACITY, 1), (2.0, 8.0, 32.0))]
    assert others.wait() == []


def test_a_new_loop_gets_what_others_hold_as_its_first_event(tmp_path: Path) -> None:
    others = Others(tmp_path)
    others.cluster.held_by_others[0] = HeldByOthers(1)
    others.wait()
    state: Snapshot = others.backend.initial_state()
    assert state.free_gpus.tolist() == [2, 2]
    assert [event[:4] for event in others.wait()] == [(CAPACITY, 0, pytest.approx(state.now_s, abs=5), 1.0)]


def test_a_node_that_cannot_be_switched_off_stays_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = Others(tmp_path)
    monkeypatch.setattr(others.backend.engine, "power", lambda node, on: False)
    action = np.zeros((1, ACTION_COLUMNS), dtype=np.int64)
    action[0, :5] = POWER_OFF, -1, -1, 1, 0
    others.backend.apply(action)
    assert [event[:2] for event in others.wait()] == [(NODE_BACK, 1)]


def test_a_placement_on_gpus_of_others_is_refused() -> None:
    jobs = Jobs.of(submit_s=[0.0], gpus=[4], duration_s=[10.0])
    state = build_empty_state(jobs, NODES)
    events = build_events(Event(ARRIVED, 0, 0.0), Event(CAPACITY, 0, 0.0, 3.0, 12.0, 24.0))
    state = advance(
        state, build_empty_decision(state), 0.0, events, jobs, NODES.accepted_kinds(jobs.gpu_kind)
    )
    assert state.free_gpus.tolist() == [3]
    assert (state.nodes.gpus.tolist(), state.nodes.cpus.tolist()) == ([3], [12.0])
    with pytest.raises(Oversubscribed):
        check_placement(Placement(Leases.of([0], [0], [0], [4]), np.zeros(1, dtype=np.int64), 0), state)

"""Simulator and replay keep the contract of every backend."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from support.simulations import simulate
from wattline import policy as p
from wattline.backend.replay import Replay
from wattline.backend.sim.faults import Faults, Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes as make_nodes
from wattline.core.events import METERED
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.protocols import Backend
from wattline.core.snapshot import Snapshot
from wattline.errors import PlanError
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.testing import BackendContract, JobBehaviour

JOBS = Jobs.of(submit_s=[0, 5000], gpus=[1, 1], duration_s=[100, 20])

FAILS_FIRST = 7
"""A seed with which, of two jobs, the first fails and the second does not, at a probability of 1/2."""


class TestSim(BackendContract):
    overheads, quantum_s = Overheads(), None

    def make(self, jobs: Sequence[JobBehaviour], nodes: int = 1, *, losing_nodes: bool = False) -> Backend:
        runs_s = 1e6 if losing_nodes else 1e4  # longer than the waits before it is stopped
        table = Jobs.of(
            submit_s=[0.0] * len(jobs),
            gpus=[1] * len(jobs),
            duration_s=[runs_s if job == "runs" else 20.0 for job in jobs],
        )
        mtbf_s = 1000.0 if losing_nodes else math.inf
        faults = Faults(mtbf_s, job_failure=0.5 if "fails" in jobs else 0.0, retries=0)
        return self._open(table, make_nodes("v100", count=nodes, gpus=2), faults)

    def restart(self, backend: Backend, state: Snapshot) -> tuple[Backend, Snapshot]:
        sim = self._open(state.jobs, state.nodes, Faults(), state)
        return sim, state

    def _open(self, jobs: Jobs, nodes: Nodes, faults: Faults, state: Snapshot | None = None) -> Sim:
        return Sim(
            jobs,
            nodes,
            quantum_s=self.quantum_s,
            overheads=self.overheads,
            faults=faults,
            seed=FAILS_FIRST,
            initial_state=state,
        )


class TestSimInRounds(TestSim):
    overheads, quantum_s = Overheads(start_s=10), 60.0


def test_a_replay_gives_the_same_log_again() -> None:
    log = simulate(JOBS, p.Las())
    again = run(Replay(log), p.Las())
    assert again.header == log.header
    assert np.array_equal(again.events, log.events)
    assert np.array_equal(again.actions, log.actions)


def test_a_replay_under_another_policy_names_the_first_difference() -> None:
    jobs = Jobs.of(submit_s=[0, 1, 2], gpus=[1, 1, 1], duration_s=[100, 50, 10])
    log: Log = simulate(jobs, p.fifo)
    with pytest.raises(
        PlanError, match=r"at 100 s the decision is start job 2 .*, expected .*: start job 1 "
    ):
        run(Replay(log), p.sjf)


def test_a_replay_of_nothing_ends_at_once() -> None:
    log = simulate(Jobs.of(submit_s=[], gpus=[], duration_s=[]), p.fifo)
    assert run(Replay(log), p.fifo).events[:, 0].tolist() == [METERED]

"""Simulator and replay keep the contract of every backend."""

import numpy as np
import pytest

from support.simulations import simulate
from wattline import policy as p
from wattline.backend.replay import Replay
from wattline.backend.sim.simulator import Overheads, Sim
from wattline.cluster import nodes
from wattline.core.events import METERED
from wattline.core.jobs import Jobs
from wattline.core.protocols import Backend
from wattline.errors import PlanError
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.testing import BackendContract

JOBS = Jobs.of(submit_s=[0, 5000], gpus=[1, 1], duration_s=[100, 20])


class TestSim(BackendContract):
    def make(self) -> Backend:
        return Sim(JOBS, nodes("v100", gpus=1))


class TestSimInRounds(BackendContract):
    def make(self) -> Backend:
        return Sim(JOBS, nodes("v100", gpus=1), quantum_s=60, overheads=Overheads(start_s=10))


def test_a_replay_gives_the_same_log_again() -> None:
    log = simulate(JOBS, p.Las())
    again = run(Replay(log), p.Las())
    assert again.header == log.header
    assert np.array_equal(again.events, log.events)
    assert np.array_equal(again.actions, log.actions)


def test_a_replay_under_another_policy_names_the_first_difference() -> None:
    jobs = Jobs.of(submit_s=[0, 1, 2], gpus=[1, 1, 1], duration_s=[100, 50, 10])
    log: Log = simulate(jobs, p.fifo)
    with pytest.raises(PlanError, match=r"at 100\.0 s the log has 1 actions"):
        run(Replay(log), p.sjf)


def test_a_replay_of_nothing_ends_at_once() -> None:
    log = simulate(Jobs.of(submit_s=[], gpus=[], duration_s=[]), p.fifo)
    assert run(Replay(log), p.fifo).events[:, 0].tolist() == [METERED]

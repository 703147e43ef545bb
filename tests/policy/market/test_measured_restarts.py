"""Restarts at their measured cost, where the assumed one is wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wattline.backend.replay import Replay
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes
from wattline.core.events import ARRIVED, EVENT_VERB, READY, Event, build_events
from wattline.core.jobs import Jobs
from wattline.core.queue import QUEUE_FIRST_START_S, QUEUE_RESTART_S, QUEUE_STARTUP_S, Queue
from wattline.core.snapshot import Snapshot
from wattline.loop.log_reader import read_log
from wattline.loop.log_writer import write_log
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.loop.state import advance, build_empty_decision, build_empty_state
from wattline.models.library import library
from wattline.placement import Buddy
from wattline.policy import Market
from wattline.policy.elastic.restart_costs import compute_restart_s
from wattline.policy.market.scene import build_scene
from wattline.reports import report

BERT, VGG16, RESNET50 = "elasticflow/bert", "elasticflow/vgg16", "elasticflow/resnet50"
CLUSTER = nodes("v100", count=2)


class SilentSim(Sim):
    """Simulator that reports no start-ups, as in older versions."""

    def _report_ready(self) -> None:
        pass


def some_jobs(count: int, seed: int, between_s: float = 400.0) -> Jobs:
    rng = np.random.default_rng(seed)
    return Jobs.of(
        submit_s=np.cumsum(rng.exponential(between_s, count)),
        gpus=rng.choice([1, 1, 2, 4, 8], count),
        duration_s=rng.lognormal(7.5, 1.0, count),
        model=rng.choice([BERT, VGG16, RESNET50], count).tolist(),
    )


def simulate(backend: type[Sim], jobs: Jobs, restart_s: float | list[float], assumed_s: float) -> Log:
    sim = backend(jobs, CLUSTER, truth=library(), overheads=Overheads(restart_s=restart_s))
    return run(sim, Market(restart_s=assumed_s), library(), place=Buddy())


def stop_jobs(models: list[str], startup_s: list[float], restart_s: list[float]) -> Snapshot:
    """Return the state in which jobs wait that have run before, with these measured start-ups."""
    count = len(models)
    jobs = Jobs.of(submit_s=[0.0] * count, gpus=[1] * count, duration_s=[1000.0] * count, model=models)
    state = build_empty_state(jobs, CLUSTER)
    arrived = build_events(*(Event(ARRIVED, job, 0.0) for job in range(count)))
    kinds = CLUSTER.accepted_kinds(jobs.gpu_kind)
    state = advance(state, build_empty_decision(state), 100.0, arrived, jobs, kinds)
    block = state.queue.block.copy()
    block[QUEUE_FIRST_START_S], block[QUEUE_STARTUP_S], block[QUEUE_RESTART_S] = 0.0, startup_s, restart_s
    return replace(state, queue=Queue(block))


def test_a_restart_costs_what_was_measured_then_the_median_of_the_model_then_what_is_assumed() -> None:
    models = [BERT, BERT, BERT, BERT, VGG16]
    state = stop_jobs(models, [math.nan] * 5, [300.0, 100.0, 200.0, math.nan, math.nan])
    assert compute_restart_s(state, 30.0).tolist() == [300.0, 100.0, 200.0, 200.0, 30.0]
    assert build_scene(state, library(), None, 30.0).restart_s.tolist() == [300.0, 100.0, 200.0, 200.0, 30.0]


def test_a_slow_first_start_makes_a_restart_dearer_and_a_fast_one_does_not_make_it_cheaper() -> None:
    state = stop_jobs([BERT, VGG16, RESNET50], [290.0, 2.0, 290.0], [math.nan, math.nan, 5.0])
    assert compute_restart_s(state, 30.0).tolist() == [290.0, 30.0, 5.0]


def test_a_job_that_has_not_run_yet_restarts_for_nothing() -> None:
    state = stop_jobs([BERT, BERT], [math.nan] * 2, [300.0, math.nan])
    block = state.queue.block.copy()
    block[QUEUE_FIRST_START_S, 1] = math.nan
    scene = build_scene(replace(state, queue=Queue(block)), library(), None, 30.0)
    assert scene.restart_s.tolist() == [300.0, 0.0]


def test_measured_restarts_undo_most_of_an_assumption_that_is_wrong_by_ten_times() -> None:
    restarts, jct_s = np.zeros(3), np.zeros(3)
    for seed in range(3):
        jobs = some_jobs(80, seed)
        for at, (backend, assumed_s) in enumerate(((SilentSim, 30.0), (Sim, 30.0), (Sim, 300.0))):
            found = report(simulate(backend, jobs, 300.0, assumed_s))
            restarts[at] += found.restarts
            jct_s[at] += found.jct_mean_s
    wrong, measured, right = jct_s
    assert restarts[1] < 0.9 * restarts[0]
    assert wrong - measured > 0.5 * (wrong - right) > 0


def test_measurements_of_the_assumed_cost_change_no_decision() -> None:
    jobs = some_jobs(40, 2)
    silent, measured = (simulate(backend, jobs, 30.0, 30.0) for backend in (SilentSim, Sim))
    assert np.array_equal(silent.actions, measured.actions)
    assert np.array_equal(silent.action_s, measured.action_s)


@pytest.mark.parametrize("backend", [Sim, SilentSim], ids=["with start-ups", "as before"])
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 99), costs=st.lists(st.sampled_from([0.0, 3.0, 600.0]), min_size=12, max_size=12))
def test_a_log_is_replayed_with_the_start_ups_that_it_has(
    backend: type[Sim], seed: int, costs: list[float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = simulate(backend, some_jobs(12, seed, 200.0), costs, 30.0)
    assert backend is Sim or READY not in log.events[:, EVENT_VERB]
    path: Path = tmp_path_factory.mktemp("logs") / "run.jsonl"
    write_log(log, path)
    again = run(Replay(read_log(path)), Market(), library(), place=Buddy())
    assert np.array_equal(again.events, log.events)
    assert np.array_equal(again.actions, log.actions)

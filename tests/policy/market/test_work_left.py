"""Work that the market takes jobs to have left if durations are estimates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.queued_jobs import queue_up
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes, parse_cluster
from wattline.core.estimates import Estimates
from wattline.core.jobs import Jobs
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.loop.run import run
from wattline.models.durations.estimates import DurationEstimates
from wattline.models.durations.limits import LoggedEstimates
from wattline.policy import Market
from wattline.policy.elastic.restart_costs import compute_work_s
from wattline.policy.market import ageing, work_left
from wattline.policy.market.fifo_waits import find_earliest_fifo_starts, find_fifo_starts
from wattline.policy.market.work_left import compute_mean_left, compute_work_left_s
from wattline.reports.summary import build_run_tables

T = TypeVar("T")
ratios = st.lists(st.floats(1e-3, 1e3), max_size=30).map(np.array)


def watch(jobs: Jobs, estimate_s: list[float] | None, look: Callable[[Snapshot], T]) -> list[T]:
    """Run *jobs* on one GPU and return what *look* sees at every decision; estimates change in place."""
    seen: list[T] = []

    def decide(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        seen.append(look(snapshot))
        return Market()(snapshot, models, plan)

    def build(jobs: Jobs) -> DurationEstimates:
        assert estimate_s is not None
        return DurationEstimates(jobs, LoggedEstimates("history", estimate_s))

    sim = Sim(jobs, parse_cluster("1xv100:1"))
    run(sim, decide, durations=None if estimate_s is None else build)
    return seen


def test_known_work_is_taken_as_it_is() -> None:
    jobs = Jobs.of(submit_s=[0, 10], gpus=[1, 1], duration_s=[100, 50])
    same = watch(
        jobs,
        None,
        lambda state: np.array_equal(
            compute_work_left_s(state, np.full(len(state.queue), 300.0)), compute_work_s(state)
        ),
    )
    assert all(same)


def test_where_jobs_end_early_another_has_less_left_than_its_estimate() -> None:
    few, many = (
        compute_mean_left(np.zeros(1), ratio, np.empty(0)) for ratio in (np.empty(0), np.full(300, 0.1))
    )
    assert many < 0.2 * few


def test_jobs_that_go_on_say_that_short_ones_end_first() -> None:
    """Of twenty jobs ten have ended early, and ten have done twice their estimate: no exception."""
    ended, going_on = np.full(10, 0.1), np.full(10, 2.0)
    alone = compute_mean_left(np.zeros(1), ended, np.empty(0))
    assert compute_mean_left(np.zeros(1), ended, going_on) > 1.1 * alone
    soon = compute_mean_left(np.zeros(1), ended, np.full(10, 1e-4))  # they say nothing yet
    assert soon == pytest.approx(alone)


def test_without_jobs_that_go_on_the_rest_is_the_mean_of_what_is_larger() -> None:
    ratio = np.array([0.5, 1.0, 3.0])
    every = np.concatenate((ratio, work_left._UNSEEN))
    for done in (0.0, 0.7, 2.0):
        expected = every[every > done].mean() - done
        assert compute_mean_left(np.array([done]), ratio, np.empty(0))[0] == pytest.approx(expected)


@given(ratios, ratios, st.floats(0, 11))  # the largest ratio that is expected unseen is 11.8
def test_a_job_that_outlives_all_ratios_has_an_unknown_rest(
    ratio: np.ndarray, going_on: np.ndarray, done: float
) -> None:
    left = compute_mean_left(np.array([done, 1e9]), ratio, going_on)
    assert left[0] > 0
    assert np.isnan(left[1])


@given(ratios, ratios, st.floats(0, 5), st.floats(0, 5))
def test_the_expected_end_only_moves_away(
    ratio: np.ndarray, going_on: np.ndarray, done: float, more: float
) -> None:
    left = compute_mean_left(np.array([done, done + more]), ratio, going_on)
    assert done + left[0] <= done + more + left[1] + 1e-9


def test_ended_jobs_say_how_far_estimates_are_off() -> None:
    jobs = Jobs.of(submit_s=[0, 200, 400], gpus=[1, 1, 1], duration_s=[100, 50, 10])
    seen = watch(jobs, [200.0, 500.0, 10.0], lambda state: state.estimates)
    assert seen[0] is not None
    assert seen[0].ratio.tolist() == []
    assert seen[-1] is not None
    assert seen[-1].ratio.tolist() == [0.1, 0.5, 1.0]


def test_waits_on_paper_follow_what_ended_jobs_have_really_taken() -> None:
    # Job 0 was to take 10 s and took 4,000 s, so on paper, too, the others wait for it.
    jobs = Jobs.of(submit_s=[0, 5, 6], gpus=[1, 1, 1], duration_s=[4000, 3000, 10])

    def look(state: Snapshot) -> float | None:
        starts = find_fifo_starts(state, 1)[state.queue.job == 1]
        return float(starts[0]) if len(starts) else None

    seen = watch(jobs, [10.0, 20_000.0, 10.0], look)
    assert seen[1] == 10.0
    assert [start for start in seen if start is not None][-1] == 4000.0


def test_a_job_that_goes_on_holds_gpus_on_paper_for_no_longer_than_it_has_run() -> None:
    """Job 0 is estimated at a day: FIFO may have started job 1 long before that."""
    jobs = Jobs.of(submit_s=[0, 5, 600], gpus=[1, 1, 1], duration_s=[4000, 100, 10])

    def look(state: Snapshot) -> tuple[float, float, float] | None:
        of = np.flatnonzero(state.queue.job == 1)
        if not len(of) or 0 not in state.queue.job:
            return None
        done_s = float(state.steps_done[0] * jobs.step_s[0])
        return find_fifo_starts(state, 1)[of][0], find_earliest_fifo_starts(state, [1])[of][0], done_s

    seen = [one for one in watch(jobs, [86_400.0] * 3, look) if one is not None]
    assert seen
    for expected_s, earliest_s, done_s in seen:
        assert expected_s >= 86_400.0
        assert earliest_s == pytest.approx(max(done_s, 5.0))


def test_a_wait_behind_a_job_of_estimated_duration_is_not_relied_on() -> None:
    """Job 0 may have needed no time: under FIFO job 1 may not have waited at all."""
    jobs = Jobs.of(submit_s=[0, 0], gpus=[4, 4], duration_s=[86_400, 600])
    known = queue_up(jobs, nodes("v100", gpus=4), 20_000.0)
    guessed = replace(known, estimates=Estimates(jobs.duration_s, np.empty(0)))
    assert ageing._find_fifo_waits_s(known, 4).tolist() == [0.0, 10_000.0]
    assert ageing._find_fifo_waits_s(guessed, 4).tolist() == [0.0, 0.0]


def test_a_new_job_counts_with_the_time_until_one_of_such_jobs_has_ended() -> None:
    """Half of the jobs that ended were short, so a turn of 300 s ends every second new job."""
    jobs = Jobs.of(
        submit_s=[*range(40), 50_000], gpus=[1] * 41, duration_s=[20, 2000] * 20 + [40_000], user=["u"] * 41
    )

    def look(state: Snapshot) -> list[float]:
        return compute_work_left_s(state, np.full(len(state.queue), 300.0))[state.queue.job == 40].tolist()

    seen = [left for left in watch(jobs, [2000.0] * 40 + [40_000.0], look) if left]
    assert seen[0] == [pytest.approx(300.0 * 50 / 21)]  # 20 of 40, and one of ten more that are not known


def test_jobs_that_are_no_longer_new_have_the_mean_left() -> None:
    jobs = Jobs.of(submit_s=[0, 1000], gpus=[1, 1], duration_s=[5000, 5000])

    def look(state: Snapshot) -> list[float]:
        return compute_work_left_s(state, np.full(len(state.queue), 300.0)).tolist()

    first, second = watch(jobs, [5000.0, 5000.0], look)[:2]
    assert first[0] == pytest.approx(3000.0)  # one of ten new jobs is taken to end in its first turn
    assert second[0] > 3000.0
    assert second[1] == pytest.approx(3000.0)


def test_short_jobs_that_look_long_are_soon_found_out() -> None:
    """Jobs of three minutes come with an estimate of a day, behind jobs that have run for hours."""
    long, short = 12, 40
    jobs = Jobs.of(
        submit_s=[0.0] * long + [60_000.0 + 15 * i for i in range(short)],
        gpus=[1] * (long + short),
        duration_s=[50_000.0] * long + [200.0] * short,
    )
    estimates = LoggedEstimates("history", [65_000.0] * len(jobs))
    sim = Sim(jobs, parse_cluster("1xv100:4"), overheads=Overheads(restart_s=30.0))
    log = run(sim, Market(), durations=lambda jobs: DurationEstimates(jobs, estimates))
    assert build_run_tables(log).outcomes.jct_s[long:].max() < 2 * 3600.0  # 21 h without turns

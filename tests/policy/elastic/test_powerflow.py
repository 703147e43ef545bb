"""Elastic GPUs and caps within budgets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import wattline as wl
from support.cap_sums import sum_caps
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cli.simulation.unfinished import count_unfinished
from wattline.cluster import join_nodes, parse_cluster
from wattline.core.actions import RETUNE, START, STOP
from wattline.core.events import (
    EVENT_AT_S,
    EVENT_ENERGY_J,
    EVENT_JOB,
    EVENT_VERB,
    FINISHED,
    METERED,
    STOPPED,
    Events,
)
from wattline.core.grants import Grants
from wattline.core.jobs import PREEMPTIBLE_NEVER, PREEMPTIBLE_ONCE_SAVED, Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.plan import Plan
from wattline.core.protocols import Models, Placer
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import MeterReadings, Snapshot
from wattline.core.table import Floats
from wattline.energy.budgets import DAY_S, Budget
from wattline.energy.time_series import TimeSeries
from wattline.errors import ConfigError
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.loop.state import advance, build_empty_decision, build_empty_state
from wattline.models.library import library
from wattline.models.trace_model import Misjudged, TraceModels
from wattline.placement.buddy.placer import Buddy
from wattline.placement.pack import Pack
from wattline.placement.power import Power
from wattline.policy import Market, PowerFlow
from wattline.policy.budget_limits import compute_limits
from wattline.policy.chain import Chain, chain
from wattline.policy.elastic.afs import Afs
from wattline.policy.stages.fuse import Fuse
from wattline.reports import report
from wattline.reports.summary import build_run_tables
from wattline.testing import PolicyContract

NAMES = ("elasticflow/bert", "elasticflow/vgg16", "elasticflow/resnet50", "zeus/none")


def some_jobs(count: int, seed: int, teams: int = 2, **more: object) -> Jobs:
    rng = np.random.default_rng(seed)
    columns: dict[str, object] = {
        "submit_s": np.cumsum(rng.exponential(400.0, count)),
        "gpus": rng.choice([1, 1, 2, 3, 4, 8], count),
        "duration_s": rng.lognormal(7.5, 1.0, count),
        "model": [NAMES[i] for i in rng.integers(0, len(NAMES), count)],
        "team": [f"team-{i}" for i in rng.integers(0, teams, count)],
        **more,
    }
    return Jobs.of(**columns)  # type: ignore[arg-type]


def cluster(count: int = 2, **more: float) -> Nodes:
    return wl.nodes("a100", count=count, gpus=8, **more)


def simulate(
    policy: PowerFlow | Afs | Chain,
    jobs: Jobs,
    nodes: Nodes,
    models: Models | None = None,
    truth: Models | None = None,
) -> Log:
    known = library()
    sim = Sim(jobs, nodes, truth=truth or known, overheads=Overheads(restart_s=30.0))
    return run(sim, policy, models or known)


@dataclass(frozen=True)
class LowDraw:
    """Models of jobs that draw a third of what is predicted."""

    predicted: Models

    def speed(self, jobs: Jobs, grants: Grants) -> Floats:
        return self.predicted.speed(jobs, grants)

    def watts(self, jobs: Jobs, grants: Grants) -> Floats:
        return np.asarray(self.predicted.watts(jobs, grants) / 3)

    def observe(self, events: Events, jobs: Jobs, leases: Leases, nodes: Nodes) -> LowDraw:
        return self


@pytest.mark.slow
class TestPowerFlow(PolicyContract):
    policy = PowerFlow()


class TestPowerFlowWithinItsEta(PolicyContract):
    policy = PowerFlow(eta=0.3)


@pytest.mark.slow
class TestPowerFlowWithTheLibrary(PolicyContract):
    policy = PowerFlow(eta=0.7, budgets=(Budget.eta(0.5, team="b"),))
    models = library()


# -- grants


@pytest.mark.slow
@given(st.integers(0, 1000), st.floats(0, 1))
def test_every_grant_is_a_power_of_two_or_what_the_user_asked(seed: int, eta: float) -> None:
    jobs = some_jobs(20, seed)
    log = simulate(PowerFlow(eta=eta), jobs, cluster())
    started = log.actions[log.actions[:, 0] == START]
    for now in np.unique(log.action_round[log.actions[:, 0] == START]).tolist():
        rows = log.actions[(log.action_round == now) & (log.actions[:, 0] == START)]
        for job in np.unique(rows[:, 1]).tolist():
            gpus = int(rows[rows[:, 1] == job, 4].sum())
            assert gpus == jobs.gpus[job] or gpus & (gpus - 1) == 0
    assert len(started)


@given(st.integers(0, 1000))
def test_users_bounds_on_gpus_hold(seed: int) -> None:
    jobs = some_jobs(15, seed)
    least = np.maximum(jobs.gpus // 2, 1)
    jobs = replace(jobs, min_gpus=least, max_gpus=2 * jobs.gpus)
    log = simulate(PowerFlow(), jobs, cluster())
    starts = log.actions[log.actions[:, 0] == START]
    rounds = log.action_round[log.actions[:, 0] == START]
    for job in range(len(jobs)):
        for now in np.unique(rounds[starts[:, 1] == job]):
            gpus = starts[(starts[:, 1] == job) & (rounds == now), 4].sum()
            assert least[job] <= gpus <= 2 * jobs.gpus[job]


def test_a_job_alone_gets_all_that_makes_it_faster() -> None:
    jobs = Jobs.of(submit_s=[0], gpus=[1], duration_s=[10_000], model=["elasticflow/resnet50"], batch=[256])
    log = simulate(PowerFlow(), jobs, cluster(4))
    assert log.actions[:, 4].sum() == 32
    assert log.actions[0, 5] == 0 or log.actions[0, 5] >= 354  # nothing that holds it back


def test_the_cheapest_plan_is_one_gpu_under_a_cap() -> None:
    jobs = Jobs.of(submit_s=[0], gpus=[8], duration_s=[10_000], model=["elasticflow/resnet50"], batch=[256])
    log = simulate(PowerFlow(eta=0.0), jobs, cluster(base_w=0.0, idle_w=0.0))
    assert log.actions[:, 4].sum() == 1
    assert 0 < log.actions[0, 5] < 400


def test_another_cap_is_set_without_a_stop() -> None:
    jobs = Jobs.of(
        submit_s=[0, 100], gpus=[8, 8], min_gpus=[8, 8], max_gpus=[8, 8], duration_s=[5000, 5000],
        model=["elasticflow/resnet50"] * 2,
    )  # fmt: skip
    nodes = cluster(2)
    watts = float(nodes.idle_node_w.sum()) + 16 * 180.0
    log = simulate(PowerFlow(budgets=(Budget.watts(watts),)), jobs, nodes)
    assert (log.actions[:, 0] == RETUNE).any()
    assert not (log.actions[:, 0] == STOP).any()


def test_a_larger_batch_is_used_where_the_job_allows_it() -> None:
    one = {
        "submit_s": [0],
        "gpus": [8],
        "duration_s": [10_000],
        "model": ["elasticflow/resnet50"],
        "batch": [64],
    }
    fixed = simulate(PowerFlow(), Jobs.of(**one), cluster())  # type: ignore[arg-type]
    free = simulate(PowerFlow(), Jobs.of(**one, max_batch=[1024], noise=[4000.0]), cluster())  # type: ignore[arg-type]
    assert not fixed.actions[:, 6].any()
    assert 64 < free.actions[0, 6] <= 1024
    assert report(free).jct_mean_s < report(fixed).jct_mean_s


def test_growing_that_saves_less_than_it_costs_is_left_alone() -> None:
    jobs = Jobs.of(
        submit_s=[0, 0], gpus=[8, 8], min_gpus=[8, 8], max_gpus=[16, 16], duration_s=[1000, 990],
        model=["elasticflow/vgg16"] * 2,
    )  # fmt: skip
    patient = simulate(PowerFlow(rescale_s=30.0), jobs, cluster(2))
    hasty = simulate(PowerFlow(rescale_s=0.0), jobs, cluster(2))
    assert report(patient).restarts == 0
    assert report(hasty).restarts == 1


# -- budgets


def overshoot_j(log: Log, budget_j: float) -> float:
    return float(log.events[log.events[:, EVENT_VERB] == METERED, EVENT_ENERGY_J].max()) - budget_j


@pytest.mark.slow
@given(st.integers(0, 1000), st.floats(0.2, 1.5), st.sampled_from((0.0, 0.5, 1.5)), st.booleans())
def test_joules_are_never_exceeded_by_more_than_one_interval(
    seed: int, share: float, error: float, horizon: bool
) -> None:
    jobs, nodes = some_jobs(12, seed), cluster(2)
    full_j = report(simulate(PowerFlow(), jobs, nodes)).energy_j
    horizon_s = float(jobs.submit_s[-1]) + 3600.0 if horizon else math.inf
    budget = Budget.joules(share * full_j, horizon_s=horizon_s)
    wrong = Misjudged(library(), error=error, seed=seed)
    policy = PowerFlow(budgets=(budget,), interval_s=120.0)
    log = simulate(policy, jobs, nodes, models=wrong)
    interval_j = 120.0 * float(nodes.idle_node_w.sum() + 16 * 400.0)
    # A policy cannot change what idles when no job may run; it counts until the run ends.
    used_j = jobs_and_rest_j(log, nodes, budget.amount)
    assert used_j <= budget.amount + interval_j


def jobs_and_rest_j(log: Log, nodes: Nodes, budget_j: float) -> float:
    """Joules when the last job stopped or ended."""
    ends = log.events[np.isin(log.events[:, EVENT_VERB], (STOPPED, FINISHED)), EVENT_AT_S]
    last_s = ends.max(initial=0.0)
    total_j, until_s = log.events[-1, EVENT_ENERGY_J], log.events[-1, EVENT_AT_S]
    return float(total_j - nodes.idle_node_w.sum() * (until_s - last_s))


@pytest.mark.slow
@settings(deadline=None, max_examples=20)  # each is a whole run with a decision every minute
@given(st.integers(0, 1000), st.floats(0.3, 1.0), st.sampled_from((0.0, 1.0)))
@example(256, 0.375, 1.0)  # a job draws thirty times its predicted watts
def test_watts_hold_one_interval_after_a_job_was_measured_for_the_first_time(
    seed: int, share: float, error: float
) -> None:
    jobs, nodes = some_jobs(12, seed), cluster(2)
    rest_w = float(nodes.idle_node_w.sum())
    watts = rest_w + share * 16 * 300.0
    policy = PowerFlow(budgets=(Budget.watts(watts),), interval_s=60.0)
    log = simulate(policy, jobs, nodes, models=Misjudged(library(), error=error, seed=seed))
    over_s = seconds_above(log, watts)
    if error == 0.0:
        assert over_s == 0.0
    assert over_s <= 60.0 * len(jobs)


def metered_intervals(log: Log, team: int = -1) -> tuple[Floats, Floats, Floats]:
    """Return end, length and mean watts of each interval between two readings of the cluster or a team."""
    events = log.events
    readings = events[(events[:, EVENT_VERB] == METERED) & (events[:, EVENT_JOB] == team)]
    length_s, energy_j = np.diff(readings[:, EVENT_AT_S]), np.diff(readings[:, EVENT_ENERGY_J])
    rows = np.flatnonzero(length_s > 0)
    return readings[1 + rows, EVENT_AT_S], length_s[rows], energy_j[rows] / length_s[rows]


def seconds_above(log: Log, watts: float, team: int = -1) -> float:
    """Return the time during which more than *watts* were drawn."""
    _, length_s, mean_w = metered_intervals(log, team)
    return float(length_s[mean_w > watts * (1 + 1e-6)].sum())


@dataclass(frozen=True)
class Half:
    """Believes half of the watts, and learns nothing."""

    truth: Models

    def speed(self, jobs: Jobs, grants: Grants) -> Floats:
        return self.truth.speed(jobs, grants)

    def watts(self, jobs: Jobs, grants: Grants) -> Floats:
        return np.asarray(self.truth.watts(jobs, grants) / 2)

    def observe(self, *_: object) -> Half:
        return self


def eight(count: int, *duration_s: float, **more: object) -> Jobs:
    """Jobs of exactly eight GPUs each, all at once."""
    columns: dict[str, object] = {
        "submit_s": [0.0] * count, "gpus": [8] * count, "min_gpus": [8] * count, "max_gpus": [8] * count,
        "duration_s": duration_s or [20_000.0] * count, "model": ["elasticflow/resnet50"] * count, **more,
    }  # fmt: skip
    return Jobs.of(**columns)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("preemptible", [PREEMPTIBLE_NEVER, PREEMPTIBLE_ONCE_SAVED])
def test_a_protected_job_is_not_stopped_for_a_shorter_one_that_the_watts_do_not_allow_beside_it(
    preemptible: int,
) -> None:
    nodes = cluster(2)
    watts = float(nodes.idle_node_w.sum()) + 8 * 100.0
    jobs = eight(2, 5000.0, 500.0, submit_s=[0.0, 100.0])
    policy = PowerFlow(budgets=(Budget.watts(watts),), interval_s=60.0)
    assert (simulate(policy, jobs, nodes).actions[:, 0] == STOP).any()
    never = {"checkpoint_s": np.full(2, -1.0), "preemptible": np.full(2, preemptible)}
    log = simulate(policy, replace(jobs, **never), nodes)
    assert not (log.actions[:, 0] == STOP).any()
    assert seconds_above(log, watts) <= policy.interval_s


def test_a_job_that_is_never_preempted_runs_at_its_lowest_cap_above_the_budget() -> None:
    nodes = cluster(1)
    jobs = replace(eight(1), preemptible=np.array([PREEMPTIBLE_NEVER]))
    seen: list[tuple[int, Reason]] = []

    def shrink(snapshot: Snapshot, models: Models) -> Plan:
        budgets = (Budget.watts(1.0),) if snapshot.now_s > 1000.0 else ()
        plan = PowerFlow(budgets=budgets, interval_s=60.0)(snapshot, models)
        if snapshot.now_s > 1000.0 and plan.cap_w is not None and plan.reason is not None and len(plan):
            seen.append((int(plan.cap_w[0]), REASONS[int(plan.reason[0])]))
        return replace(plan, next_decision_s=snapshot.now_s + 600.0)

    log = run(Sim(jobs, nodes, truth=library()), shrink, library())
    assert not (log.actions[:, 0] == STOP).any()
    assert set(seen) == {(100, Reason.OVER_BUDGET)}


def reasons(log: Log) -> set[Reason]:
    return {REASONS[number] for number in log.wait_reasons[:, 1].tolist()}


def test_what_was_measured_of_a_job_is_known_after_it_was_stopped() -> None:
    jobs = eight(1, team=["t"])
    log = simulate(PowerFlow(budgets=(Budget.watts(500.0, team="t"),)), jobs, cluster(1), Half(library()))
    assert (log.actions[:, 0] == START).sum() == 1
    assert seconds_above(log, 500.0, team=0) <= 300.0
    assert reasons(log) == {Reason.NEVER_IN_BUDGET}


def test_a_job_that_draws_more_than_believed_goes_on_under_a_cap_after_a_stop() -> None:
    # With the second it is too much: one is stopped, and starts again when the other has ended.
    jobs, nodes = eight(2, 4000.0, 5000.0), cluster(2)
    watts = float(nodes.idle_node_w.sum()) + 2000.0
    log = simulate(PowerFlow(budgets=(Budget.watts(watts),), interval_s=60.0), jobs, nodes, Half(library()))
    assert report(log).finished == 2
    assert seconds_above(log, watts) <= 60.0


# -- nodes that are switched


def test_a_booting_node_is_within_the_watts() -> None:
    nodes = parse_cluster("1xv100:8+1xa100:8")
    jobs = Jobs.of(
        submit_s=[0, 0], gpus=[2, 2], min_gpus=[2, 2], max_gpus=[2, 2], duration_s=[5000, 4000],
        gpu_kind=["v100", "a100"], model=["elasticflow/resnet50"] * 2,
    )  # fmt: skip
    for more_w, done in ((300.0, 1), (900.0, 2)):  # the A100s, for which GPUs of the V100s are no help
        watts = float(nodes.idle_node_w[0]) + more_w
        sim = Sim(jobs, nodes, truth=library())
        log = run(sim, PowerFlow(budgets=(Budget.watts(watts),)), library(), place=Power())
        assert report(log).finished == done
        assert seconds_above(log, watts) <= float(nodes.break_even_s.max()) + 1.0


@pytest.mark.slow
@given(
    st.integers(0, 1000),
    st.floats(1.1, 3.5),
    st.sampled_from((Pack(), Buddy())),
    st.sampled_from((0, 0, 4)),
    st.sampled_from(("3xa100:8", "2xa100:8+2xv100:4", "1xv100:8+1xa100:8")),
)
def test_watts_hold_while_nodes_go_off_and_on(
    seed: int, share: float, place: Placer, spare: int, text: str
) -> None:
    nodes, rng, count = parse_cluster(text), np.random.default_rng(seed), 6
    kinds = rng.integers(0, len(nodes.kind.names), count)
    gpus = rng.choice([1, 2, 3, 4, 6, 8], count)
    fixed = np.where(rng.random(count) < 0.5, gpus, 0)
    jobs = some_jobs(
        count, seed, gpus=gpus, min_gpus=fixed, max_gpus=fixed, gpu_kind=[nodes.kind.names[k] for k in kinds]
    )
    watts = share * float(nodes.idle_node_w.max()) + 300.0
    sim = Sim(jobs, nodes, truth=library())
    log = run(sim, PowerFlow(budgets=(Budget.watts(watts),)), library(), place=Power(place, spare))
    until_s, _, each_w = metered_intervals(log)
    settled = until_s > jobs.submit_s[0] + 2 * float(nodes.break_even_s.max())  # all are on in the beginning
    assert (each_w[settled] <= watts * (1 + 1e-6)).all()
    assert set(count_unfinished(log)) <= {"never_in_budget"}  # jobs that it leaves out get the reason


def test_a_job_of_two_nodes_needs_the_watts_of_two() -> None:
    nodes = cluster(4)
    jobs = Jobs.of(submit_s=[0], gpus=[16], min_gpus=[16], max_gpus=[16], duration_s=[500])
    log = run(
        Sim(jobs, nodes), PowerFlow(budgets=(Budget.watts(1.9 * float(nodes.idle_node_w[0])),)), place=Power()
    )
    assert reasons(log) == {Reason.NEVER_IN_BUDGET}


@pytest.mark.slow
def test_watts_hold_where_nodes_of_a_kind_differ() -> None:
    nodes = join_nodes(cluster(1, idle_w=60.0), cluster(1, idle_w=10.0))
    jobs = eight(2)
    for more_w in (1500.0, 2000.0):
        watts = float(nodes.idle_node_w.sum()) + more_w
        log = simulate(PowerFlow(budgets=(Budget.watts(watts),)), jobs, nodes)
        assert seconds_above(log, watts) == 0.0
        assert report(log).finished == 2


# -- joules


def test_joules_that_suffice_on_more_gpus_are_enough() -> None:
    # One GPU alone would carry the whole node for eight times as long. There is enough for one job of two.
    one = {"gpus": [8], "duration_s": [10_000.0], "model": ["elasticflow/resnet50"], "batch": [256]}
    two = Jobs.of(submit_s=[0, 0], **{name: value * 2 for name, value in one.items()})  # type: ignore[arg-type]
    full_j = report(simulate(PowerFlow(), two.take(np.array([True, False])), cluster(1))).energy_j
    log = simulate(PowerFlow(budgets=(Budget.joules(1.05 * full_j),)), two, cluster(1))
    assert report(log).finished == 1
    assert report(log).energy_j <= 1.05 * full_j


@pytest.mark.slow
@given(st.integers(1, 6), st.floats(1.1, 2.0))
def test_joules_for_one_job_are_not_spent_on_three_and_the_nodes_that_idle(count: int, share: float) -> None:
    jobs, nodes = eight(3, 20_000.0, 20_100.0, 20_200.0), cluster(count)
    one_j = report(simulate(PowerFlow(), eight(1), nodes)).energy_j
    log = simulate(PowerFlow(budgets=(Budget.joules(share * one_j),)), jobs, nodes)
    assert report(log).finished >= 1
    assert not (log.actions[:, 0] == STOP).any()
    assert report(log).energy_j <= share * one_j * (1 + 1e-6)


def test_joules_of_a_team_are_what_its_own_jobs_draw() -> None:
    jobs, nodes = eight(1, team=["t"]), cluster(1)
    own_j = (
        20_000.0 * float(library().watts(jobs, Grants.of(np.array([0]), np.array([8]), kind="a100"))[0]) * 8
    )
    log = simulate(PowerFlow(budgets=(Budget.joules(1.01 * own_j, team="t"),)), jobs, nodes)
    assert report(log).finished == 1


# -- until when


@pytest.mark.parametrize("interval_s", [4.0, 300.0])
def test_a_night_without_watts_is_waited_for_whatever_the_interval(interval_s: float) -> None:
    nodes = cluster(1)
    night = TimeSeries((0.0, 43_200.0), (0.0, float(nodes.idle_node_w.sum()) + 4000.0), every_s=86_400.0)
    log = simulate(PowerFlow(budgets=(Budget.series(night),), interval_s=interval_s), eight(1, 1000.0), nodes)
    assert report(log).finished == 1


def test_no_decision_is_made_until_the_next_day_when_its_kwh_are_spent() -> None:
    jobs, nodes = eight(1, team=["t"]), cluster(1)
    state = build_empty_state(jobs, nodes)
    came = np.zeros((1, 6))
    state = advance(
        state, build_empty_decision(state), 9000.0, came, jobs, nodes.accepted_kinds(jobs.gpu_kind)
    )
    for used_j, looks_s in ((5e6, DAY_S), (1e6, 9000.0 + (DAY_S - 9000.0) / 64)):
        meter = MeterReadings(np.array([0.0, 9000.0]), np.array([[0.0, 0.0], [used_j, used_j]]))
        limits = compute_limits((Budget.kwh_per_day(1.0, team="t"),), replace(state, meter=meter), 300.0)
        assert limits.next_decision_s == 9300.0
        assert limits.next_idle_decision_s == pytest.approx(looks_s)


@pytest.mark.parametrize("policy", [PowerFlow, Market])
def test_a_daily_budget_below_the_draw_of_a_job_lets_one_run_from_the_morning_on(policy: Callable) -> None:  # type: ignore[type-arg]
    """1 kWh a day is 42 W on the average: spread evenly, a job of 400 W would begin in the evening."""
    jobs = Jobs.of(
        submit_s=[0, 10, 10], gpus=[1] * 3, duration_s=[3000] * 3, min_gpus=[1] * 3, max_gpus=[1] * 3,
        team=["t"] * 3, model=["elasticflow/vgg16"] * 3,
    )  # fmt: skip
    log = simulate(policy(budgets=(Budget.kwh_per_day(1.0, team="t"),)), jobs, cluster(1))
    assert report(log).finished == 3
    assert log.now_s[log.action_round[0]] == 0.0, "it begins at once"
    assert build_run_tables(log).outcomes.jct_s.max() < DAY_S / 6
    seen = log.events[(log.events[:, EVENT_VERB] == METERED) & (log.events[:, EVENT_JOB] == 0)]
    drawn_w = np.diff(seen[:, EVENT_ENERGY_J]) / np.maximum(np.diff(seen[:, EVENT_AT_S]), 1e-9)
    assert (drawn_w <= 400.0 * (1 + 1e-6)).all(), "no more than one GPU draws"


def test_a_spent_daily_budget_stops_the_job_until_the_next_day() -> None:
    jobs = Jobs.of(
        submit_s=[0], gpus=[1], duration_s=[20_000], min_gpus=[1], max_gpus=[1], team=["t"],
        model=["elasticflow/vgg16"],
    )  # fmt: skip
    log = simulate(PowerFlow(budgets=(Budget.kwh_per_day(1.0, team="t"),)), jobs, cluster(1))
    assert report(log).finished == 1
    seen = log.events[(log.events[:, EVENT_VERB] == METERED) & (log.events[:, EVENT_JOB] == 0)]
    days = np.arange(0.0, seen[-1, EVENT_AT_S] + DAY_S, DAY_S)
    used_j = np.diff(np.interp(days, seen[:, EVENT_AT_S], seen[:, EVENT_ENERGY_J], left=0.0))
    assert len(used_j) > 1
    assert (used_j <= 3.6e6 + 300.0 * 400.0).all()


@pytest.mark.parametrize("horizon_s", [math.inf, 7 * DAY_S])
def test_joules_that_idle_nodes_use_up_are_never_enough(horizon_s: float) -> None:
    nodes = cluster(2)
    rest_j = float(nodes.idle_node_w.sum()) * min(horizon_s, 20_000.0)
    log = simulate(PowerFlow(budgets=(Budget.joules(0.9 * rest_j, horizon_s=horizon_s),)), eight(1), nodes)
    assert report(log).never_started == 1
    assert Reason.NEVER_IN_BUDGET in reasons(log)
    assert log.events[-1, EVENT_AT_S] <= 3600.0


@pytest.mark.slow
@settings(deadline=None, max_examples=8)  # days, with a decision every five minutes
@given(st.integers(0, 300))
def test_no_day_uses_more_than_its_kwh_and_one_interval(seed: int) -> None:
    jobs, nodes = some_jobs(10, seed, duration_s=np.full(10, 40_000.0)), cluster(2, base_w=100.0, idle_w=10.0)
    daily_kwh = 1.3 * float(nodes.idle_node_w.sum()) * 24 / 1000 + 15.0
    policy = PowerFlow(budgets=(Budget.kwh_per_day(daily_kwh),), interval_s=300.0)
    log = simulate(policy, jobs, nodes, models=Misjudged(library(), error=0.5, seed=seed))
    assert report(log).unfinished == 0
    readings = log.events[(log.events[:, EVENT_VERB] == METERED) & (log.events[:, EVENT_JOB] == -1)]
    days = np.arange(0.0, readings[-1, 2] + DAY_S, DAY_S)
    used = np.diff(np.interp(days, readings[:, 2], readings[:, 5], left=0.0)) / 3.6e6
    interval_kwh = 300.0 * float(nodes.idle_node_w.sum() + 16 * 400.0) / 3.6e6
    assert (used <= daily_kwh + interval_kwh).all()


@pytest.mark.slow
@given(st.integers(0, 300))
def test_teams_and_the_cluster_hold_their_budgets_at_once(seed: int) -> None:
    jobs, nodes = some_jobs(14, seed), cluster(2)
    rest_w = float(nodes.idle_node_w.sum())
    budgets = (
        Budget.watts(rest_w + 2500.0), Budget.watts(900.0, team="team-0"), Budget.eta(0.6, team="team-1"),
    )  # fmt: skip
    log = simulate(PowerFlow(budgets=budgets), jobs, nodes)
    assert report(log).unfinished == 0
    for column, most_w in ((-1, rest_w + 2500.0), (jobs.team.names.index("team-0"), 900.0)):
        seen = log.events[(log.events[:, EVENT_VERB] == METERED) & (log.events[:, EVENT_JOB] == column)]
        lasts_s = np.diff(seen[:, 2])
        drawn = np.diff(seen[:, 5])[lasts_s > 0] / lasts_s[lasts_s > 0]
        assert (drawn <= most_w * (1 + 1e-6)).all()


def test_a_tariff_is_followed_hour_by_hour() -> None:
    nodes = cluster(1)
    rest_w = float(nodes.idle_node_w.sum())
    tariff = TimeSeries((0.0, 3600.0), (rest_w + 2400.0, rest_w + 900.0), every_s=7200.0)
    jobs = Jobs.of(submit_s=[0], gpus=[8], duration_s=[20_000], model=["elasticflow/vgg16"])
    log = simulate(PowerFlow(budgets=(Budget.series(tariff),)), jobs, nodes)
    seen = log.events[(log.events[:, EVENT_VERB] == METERED) & (log.events[:, EVENT_JOB] == -1)]
    for (at_s, used_j), (then_s, then_j) in zip(seen[:-1, [2, 5]], seen[1:, [2, 5]], strict=True):
        if then_s > at_s:
            assert (then_j - used_j) / (then_s - at_s) <= tariff.at(at_s)[0] * (1 + 1e-6)
    assert report(log).finished == 1


def test_jobs_that_a_budget_holds_back_have_that_reason() -> None:
    nodes = cluster(1)
    jobs = Jobs.of(submit_s=[0, 1], gpus=[8, 8], min_gpus=[8, 8], max_gpus=[8, 8], duration_s=[500, 500])
    watts = float(nodes.idle_node_w.sum()) + 8 * 60.0
    log = run(
        Sim(jobs, cluster(2)), PowerFlow(budgets=(Budget.watts(watts + float(nodes.idle_node_w.sum())),))
    )
    reasons = {REASONS[number] for number in log.wait_reasons[:, 1].tolist()}
    assert Reason.OVER_BUDGET in reasons
    assert report(log).finished == 2


@pytest.mark.parametrize(
    "budget",
    [Budget.watts(10.0), Budget.joules(0.0), Budget.kwh_per_day(0.01), Budget.watts(20.0, team="team-0")],
)
def test_a_budget_under_which_nothing_can_ever_run_ends_the_run_with_that_reason(budget: Budget) -> None:
    jobs = some_jobs(3, 0, teams=1)
    log = simulate(PowerFlow(budgets=(budget,)), jobs, cluster())
    assert report(log).never_started == 3
    assert {REASONS[number] for number in log.wait_reasons[:, 1].tolist()} >= {Reason.NEVER_IN_BUDGET}


# -- quality


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("load_s", [200.0, 800.0])
def test_without_a_budget_it_is_no_worse_than_afs(seed: int, load_s: float) -> None:
    jobs = some_jobs(80, seed, submit_s=np.cumsum(np.random.default_rng(seed).exponential(load_s, 80)))
    ours = report(simulate(PowerFlow(), jobs, cluster())).jct_mean_s
    for lengths in ("unknown", "known"):
        afs = report(simulate(Afs(lengths=lengths), jobs, cluster())).jct_mean_s
        assert ours <= afs * 1.02


@given(st.integers(0, 500))
def test_less_eta_uses_less_energy_for_a_job_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = Jobs.of(
        submit_s=[0], gpus=[int(rng.choice([1, 2, 4, 8]))], duration_s=[float(rng.uniform(1e3, 1e5))],
        model=[str(rng.choice(NAMES[:3]))],
    )  # fmt: skip
    nodes = cluster(2, base_w=0.0, idle_w=0.0)
    used = [report(simulate(PowerFlow(eta=eta), jobs, nodes)).energy_j for eta in (0.0, 0.3, 0.6, 1.0)]
    assert all(b >= a * (1 - 1e-9) for a, b in pairwise(used))


@pytest.mark.parametrize(
    ("knobs", "problem"),
    [({"eta": 1.5}, "eta"), ({"rescale_s": -1.0}, "rescale_s"), ({"interval_s": 0.0}, "interval_s")],
)
def test_knobs_that_make_no_sense_are_named(knobs: dict[str, float], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        PowerFlow(**knobs)  # type: ignore[arg-type]


def test_it_runs_where_nothing_is_known_of_the_jobs() -> None:
    jobs = some_jobs(20, 3, model=[""] * 20)
    log = run(Sim(jobs, cluster()), PowerFlow(eta=0.5), TraceModels(), place=Pack())
    assert report(log).finished == 20


# -- caps


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(
    st.integers(0, 1000),
    st.sampled_from((2000.0, 4000.0, 6500.0)),
    st.sampled_from((1.0, 1.2, 2.0)),
    st.sampled_from(("", "team-0")),
)
def test_the_sum_of_caps_is_within_the_watts_at_each_moment_however_late_the_meters_are(
    seed: int, watts: float, overshoot: float, team: str
) -> None:
    jobs = some_jobs(15, seed, fuse=["key"] * 15)
    policy = chain(PowerFlow(budgets=(Budget.watts(watts, team=team),), overshoot=overshoot), Fuse())
    nodes = cluster(base_w=0.0)
    # The true draw is far below the prediction, so measured watts alone would allow more.
    log = simulate(policy, jobs, nodes, truth=LowDraw(library()))
    caps_w = sum_caps(log, team or None)
    assert max(caps_w) <= overshoot * watts + 1e-6
    assert not count_unfinished(log)


def test_without_an_overshoot_caps_are_not_bounded_as_the_simulator_s_meters_are_exact() -> None:
    jobs, watts = some_jobs(15, 1), 4000.0
    policy = PowerFlow(budgets=(Budget.watts(watts),))
    log = simulate(policy, jobs, cluster(base_w=0.0), truth=LowDraw(library()))
    assert max(sum_caps(log)) > watts


def test_a_job_for_which_no_cap_is_low_enough_waits_with_the_reason() -> None:
    low, models = LowDraw(library()), ["elasticflow/resnet50"] * 2
    jobs = Jobs.of(submit_s=[0.0, 0.0], gpus=[8, 1], duration_s=[99.0, 99.0], min_gpus=[8, 1], model=models)
    # 16 idle a100 draw 944 W; eight at their lowest cap add 8 x (100 - 59) W.
    policy = PowerFlow(budgets=(Budget.watts(1200.0),), overshoot=1.0)
    log = simulate(policy, jobs, cluster(base_w=0.0), low, low)
    assert REASONS.index(Reason.NEVER_IN_BUDGET) in log.wait_reasons[log.wait_reasons[:, 0] == 0, 1]
    assert list_finished(log) == [1]
    relaxed = simulate(replace(policy, overshoot=1.1), jobs, cluster(base_w=0.0), low, low)
    assert list_finished(relaxed) == [0, 1]


def list_finished(log: Log) -> list[int]:
    return sorted(log.events[log.events[:, EVENT_VERB] == FINISHED, EVENT_JOB].astype(int).tolist())

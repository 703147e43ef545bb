"""Budgets hold by measured watts, however wrong the models are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wattline as wl
from support.cap_sums import sum_caps
from support.queued_jobs import queue_up
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import parse_cluster
from wattline.core.actions import STOP
from wattline.core.events import EVENT_AT_S, EVENT_ENERGY_J, EVENT_JOB, EVENT_VERB, FINISHED, METERED, STOPPED
from wattline.core.jobs import PREEMPTIBLE_NEVER, Jobs
from wattline.core.nodes import Nodes
from wattline.core.protocols import Models
from wattline.core.reasons import REASONS, Reason
from wattline.core.table import Floats, Ints
from wattline.energy.budgets import DAY_S, Budget, parse_budget
from wattline.energy.time_series import TimeSeries
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.models.library import library
from wattline.models.model_assignment import assign_models
from wattline.models.trace_model import Misjudged
from wattline.placement import Buddy, Pack, Power
from wattline.policy import Market, PowerFlow
from wattline.policy.budget_limits import NO_LIMITS, WATTS, compute_limits
from wattline.policy.elastic.budget_allocation import LimitArrays, PowerTable
from wattline.policy.market.ageing import _count_powered_gpus, find_overdue
from wattline.policy.market.budgets import Wanted, raise_caps
from wattline.policy.market.scene import build_scene
from wattline.reports import report
from wattline.reports.summary import build_run_tables

NAMES = ("elasticflow/bert", "elasticflow/vgg16", "elasticflow/resnet50", "zeus/none")
FEW = settings(deadline=None, max_examples=4)  # each is a whole run with a decision every few minutes
TWICE = math.log(2.0)  # the standard deviation of errors: a third of all models is wrong by more than 2


def some_jobs(count: int, seed: int, **more: object) -> Jobs:
    rng = np.random.default_rng(seed)
    columns: dict[str, object] = {
        "submit_s": np.cumsum(rng.exponential(400.0, count)),
        "gpus": rng.choice([1, 1, 2, 3, 4, 8], count),
        "duration_s": rng.lognormal(7.5, 1.0, count),
        "model": [NAMES[i] for i in rng.integers(0, len(NAMES), count)],
        "team": [f"team-{i}" for i in rng.integers(0, 2, count)],
        **more,
    }
    return Jobs.of(**columns)  # type: ignore[arg-type]


def simulate(policy: Market | PowerFlow, jobs: Jobs, nodes: Nodes, models: Models | None = None) -> Log:
    sim = Sim(jobs, nodes, truth=library(), overheads=Overheads(restart_s=30.0))
    return run(sim, policy, models or library())


def read_intervals(log: Log, team: int = -1) -> tuple[Floats, Floats, Floats]:
    """Return begin, length and mean watts of each interval between two readings of the cluster or a team."""
    events = log.events
    readings = events[(events[:, EVENT_VERB] == METERED) & (events[:, EVENT_JOB] == team)]
    length_s, energy_j = np.diff(readings[:, EVENT_AT_S]), np.diff(readings[:, EVENT_ENERGY_J])
    rows = np.flatnonzero(length_s > 0)
    return readings[rows, EVENT_AT_S], length_s[rows], energy_j[rows] / length_s[rows]


def list_reasons(log: Log) -> set[Reason]:
    return {REASONS[number] for number in log.wait_reasons[:, 1].tolist()}


@pytest.mark.slow
@FEW
@given(st.integers(0, 1000), st.floats(0.3, 1.0), st.sampled_from((0.0, TWICE)))
def test_watts_are_exceeded_for_at_most_one_interval_per_job(seed: int, share: float, error: float) -> None:
    jobs, nodes = some_jobs(6, seed), wl.nodes("a100", count=2)
    watts = float(nodes.idle_node_w.sum()) + share * 16 * 300.0
    policy = Market(budgets=(Budget.watts(watts),), interval_s=300.0)
    log = simulate(policy, jobs, nodes, Misjudged(library(), error=error, seed=seed))
    _, length_s, drawn_w = read_intervals(log)
    over = drawn_w > watts * (1 + 1e-6)
    assert length_s[over].sum() <= 300.0 * len(jobs)
    if error == 0:
        assert (drawn_w <= 1.01 * watts).all()
    assert report(log).unfinished == 0


@pytest.mark.slow
@FEW
@given(st.integers(0, 1000), st.floats(0.3, 1.2), st.booleans())
def test_joules_are_never_exceeded_by_more_than_one_interval(seed: int, share: float, ends: bool) -> None:
    jobs, nodes = some_jobs(6, seed), wl.nodes("a100", count=2)
    full_j = report(simulate(Market(), jobs, nodes)).energy_j
    horizon_s = float(jobs.submit_s[-1]) + 3600.0 if ends else math.inf
    budget = Budget.joules(share * full_j, horizon_s=horizon_s)
    policy = Market(budgets=(budget,), interval_s=300.0)
    log = simulate(policy, jobs, nodes, Misjudged(library(), error=TWICE, seed=seed))
    over = np.isin(log.events[:, EVENT_VERB], (STOPPED, FINISHED))
    last_s = float(log.events[over, EVENT_AT_S].max(initial=0.0))
    rest_w = float(nodes.idle_node_w.sum())
    used_j = float(log.events[-1, EVENT_ENERGY_J]) - rest_w * (float(log.events[-1, EVENT_AT_S]) - last_s)
    assert used_j <= budget.amount + 300.0 * (rest_w + 16 * 400.0)


@pytest.mark.slow
@settings(deadline=None, max_examples=2)  # days, with a decision every five minutes
@given(st.integers(0, 300))
def test_no_day_uses_more_than_its_kwh_and_one_interval(seed: int) -> None:
    jobs = some_jobs(4, seed, duration_s=np.full(4, 40_000.0))
    nodes = wl.nodes("a100", count=2, base_w=100.0, idle_w=10.0)
    daily_kwh = 1.3 * float(nodes.idle_node_w.sum()) * 24 / 1000 + 15.0
    policy = Market(budgets=(Budget.kwh_per_day(daily_kwh),))
    log = simulate(policy, jobs, nodes, Misjudged(library(), error=0.5, seed=seed))
    assert report(log).unfinished == 0
    readings = log.events[(log.events[:, EVENT_VERB] == METERED) & (log.events[:, EVENT_JOB] == -1)]
    at_s, energy_j = readings[:, EVENT_AT_S], readings[:, EVENT_ENERGY_J]
    days = np.arange(0.0, at_s[-1] + DAY_S, DAY_S)
    used_kwh = np.diff(np.interp(days, at_s, energy_j, left=0.0)) / 3.6e6
    interval_kwh = 300.0 * float(nodes.idle_node_w.sum() + 16 * 400.0) / 3.6e6
    assert (used_kwh <= daily_kwh + interval_kwh).all()


@pytest.mark.slow
@FEW
@given(st.integers(0, 300))
def test_teams_and_the_cluster_hold_their_budgets_at_once(seed: int) -> None:
    jobs, nodes = some_jobs(8, seed), wl.nodes("a100", count=2)
    most_w = float(nodes.idle_node_w.sum()) + 2500.0
    log = simulate(Market(budgets=(Budget.watts(most_w), Budget.watts(900.0, team="team-0"))), jobs, nodes)
    assert report(log).unfinished == 0
    for column, watts in ((-1, most_w), (jobs.team.names.index("team-0"), 900.0)):
        assert (read_intervals(log, column)[2] <= 1.02 * watts).all()


def test_a_series_of_watts_is_followed_hour_by_hour() -> None:
    nodes = wl.nodes("a100")
    rest_w = float(nodes.idle_node_w.sum())
    hourly = TimeSeries((0.0, 3600.0), (rest_w + 2400.0, rest_w + 900.0), every_s=7200.0)
    jobs = Jobs.of(submit_s=[0], gpus=[8], duration_s=[20_000], model=["elasticflow/vgg16"])
    log = simulate(Market(budgets=(Budget.series(hourly),)), jobs, nodes)
    for begin_s, _, drawn_w in zip(*read_intervals(log), strict=True):
        assert drawn_w <= hourly.at(begin_s)[0] * (1 + 1e-6)
    assert report(log).finished == 1


@pytest.mark.parametrize(
    "budget",
    [Budget.watts(10.0), Budget.joules(0.0), Budget.kwh_per_day(0.01), Budget.watts(20.0, team="team-0")],
)
def test_a_budget_under_which_nothing_can_ever_run_ends_the_run_with_that_reason(budget: Budget) -> None:
    jobs = some_jobs(3, 0, team=["team-0"] * 3)
    log = simulate(Market(budgets=(budget,)), jobs, wl.nodes("a100", count=2))
    assert report(log).never_started == 3
    assert Reason.NEVER_IN_BUDGET in list_reasons(log)


def test_joules_for_one_job_are_not_spent_on_three() -> None:
    columns = {"min_gpus": [8] * 3, "max_gpus": [8] * 3, "model": ["elasticflow/resnet50"] * 3}
    jobs = Jobs.of(submit_s=[0.0] * 3, gpus=[8] * 3, duration_s=[20_000.0, 20_100.0, 20_200.0], **columns)  # type: ignore[arg-type]
    for count in (1, 3):
        nodes = wl.nodes("a100", count=count)
        one_j = report(simulate(Market(), jobs.take(np.array([True, False, False])), nodes)).energy_j
        log = simulate(Market(budgets=(Budget.joules(1.5 * one_j),)), jobs, nodes)
        assert report(log).finished >= 1
        assert not (log.actions[:, 0] == STOP).any()
        assert report(log).energy_j <= 1.5 * one_j * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("overshoot", [1.0, 1.5])
def test_the_sum_of_caps_is_within_the_watts_at_each_moment(overshoot: float) -> None:
    jobs, nodes = some_jobs(15, 2), wl.nodes("a100", count=2, base_w=0.0)
    log = simulate(Market(budgets=(Budget.watts(4000.0),), overshoot=overshoot), jobs, nodes)
    assert max(sum_caps(log, None)) <= overshoot * 4000.0 + 1e-6
    assert report(log).unfinished == 0


def test_a_job_that_is_never_preempted_goes_on_at_its_lowest_cap() -> None:
    nodes = wl.nodes("a100")
    night = TimeSeries((0.0, 1000.0), (5000.0, 1.0))
    jobs = Jobs.of(
        submit_s=[0], gpus=[8], duration_s=[5000], min_gpus=[8], max_gpus=[8],
        preemptible=[PREEMPTIBLE_NEVER], model=["elasticflow/resnet50"],
    )  # fmt: skip
    log = simulate(Market(budgets=(Budget.series(night),), interval_s=60.0), jobs, nodes)
    assert not (log.actions[:, 0] == STOP).any()
    assert report(log).finished == 1


@pytest.mark.slow
def test_a_tight_budget_of_watts_costs_less_time_than_with_powerflow() -> None:
    ours, theirs = [], []
    for seed in range(2):
        jobs, nodes = some_jobs(20, seed, submit_s=np.arange(20) * 60.0), wl.nodes("a100", count=2)
        watts = float(nodes.idle_node_w.sum()) + 0.35 * 16 * 300.0
        for found, policy in ((ours, Market), (theirs, PowerFlow)):
            log = simulate(policy(budgets=(Budget.watts(watts),)), jobs, nodes)
            found.append(report(log).jct_mean_s)
    assert np.mean(ours) < np.mean(theirs)


@pytest.mark.slow
def test_the_budget_of_one_team_does_not_slow_down_another() -> None:
    rng = np.random.default_rng(5)
    count = 24
    jobs = Jobs.of(
        submit_s=np.sort(rng.uniform(0, 3600, count)),
        gpus=np.full(count, 2),
        duration_s=rng.uniform(1800, 7200, count),
        model=["elasticflow/bert"] * count,
        team=["frugal", "free"] * (count // 2),
    )
    nodes = wl.parse_cluster("8xa100:8")
    free = np.flatnonzero(jobs.team.codes == jobs.team.names.index("free"))
    spent_s = []
    for budgets in ((), (parse_budget("frugal:600W"),)):
        log = run(Sim(jobs, nodes, truth=library()), Market(budgets=budgets), library(), place=Pack())
        outcomes = build_run_tables(log).outcomes
        spent_s.append(outcomes.jct_s)
    assert spent_s[1][free].mean() <= 1.02 * spent_s[0][free].mean()
    frugal = np.setdiff1d(np.arange(count), free)
    assert spent_s[1][frugal].mean() > 1.5 * spent_s[0][frugal].mean(), "the budget binds"


def some_table(seed: int, rows: int, classes: int, caps: int) -> tuple[Wanted, PowerTable, Ints, Ints]:
    """Return rows of random classes at random caps, their table, and the size and cap of each."""
    rng = np.random.default_rng(seed)
    sizes, shape = np.full(classes, 2), (classes, 2, caps)
    speed = np.sort(rng.uniform(0.2, 1.0, shape), axis=2)
    watts = np.sort(rng.uniform(50.0, 400.0, shape), axis=2)
    caps_w = np.sort(rng.uniform(100.0, 400.0, shape), axis=2)
    none = np.zeros(classes)
    table = PowerTable(sizes, np.array([[1, 2]] * classes), speed, watts, caps_w, none, none)
    row, zero = np.arange(rows), np.zeros(rows, dtype=np.int64)
    size, cap = rng.integers(0, 2, rows), rng.integers(-1, caps, rows)
    ones, of = np.ones(rows), rng.integers(0, classes, rows)
    wanted = Wanted(row, zero, size, cap, of, ones, ones, ones, row % 2, zero, np.zeros(rows, dtype=np.bool_))
    return wanted, table, size, cap


@given(st.integers(0, 10_000), st.integers(0, 8), st.floats(0.0, 1e-2), st.floats(0.0, 2000.0))
def test_caps_rise_only_where_limits_and_prices_allow(
    seed: int, rows: int, per_j: float, spare_w: float
) -> None:
    wanted, table, size, cap = some_table(seed, rows, 3, 4)
    value = np.random.default_rng(seed + 1).uniform(0.0, 2.0, rows)
    of, runs = wanted.job_class, cap >= 0

    def sum_watts(caps: Ints, team: int) -> float:
        drawn_w = np.where(runs, table.watts[of, size, np.maximum(caps, 0)], 0.0)
        return float(drawn_w[(wanted.team == team) | (team < 0)].sum())

    limits = LimitArrays(np.zeros(2), np.array([WATTS, WATTS]), np.array([-1, 0]))
    used = np.array([sum_watts(cap, -1), sum_watts(cap, 0)])
    limits = limits._replace(amount=used + np.array([spare_w, 0.5 * spare_w]))
    raised = raise_caps(wanted, table, limits, size, cap, used, value, per_j)
    assert (raised >= cap).all()
    assert (raised[~runs] == -1).all()
    assert sum_watts(raised, -1) <= limits.amount[0] * (1 + 1e-6)
    assert sum_watts(raised, 0) <= limits.amount[1] * (1 + 1e-6)
    faster = table.speed[of, size, np.maximum(raised, 0)] - table.speed[of, size, np.maximum(cap, 0)]
    drawn_w = table.watts[of, size, np.maximum(raised, 0)] - table.watts[of, size, np.maximum(cap, 0)]
    assert (value * faster >= per_j * drawn_w * (1 - 1e-6)).all()


def test_the_last_watts_raise_the_cap_that_gains_most() -> None:
    wanted, table, size, _ = some_table(1, 2, 1, 2)
    table = table._replace(
        speed=np.array([[[0.5, 1.0]] * 2]), watts=np.array([[[100.0, 200.0]] * 2]), sizes=np.array([2])
    )
    size = np.zeros(2, dtype=np.int64)
    limits = LimitArrays(np.array([300.0]), np.array([WATTS]), np.array([-1]))
    caps, used = np.zeros(2, dtype=np.int64), np.array([200.0])
    for value, expected in (([1.0, 2.0], [0, 1]), ([2.0, 1.0], [1, 0])):
        raised = raise_caps(wanted, table, limits, size, caps, used, np.array(value), 0.0)
        assert raised.tolist() == expected


@pytest.mark.slow
def test_where_watts_are_scarce_the_mean_is_no_longer_than_under_powerflow() -> None:
    """What a price leaves over goes to the next jobs by worth; by their order without budgets: 0.90."""
    nodes, budgets = parse_cluster("4xa100:8"), (Budget.watts(3500.0),)
    ratios = []
    for seed in (1, 2):
        jobs = assign_models(wl.synth(count=40, seed=seed, load=0.9, gpus_total=32), library(), "a100", seed)
        jct_s = [
            report(
                run(
                    Sim(jobs, nodes, truth=library(), overheads=Overheads(restart_s=30.0)),
                    policy,
                    library(),
                    place=Power(Buddy()),
                )
            ).jct_mean_s
            for policy in (
                PowerFlow(budgets=budgets, interval_s=1800.0),
                Market(budgets=budgets, interval_s=1800.0, wait_limit=math.inf),
            )
        ]
        ratios.append(jct_s[0] / jct_s[1])
    assert np.mean(ratios) > 0.97


def test_on_paper_a_budget_leaves_as_many_gpus_as_it_has_watts_for() -> None:
    nodes = wl.nodes("a100", count=4)
    jobs = Jobs.of(submit_s=[0] * 40, gpus=[1] * 40, duration_s=[9000] * 40)
    snapshot = queue_up(jobs, nodes, 10.0)
    scene = build_scene(snapshot, library(), None, 30.0)
    full_w = float((nodes.base_w + nodes.gpus * nodes.busy_w).sum())
    counts = [_count_powered_gpus(snapshot, scene, part * full_w) for part in (2.0, 1.0, 0.5, 0.26, 0.0)]
    assert counts == [32, 32, 16, 10, 1]  # in sixteenths, rounded up


def test_no_job_is_overdue_because_a_budget_makes_all_wait() -> None:
    """Jobs of an hour wait for ten under a budget for four GPUs, as they would in order of submission."""
    nodes = wl.nodes("a100", count=4, base_w=0.0, idle_w=0.0, busy_w=400.0)
    jobs = Jobs.of(submit_s=[0] * 40, gpus=[1] * 40, duration_s=[3600] * 40)
    snapshot = queue_up(jobs, nodes, 4 * 3600.0)
    scene = build_scene(snapshot, library(), None, 30.0)
    free = find_overdue(snapshot, scene, 5.0, NO_LIMITS)
    limited = find_overdue(snapshot, scene, 5.0, compute_limits((Budget.watts(1600.0),), snapshot, 300.0))
    assert len(limited.rows) < len(free.rows)

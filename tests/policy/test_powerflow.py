"""Elastic GPUs and caps within budgets."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wattline as wl
from wattline.backend.sim import Overheads, Sim
from wattline.budget import DAY_S, Budget
from wattline.engine import run
from wattline.errors import ConfigError
from wattline.log import Log
from wattline.messages import FINISHED, METERED, RETUNE, START, STOP
from wattline.model.asked import Asked, Misjudged
from wattline.place.pack import Pack
from wattline.policy import PowerFlow
from wattline.policy.afs import Afs
from wattline.profile.library import library
from wattline.report import report
from wattline.tariff import Series
from wattline.testing import PolicyContract
from wattline.types import REASONS, Jobs, Models, Nodes, Reason

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
    policy: PowerFlow | Afs,
    jobs: Jobs,
    nodes: Nodes,
    models: Models | None = None,
    truth: Models | None = None,
) -> Log:
    known = library()
    sim = Sim(jobs, nodes, truth=truth or known, overheads=Overheads(restart_s=30.0))
    return run(sim, policy, models or known)


class TestPowerFlow(PolicyContract):
    policy = PowerFlow()


class TestPowerFlowWithinItsEta(PolicyContract):
    policy = PowerFlow(eta=0.3)


class TestPowerFlowWithTheLibrary(PolicyContract):
    policy = PowerFlow(eta=0.7, budgets=(Budget.eta(0.5, team="b"),))
    models = library()


# -- grants


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
    watts = float(nodes.rest_w.sum()) + 16 * 180.0
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
    return float(log.events[log.events[:, 0] == METERED, 5].max()) - budget_j


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
    interval_j = 120.0 * float(nodes.rest_w.sum() + 16 * 400.0)
    # What idles when nobody may run is beyond a policy; it counts until the run ends.
    used_j = jobs_and_rest_j(log, nodes, budget.amount)
    assert used_j <= budget.amount + interval_j


def jobs_and_rest_j(log: Log, nodes: Nodes, budget_j: float) -> float:
    """Joules when the last job stopped or ended."""
    ends = log.events[np.isin(log.events[:, 0], (2, FINISHED)), 2]
    last_s = ends.max(initial=0.0)
    total_j, until_s = log.events[-1, 5], log.events[-1, 2]
    return float(total_j - nodes.rest_w.sum() * (until_s - last_s))


@given(st.integers(0, 1000), st.floats(0.3, 1.0), st.sampled_from((0.0, 1.0)))
def test_watts_hold_one_interval_after_they_were_measured(seed: int, share: float, error: float) -> None:
    jobs, nodes = some_jobs(12, seed), cluster(2)
    rest_w = float(nodes.rest_w.sum())
    watts = rest_w + share * 16 * 300.0
    policy = PowerFlow(budgets=(Budget.watts(watts),), interval_s=60.0)
    log = simulate(policy, jobs, nodes, models=Misjudged(library(), error=error, seed=seed))
    over_s = seconds_above(log, nodes, watts)
    if error == 0.0:
        assert over_s == 0.0
    started = int((log.actions[:, 0] == START).sum() + (log.actions[:, 0] == RETUNE).sum())
    assert over_s <= 60.0 * started


def seconds_above(log: Log, nodes: Nodes, watts: float) -> float:
    """How long the cluster drew more than *watts*, by the difference of its readings."""
    readings = log.events[(log.events[:, 0] == METERED) & (log.events[:, 1] == -1)]
    at_s, used_j = readings[:, 2], readings[:, 5]
    lasts_s = np.diff(at_s)
    drawn = np.diff(used_j)[lasts_s > 0] / lasts_s[lasts_s > 0]
    return float(lasts_s[lasts_s > 0][drawn > watts * (1 + 1e-6)].sum())


@pytest.mark.slow
@given(st.integers(0, 300))
def test_no_day_uses_more_than_its_kwh_and_one_interval(seed: int) -> None:
    jobs, nodes = some_jobs(10, seed, duration_s=np.full(10, 40_000.0)), cluster(2, base_w=100.0, idle_w=10.0)
    daily_kwh = 1.3 * float(nodes.rest_w.sum()) * 24 / 1000 + 15.0
    policy = PowerFlow(budgets=(Budget.kwh_per_day(daily_kwh),), interval_s=300.0)
    log = simulate(policy, jobs, nodes, models=Misjudged(library(), error=0.5, seed=seed))
    assert report(log).unfinished == 0
    readings = log.events[(log.events[:, 0] == METERED) & (log.events[:, 1] == -1)]
    days = np.arange(0.0, readings[-1, 2] + DAY_S, DAY_S)
    used = np.diff(np.interp(days, readings[:, 2], readings[:, 5], left=0.0)) / 3.6e6
    interval_kwh = 300.0 * float(nodes.rest_w.sum() + 16 * 400.0) / 3.6e6
    assert (used <= daily_kwh + interval_kwh).all()


@given(st.integers(0, 300))
def test_teams_and_the_cluster_hold_their_budgets_at_once(seed: int) -> None:
    jobs, nodes = some_jobs(14, seed), cluster(2)
    rest_w = float(nodes.rest_w.sum())
    budgets = (
        Budget.watts(rest_w + 2500.0), Budget.watts(900.0, team="team-0"), Budget.eta(0.6, team="team-1"),
    )  # fmt: skip
    log = simulate(PowerFlow(budgets=budgets), jobs, nodes)
    assert report(log).unfinished == 0
    for column, most_w in ((-1, rest_w + 2500.0), (jobs.team.names.index("team-0"), 900.0)):
        seen = log.events[(log.events[:, 0] == METERED) & (log.events[:, 1] == column)]
        lasts_s = np.diff(seen[:, 2])
        drawn = np.diff(seen[:, 5])[lasts_s > 0] / lasts_s[lasts_s > 0]
        assert (drawn <= most_w * (1 + 1e-6)).all()


def test_a_tariff_is_followed_hour_by_hour() -> None:
    nodes = cluster(1)
    rest_w = float(nodes.rest_w.sum())
    tariff = Series((0.0, 3600.0), (rest_w + 2400.0, rest_w + 900.0), every_s=7200.0)
    jobs = Jobs.of(submit_s=[0], gpus=[8], duration_s=[20_000], model=["elasticflow/vgg16"])
    log = simulate(PowerFlow(budgets=(Budget.series(tariff),)), jobs, nodes)
    seen = log.events[(log.events[:, 0] == METERED) & (log.events[:, 1] == -1)]
    for (at_s, used_j), (then_s, then_j) in zip(seen[:-1, [2, 5]], seen[1:, [2, 5]], strict=True):
        if then_s > at_s:
            assert (then_j - used_j) / (then_s - at_s) <= tariff.at(at_s)[0] * (1 + 1e-6)
    assert report(log).finished == 1


def test_jobs_that_a_budget_holds_back_are_told_so() -> None:
    nodes = cluster(1)
    jobs = Jobs.of(submit_s=[0, 1], gpus=[8, 8], min_gpus=[8, 8], max_gpus=[8, 8], duration_s=[500, 500])
    watts = float(nodes.rest_w.sum()) + 8 * 60.0
    log = run(Sim(jobs, cluster(2)), PowerFlow(budgets=(Budget.watts(watts + float(nodes.rest_w.sum())),)))
    reasons = {REASONS[number] for number in log.held[:, 1].tolist()}
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
    assert {REASONS[number] for number in log.held[:, 1].tolist()} >= {Reason.NEVER_IN_BUDGET}


# -- quality


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
    log = run(Sim(jobs, cluster()), PowerFlow(eta=0.5), Asked(), place=Pack())
    assert report(log).finished == 20

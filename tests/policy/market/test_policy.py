"""Prices that clear, decisions that follow from them, and what they never do."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wattline as wl
from support.queued_jobs import queue_up
from wattline import policy as p
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import parse_cluster
from wattline.core.actions import ACTION_GPUS, ACTION_VERB, START
from wattline.core.estimates import Estimates
from wattline.core.jobs import PREEMPTIBLE_NEVER, Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.energy.budgets import Budget
from wattline.energy.prices import Price
from wattline.energy.time_series import TimeSeries
from wattline.errors import ConfigError
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.loop.state import restore_state
from wattline.models.library import library
from wattline.models.trace_model import TraceModels
from wattline.placement import Buddy, Pack, Power
from wattline.policy.budget_limits import NO_LIMITS
from wattline.policy.market import ageing
from wattline.policy.market.prices import count_iterations
from wattline.policy.market.scene import build_scene
from wattline.reports import report
from wattline.reports.summary import build_run_tables
from wattline.testing import PolicyContract
from wattline.testing.scenarios import Scenario, scenarios

NAMES = ("elasticflow/bert", "elasticflow/vgg16", "elasticflow/resnet50", "zeus/none")


def some_jobs(count: int, seed: int, between_s: float = 400.0, **more: object) -> Jobs:
    rng = np.random.default_rng(seed)
    columns: dict[str, object] = {
        "submit_s": np.cumsum(rng.exponential(between_s, count)),
        "gpus": rng.choice([1, 1, 2, 4, 8], count),
        "duration_s": rng.lognormal(7.5, 1.0, count),
        "model": [NAMES[i] for i in rng.integers(0, len(NAMES), count)],
        **more,
    }
    return Jobs.of(**columns)  # type: ignore[arg-type]


def simulate(policy: object, jobs: Jobs, nodes: Nodes, models: Models | None = None) -> Log:
    sim = Sim(jobs, nodes, truth=models or library(), overheads=Overheads(restart_s=30.0))
    return run(sim, policy, models or library(), place=Power(Buddy()))  # type: ignore[arg-type]


class TestMarket(PolicyContract):
    policy = p.Market()


class TestMarketWithAnEnergyPrice(PolicyContract):
    policy = p.Market(energy_price=1e-3)
    place = Power(Buddy())
    models = library()


class SlowMarketContract(PolicyContract):
    """Contract of a market that searches for the least cost; `TestMarket` has all examples."""

    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(scenario=scenarios())
    def test_a_run_obeys_every_law(self, scenario: Scenario) -> None:
        self.check_scenario(scenario)


@pytest.mark.slow
class TestMarketAtLeastCost(SlowMarketContract):
    policy = p.Market(aim="cost")


@pytest.mark.slow
class TestMarketWithExactNodes(SlowMarketContract):
    policy = p.Market(aim="cost", nodes="exact")
    place = Pack()


def test_a_job_alone_gets_all_that_makes_it_faster() -> None:
    jobs = Jobs.of(submit_s=[0], gpus=[8], duration_s=[9000], model=["elasticflow/resnet50"])
    plan = p.Market()(queue_up(jobs, wl.nodes("a100"), 0.0), library())
    assert plan.gpus.tolist() == [8]
    assert plan.cap_w is not None
    assert plan.cap_w.tolist() == [0]


def test_dear_energy_means_few_gpus_under_a_cap() -> None:
    jobs = Jobs.of(submit_s=[0], gpus=[8], duration_s=[9000], model=["elasticflow/resnet50"])
    plan = p.Market(energy_price=1.0)(
        queue_up(jobs, wl.nodes("a100", base_w=0.0, idle_w=0.0), 0.0), library()
    )
    assert plan.cap_w is not None
    assert plan.gpus[0] < 8
    assert 0 < plan.cap_w[0] < 400


def test_a_higher_price_never_uses_more_energy_for_a_job_alone() -> None:
    jobs = Jobs.of(submit_s=[0], gpus=[4], duration_s=[9000], model=["elasticflow/bert"])
    used = [
        report(simulate(p.Market(energy_price=price), jobs, wl.nodes("a100", count=2))).energy_j
        for price in (0.0, 1e-4, 1e-2)
    ]
    assert used == sorted(used, reverse=True)
    assert used[-1] < used[0]


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 1000), st.sampled_from((0.0, 1e-3)), st.sampled_from(("2xa100:8", "1xa100:8+2xv100:4")))
def test_plans_need_no_more_gpus_than_there_are(seed: int, price: float, cluster: str) -> None:
    nodes = parse_cluster(cluster)
    state = queue_up(some_jobs(30, seed), nodes, 20_000.0)
    plan = p.Market(energy_price=price)(state, library())
    log = run(Sim(some_jobs(9, seed), nodes, truth=library()), p.Market(energy_price=price), library())
    assert report(log).finished == 9
    if price > 0:
        kind = np.zeros(len(plan), dtype=np.int64) if plan.kind is None else plan.kind
        used = np.bincount(kind, plan.gpus, len(nodes.kind.names))
        assert (used <= np.bincount(nodes.kind.codes, nodes.gpus)).all()


def test_users_bounds_on_gpus_and_batches_hold() -> None:
    jobs = some_jobs(15, 4)
    jobs = replace(jobs, min_gpus=jobs.gpus, max_gpus=jobs.gpus)
    log = simulate(p.Market(energy_price=1e-3), jobs, wl.nodes("a100", count=2))
    starts = log.actions[log.actions[:, 0] == START]
    for job in range(15):
        rounds = log.action_round[log.actions[:, 0] == START][starts[:, 1] == job]
        for now in np.unique(rounds).tolist():
            assert starts[starts[:, 1] == job][rounds == now, 4].sum() == jobs.gpus[job]


def test_the_gap_of_a_decision_is_small_and_never_negative() -> None:
    state = queue_up(some_jobs(200, 5, 1.0), wl.nodes("a100", count=4), 300.0)
    for price in (0.0, 1e-4):
        assert 0 <= p.Market(energy_price=price)(state, library()).gap < 0.05


def test_prices_fall_with_time_and_rise_with_the_queue() -> None:
    nodes = wl.nodes("a100", count=2)
    few, many = (
        p.Market().explain(queue_up(some_jobs(count, 6, 1.0), nodes, 300.0), library()) for count in (20, 200)
    )
    assert many.gpu_h[0][0] > few.gpu_h[0][0]
    assert many.gpu_h[0][0] > many.gpu_h[0][-1]


def test_a_job_that_waits_reads_its_offer_the_price_and_when_it_may_start() -> None:
    found = p.Market().explain(queue_up(some_jobs(200, 7, 1.0), wl.nodes("a100"), 300.0), library())
    waits = [offer for offer in found.offers if not offer.runs]
    assert len(found.offers) == 200
    assert waits
    late = [offer for offer in waits if offer.starts_in_s > 0]
    assert len(late) > len(waits) / 2
    assert all("a GPU-hour costs" in str(offer) for offer in waits)
    assert not any(re.search(r"\de[+]\d", str(offer)) for offer in found.offers)  # no powers of ten


def test_a_changing_price_of_energy_is_waited_out() -> None:
    night = Price(TimeSeries((0.0, 7200.0), (1.0, 0.01), every_s=86_400.0))
    jobs = Jobs.of(
        submit_s=[0, 0], gpus=[8, 8], duration_s=[600, 600], deadline_s=[40_000, 40_000],
        min_gpus=[8, 8], max_gpus=[8, 8], model=["elasticflow/resnet50"] * 2, late_per_h=[1.0, 1.0],
    )  # fmt: skip
    flat = Price.flat(0.5)
    costs = []
    for price in (night, flat):
        sim = Sim(jobs, wl.nodes("a100"), truth=library())
        log = run(sim, p.Market(aim="cost", price=price), library(), place=Power(Pack()), price=night)
        costs.append(report(log).cost)
    assert costs[0] < 0.7 * costs[1]


@pytest.mark.slow
def test_without_models_it_is_as_good_as_fair_backfill() -> None:
    for seed in range(3):
        jobs = some_jobs(60, seed, 60.0, model=[""] * 60)
        ours, fair = (
            report(run(Sim(jobs, wl.nodes("a100", count=2)), policy, TraceModels()))
            for policy in (p.Market(), p.chain(p.FairShare(), p.fifo))
        )
        assert ours.finished == 60
        assert ours.jct_mean_s <= fair.jct_mean_s * 1.02


@pytest.mark.slow
def test_a_long_job_among_short_ones_is_not_starved() -> None:
    """A gang of the whole cluster waits for at most five times its wait under FIFO, and an hour."""
    count = 300
    rng = np.random.default_rng(3)
    gpus, duration_s = np.ones(count, dtype=np.int64), rng.exponential(3000.0, count)
    gpus[10], duration_s[10] = 8, 20_000.0
    submit_s = np.cumsum(rng.exponential(3000.0 / 8 / 0.9, count))
    jobs = Jobs.of(submit_s=submit_s, gpus=gpus, duration_s=duration_s, min_gpus=gpus, max_gpus=gpus)
    nodes = wl.nodes("a100")
    waits = []
    for policy in (p.fifo, p.Market()):
        log = run(Sim(jobs, nodes), policy, TraceModels(), place=Pack())
        starts = log.actions[:, 0] == START
        first = np.flatnonzero(starts & (log.actions[:, 1] == 10))[0]
        waits.append(float(log.now_s[log.action_round[first]]) - float(submit_s[10]))
    assert waits[1] <= 5 * waits[0] + 3600


@pytest.mark.slow
def test_a_job_that_was_stopped_does_not_wait_much_longer_than_in_order_of_submission() -> None:
    """Waits after stops count: long jobs were stopped for weeks when only the first wait did."""
    jobs = wl.synth(count=400, seed=2, load=0.95, gpus_total=32, deadlines=0)
    nodes, waits_s = parse_cluster("4xv100:8"), []
    for policy in (p.fifo, p.Market(), p.Market(wait_limit=math.inf)):
        outcomes = build_run_tables(simulate(policy, jobs, nodes)).outcomes
        waits_s.append(outcomes.jct_s - outcomes.service_s)
    fifo_s, ours_s, unlimited_s = waits_s
    assert (ours_s <= 5 * fifo_s + 3600).all()
    assert (unlimited_s > 5 * fifo_s + 3600).any(), "the limit is what holds it"


def test_the_longest_jobs_end_earlier_than_by_the_mean_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, mean_s, longest_s = wl.nodes("a100", count=2), [], []
    for tail in (ageing._TAIL, 0.0):
        monkeypatch.setattr(ageing, "_TAIL", tail)
        policy = p.Market(wait_limit=math.inf)
        found = [report(simulate(policy, some_jobs(120, seed, 150.0), nodes)) for seed in (1, 2, 3)]
        mean_s.append(sum(one.jct_mean_s for one in found))
        longest_s.append(sum(one.jct_p99_s for one in found))
    assert longest_s[0] < longest_s[1]
    assert mean_s[0] < 1.06 * mean_s[1]


def test_weights_are_one_on_the_average_so_that_an_energy_price_keeps_its_meaning() -> None:
    jobs = some_jobs(40, 3, 50.0)
    state = queue_up(jobs, wl.nodes("a100"), 2000.0)  # no job is late yet
    weight = ageing.compute_age_weights(state, build_scene(state, library(), None, 30.0))
    assert weight.mean() == pytest.approx(1.0)
    last = np.argsort(state.now_s - jobs.submit_s + jobs.duration_s)
    assert weight[last[-1]] > weight[last[0]]


def test_overdue_jobs_leave_half_of_the_gpus_to_the_others() -> None:
    """In an overloaded cluster nearly all jobs are overdue: then the order of submission would decide all."""
    state = queue_up(some_jobs(60, 3, 1.0), wl.nodes("a100", count=2), 1e6)
    scene = build_scene(state, library(), None, 30.0)
    rows = ageing.find_overdue(state, scene, 0.0, NO_LIMITS).rows
    assert 0 < scene.configs.gpus[scene.job_class[rows], 0].sum() <= 8
    assert len(rows) < 60


def test_few_jobs_share_a_node_that_is_paid_for_as_a_whole() -> None:
    """Two jobs on two nodes: when both have shrunk, one moves to the other's node, and a node goes off."""
    jobs = Jobs.of(
        submit_s=[0, 0], gpus=[1, 1], duration_s=[30_000, 30_000], min_gpus=[1, 1], max_gpus=[1, 1],
        model=["elasticflow/resnet50"] * 2, deadline_s=[200_000, 200_000], late_per_h=[1.0, 1.0],
    )  # fmt: skip
    nodes = wl.nodes("a100", count=2, gpus=2)
    state = queue_up(jobs, nodes, 0.0)
    spread = restore_state(
        jobs, nodes, state.seed, 0.0, state.queue, Leases.of([0, 1], [0, 1], [0, 1], [1, 1]),
        state.meter, state.usage, state.quotas,
    )  # fmt: skip
    plan = p.Market(aim="cost", nodes="exact")(spread, library())
    assert plan.node is not None
    assert len(set(plan.node.tolist())) == 1
    assert plan.prices is not None
    assert p.Market(aim="cost")(spread, library()).node is None


def test_at_light_load_a_job_of_estimated_duration_does_not_wait_for_cheaper_gpus() -> None:
    """It would wait for the GPU of another one; whether it would still end in time is not known."""
    jobs = Jobs.of(
        submit_s=[0, 0], gpus=[1, 1], duration_s=[3000, 3000], min_gpus=[1, 1], max_gpus=[1, 1],
        model=["elasticflow/resnet50"] * 2, deadline_s=[1e6, 1e6], late_per_h=[1e-3, 1e-3],
    )  # fmt: skip
    nodes = replace(parse_cluster("1xa100:1+1xv100:1"), base_w=np.array([50.0, 4000.0]))
    state = queue_up(jobs, nodes, 0.0)
    policy = p.Market(aim="cost", nodes="exact")
    assert policy(state, library()).row.tolist() == [0]
    guessed = replace(state, estimates=Estimates(jobs.duration_s, np.empty(0)))
    assert policy(guessed, library()).row.tolist() == [0, 1]


def test_nodes_are_left_to_the_placer_while_a_job_waits() -> None:
    state = queue_up(some_jobs(60, 5, 1.0), wl.nodes("a100", count=2), 100.0)
    assert p.Market(aim="cost", nodes="exact")(state, library()).node is None


def test_a_job_of_unknown_speed_starts_on_one_gpu_and_doubles() -> None:
    jobs = Jobs.of(
        submit_s=[0.0], gpus=[8], duration_s=[7200.0], min_gpus=[1], max_gpus=[8], model=["elasticflow/bert"]
    )
    log = simulate(p.Market(explore=2.0, interval_s=60.0), jobs, parse_cluster("1xa100:8"))
    starts = log.actions[log.actions[:, ACTION_VERB] == START]
    assert starts[:, ACTION_GPUS].tolist() == [1, 2, 4, 8]
    assert log.now_s[log.action_round[log.actions[:, ACTION_VERB] == START]].tolist() == [0, 60, 120, 180]


@pytest.mark.parametrize(
    ("knobs", "problem"),
    [
        ({"aim": "fast"}, "aim must be one of jct, cost"),
        ({"energy_price": -1.0}, "energy_price"),
        ({"energy_price": math.inf}, "energy_price"),
        ({"restart_s": -1.0}, "restart_s"),
        ({"interval_s": 0.0}, "interval_s"),
        ({"overshoot": 0.5}, "overshoot"),
        ({"explore": 0.5}, "explore must be 0, or above 1"),
        ({"wait_limit": -1.0}, "wait_limit"),
        ({"nodes": "best"}, "nodes must be one of placer, exact"),
        ({"nodes": "exact"}, "nodes=exact is for aim=cost"),
        ({"budgets": (Budget.eta(0.5),)}, "eta"),
        ({"aim": "cost", "energy_price": 1e-4}, "energy_price is for aim=jct"),
    ],
)
def test_knobs_that_make_no_sense_are_named(knobs: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        p.Market(**knobs)  # type: ignore[arg-type]


def test_work_bounds_the_number_of_price_steps_and_no_clock() -> None:
    assert count_iterations(10) == 40
    assert count_iterations(500) == 20
    assert count_iterations(20_000) == 10


@pytest.mark.parametrize("energy_price", [0.0, 1e-3])
def test_of_equal_jobs_the_first_to_be_submitted_runs_first(energy_price: float) -> None:
    jobs = Jobs.of(
        submit_s=[0] * 7,
        gpus=[2] * 7,
        min_gpus=[2] * 7,
        max_gpus=[2] * 7,
        duration_s=[3600] * 7,
        id=list("1234567"),
    )
    state = queue_up(jobs, wl.nodes("a100", gpus=4), 0.0)
    plan = p.Market(energy_price=energy_price)(state, library())
    runs = plan.row[:2] if energy_price == 0 else plan.row
    assert sorted(runs.tolist()) == [0, 1][: len(runs)]


def test_the_first_in_line_for_gpus_of_jobs_that_may_not_be_stopped_is_named() -> None:
    jobs = Jobs.of(
        submit_s=[0, 10, 20],
        gpus=[3, 2, 2],
        duration_s=[9000, 500, 100],
        min_gpus=[3, 2, 2],
        max_gpus=[3, 2, 2],
        preemptible=[PREEMPTIBLE_NEVER] * 3,
    )
    seen: list[list[Reason]] = []

    def decide(snapshot: Snapshot, models: Models) -> Plan:
        plan = p.Market()(snapshot, models)
        assert plan.reason is not None
        seen.append([REASONS[number] for number in plan.reason])
        return plan

    run(Sim(jobs, wl.nodes("a100", gpus=4)), decide)
    assert seen[1] == [Reason.NONE, Reason.NO_ROOM]
    assert seen[2] == [Reason.NONE, Reason.OUTRANKED, Reason.NO_ROOM]  # the last one is the shortest

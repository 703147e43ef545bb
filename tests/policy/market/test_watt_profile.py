"""Prices of watts that fall as jobs end."""

from __future__ import annotations

import numpy as np
import pytest

import wattline as wl
from support.placed_jobs import build_snapshot
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.core.jobs import Jobs
from wattline.core.snapshot import Snapshot
from wattline.energy.budgets import Budget, parse_budget
from wattline.loop.run import run
from wattline.models.library import library
from wattline.models.trace_model import TraceModels
from wattline.placement import Buddy, Power
from wattline.policy import Market
from wattline.policy.budget_limits import BudgetLimits, compute_limits
from wattline.policy.market import ageing, decision
from wattline.policy.market.scene import Scene, build_scene
from wattline.policy.market.time_values import TimeValues, value_completion
from wattline.policy.market.watt_profile import FLAT, WattProfile, build_profile
from wattline.reports import report


def build_case(waiting: list[int], *budgets: Budget) -> tuple[Snapshot, Scene, TimeValues, BudgetLimits]:
    snapshot = build_snapshot(wl.nodes("a100", count=2, gpus=8), [], waiting)
    scene = build_scene(snapshot, TraceModels(), None, 30.0)
    return snapshot, scene, value_completion(scene), compute_limits(budgets, snapshot, 300.0)


def test_a_price_of_watts_falls_from_1_with_every_job_that_ends() -> None:
    profile = build_profile(*build_case([1, 2, 4], parse_budget("5kW")))
    assert profile.at(np.zeros(1))[0] == 1.0
    between = 0.5 * (profile.ends_s[:-1] + profile.ends_s[1:])
    assert profile.at(between) == pytest.approx([2 / 3, 1 / 3])
    assert 0 < profile.at(np.array([2 * profile.end_s]))[0] < 0.01


def test_with_fewer_watts_jobs_end_later() -> None:
    ends = [build_profile(*build_case([1, 2, 4], parse_budget(text))).end_s for text in ("4kW", "5kW", "8kW")]
    assert ends[0] > ends[1] > ends[2] > 0


def test_a_budget_of_joules_has_the_same_price_at_all_times() -> None:
    assert build_profile(*build_case([1, 2], parse_budget("50kWh"))) is FLAT
    assert build_profile(*build_case([1, 2])) is FLAT
    assert FLAT.at(np.arange(3.0)).tolist() == [1.0, 1.0, 1.0]


def test_a_bound_of_the_sum_of_caps_changes_no_price_of_watts() -> None:
    snapshot, scene, times, limits = build_case([1, 2, 4], parse_budget("5kW"))
    bounded = compute_limits((parse_budget("5kW"),), snapshot, 300.0, overshoot=1.0)
    assert len(bounded.amount) > len(limits.amount)
    profiles = [build_profile(snapshot, scene, times, each) for each in (limits, bounded)]
    assert profiles[0].ends_s.tolist() == profiles[1].ends_s.tolist()


def test_jobs_that_no_time_is_worth_anything_to_have_a_flat_price() -> None:
    snapshot, scene, times, limits = build_case([1, 2], parse_budget("5kW"))
    nothing = times._replace(weight=np.zeros(2))
    assert build_profile(snapshot, scene, nothing, limits) is FLAT


def test_overdue_jobs_leave_half_of_the_watts_to_the_others() -> None:
    snapshot = build_snapshot(wl.nodes("a100", count=2, gpus=8), [], [1] * 16)
    snapshot.jobs.submit_s.setflags(write=True)
    snapshot.jobs.submit_s[:] = -1e6
    scene = build_scene(snapshot, TraceModels(), None, 30.0)
    counts = [
        len(ageing.find_overdue(snapshot, scene, 0.0, compute_limits(budgets, snapshot, 300.0)).rows)
        for budgets in ((), (parse_budget("3.2kW"),), (parse_budget("2.85kW"),))
    ]
    assert counts[0] == 8
    assert 8 > counts[1] > counts[2] >= 1


def test_short_jobs_come_first_where_watts_are_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    def simulate(seed: int) -> float:
        rng = np.random.default_rng(seed)
        jobs = Jobs.of(
            submit_s=np.cumsum(rng.exponential(200.0, 40)),
            gpus=rng.choice([1, 2, 4], 40),
            duration_s=rng.lognormal(8.0, 1.5, 40),
            model=["elasticflow/bert"] * 40,
        )
        sim = Sim(
            jobs, wl.nodes("a100", count=4, gpus=8), truth=library(), overheads=Overheads(restart_s=30.0)
        )
        policy = Market(budgets=(parse_budget("5kW"),))
        return report(run(sim, policy, library(), place=Power(Buddy()))).jct_mean_s

    falling = [simulate(seed) for seed in range(3)]

    def build_flat(snapshot: Snapshot, scene: Scene, times: TimeValues, limits: BudgetLimits) -> WattProfile:
        return FLAT

    monkeypatch.setattr(decision, "build_profile", build_flat)
    flat = [simulate(seed) for seed in range(3)]
    assert sum(falling) < 0.95 * sum(flat)

"""Caps of running jobs for the host that they have."""

from __future__ import annotations

import numpy as np
import pytest

import wattline as wl
from wattline.backend.sim.simulator import Sim
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.loop.run import run
from wattline.models.library import library
from wattline.placement.parser import parse_placer
from wattline.policy import Market
from wattline.policy.market import decision
from wattline.reports import Report, report
from wattline.trace import read_trace

SCARCE = "1xv100:8,cpus=12,mem=500G"


def simulate(price: float, seen: list[tuple[Snapshot, Plan]] | None = None) -> Report:
    def decide(snapshot: Snapshot, models: Models) -> Plan:
        plan = Market(energy_price=price)(snapshot, models)
        if seen is not None:
            seen.append((snapshot, plan))
        return plan

    jobs = read_trace("combined:count=40,seed=3,gpus_total=8,tail=0")
    sim = Sim(jobs, wl.parse_cluster(SCARCE), truth=library())
    return report(run(sim, decide, library(), place=parse_placer("buddy+host+power", "easy")))


def test_caps_for_the_real_host_save_energy_at_next_to_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = simulate(1e-3)
    monkeypatch.setattr(decision, "lower_caps", lambda snapshot, models, scene, now, kind, size, cap: cap)
    by_columns = simulate(1e-3)
    assert ours.energy_j < 0.99 * by_columns.energy_j
    assert ours.jct_mean_s < 1.03 * by_columns.jct_mean_s


def test_no_job_is_capped_where_energy_is_free() -> None:
    seen: list[tuple[Snapshot, Plan]] = []
    simulate(0.0, seen)
    assert all(plan.cap_w is None or not plan.cap_w.any() for _, plan in seen)


def test_a_cap_is_only_lowered_for_a_job_that_keeps_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = 0

    def check(*arguments: object) -> np.ndarray:
        nonlocal changed
        snapshot, _, scene, _, kind, size, cap = arguments
        lowered = lower_caps(*arguments)  # type: ignore[arg-type]
        moved = lowered != cap
        assert (lowered <= cap).all()  # type: ignore[operator]
        assert snapshot.queue.running[moved].all()  # type: ignore[attr-defined]
        assert (scene.count_gpus(kind, size) == scene.held)[moved].all()  # type: ignore[attr-defined]
        changed += int(moved.sum())
        return lowered

    lower_caps = decision.lower_caps
    monkeypatch.setattr(decision, "lower_caps", check)
    simulate(1e-3)
    assert changed

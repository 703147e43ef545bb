"""Shares of nodes lead to a good decision and to a tight bound where nodes are not scarce."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.optimize_instances import build_instance, instances
from wattline.optimize import decide as decide_module
from wattline.optimize.decide import Effort, decide
from wattline.optimize.exact import compute_cost, postpone_all, solve
from wattline.optimize.instance import POSTPONED, Instance, check_assignment
from wattline.optimize.node_shares import assign_by_shares
from wattline.optimize.objective import rolling, to_the_end
from wattline.optimize.priced import assign_by_prices

OBJECTIVES = (to_the_end, rolling)


def draw_instance(seed: int, jobs: int, nodes: tuple[int, int]) -> Instance:
    rng = np.random.default_rng(seed)
    one = rng.uniform(2_000, 30_000, jobs)
    left_s = np.stack((one, one / rng.uniform(1.1, 1.9, jobs), one * rng.uniform(1.2, 2.8, jobs)), axis=1)
    due_s = rng.uniform(-10_000, 60_000, jobs)
    return build_instance(left_s.tolist(), due_s.tolist(), [3e-4] * jobs, nodes=nodes)


@settings(deadline=None)
@given(instance=instances(), objective=st.sampled_from(OBJECTIVES))
def test_the_best_is_between_bound_and_cost(instance: Instance, objective) -> None:  # type: ignore[no-untyped-def]
    charges = objective(instance)
    best = solve(instance, charges, gap=1e-9)
    assert best is not None
    slack = 1e-6 * max(1.0, abs(best.cost))
    for known in (assign_by_prices(instance, charges), postpone_all(instance, charges), best):
        found = assign_by_shares(instance, charges, known)
        check_assignment(instance, found)
        assert found.bound - slack <= best.cost <= found.cost + slack
        assert found.cost == pytest.approx(compute_cost(instance, charges, found), rel=1e-9, abs=1e-12)


def test_the_bound_is_nearly_the_least_cost_where_every_job_could_have_a_node() -> None:
    for seed in range(5):
        instance = draw_instance(seed, 12, (12, 12))
        charges = rolling(instance)
        found = assign_by_shares(instance, charges, assign_by_prices(instance, charges))
        best = solve(instance, charges, gap=1e-9)
        assert best is not None
        assert found.bound == pytest.approx(best.cost, rel=2e-3)
        assert found.cost == pytest.approx(best.cost, rel=2e-3)


def test_nodes_with_too_many_gpus_leave_the_known_assignment_as_it_is() -> None:
    instance = draw_instance(0, 4, (4, 4))
    wide = Instance(
        instance.now_s,
        instance.node_counts,
        instance.gpus * 16,
        np.repeat(instance.cost_per_s, 32, axis=1),
        instance.config_node_type,
        instance.config_gpus,
        instance.left_s,
        instance.due_s,
        instance.late_per_s,
    )
    charges = rolling(wide)
    known = assign_by_prices(wide, charges)
    assert assign_by_shares(wide, charges, known) is known


def test_the_solver_is_not_called_where_shares_prove_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def count_call(*args: object, **knobs: object) -> None:
        calls.append(args)

    monkeypatch.setattr(decide_module, "solve", count_call)
    for seed in range(5):
        instance = draw_instance(seed, 12, (12, 12))
        none = np.full(instance.jobs, POSTPONED)
        found = decide(instance, rolling(instance), "exact", none, none, Effort(tries=10))
        assert found.gap <= 1e-3 or calls
    assert len(calls) <= 1

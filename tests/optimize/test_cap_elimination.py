"""Power caps inside the best decision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.optimize_instances import instances, minimal_cost_by_node
from wattline.optimize import METHODS
from wattline.optimize.cap_elimination import eliminate_caps
from wattline.optimize.decide import Effort, decide
from wattline.optimize.exact import compute_cost
from wattline.optimize.instance import POSTPONED, Instance, check_assignment, compute_cost_until_end
from wattline.optimize.objective import rolling, to_the_end

OBJECTIVES = (to_the_end, rolling)


@st.composite
def capped(draw: st.DrawFn) -> Instance:
    """Return a small instance in which each configuration has three caps: slower, and with less draw."""
    instance = draw(instances(max_jobs=6))
    jobs, configs = instance.left_s.shape
    slow = np.array([1.0, 1.2, draw(st.floats(1.3, 2.0))])
    watts = np.array([200.0, draw(st.floats(120.0, 190.0)), 90.0])
    left_s = np.repeat(instance.left_s, 3, axis=1) * np.tile(slow, configs)
    own = np.tile(watts, configs) * np.repeat(instance.config_gpus, 3) * 0.2 / 3.6e6
    return replace(
        instance,
        config_node_type=np.repeat(instance.config_node_type, 3),
        config_gpus=np.repeat(instance.config_gpus, 3),
        left_s=left_s,
        own_cost_per_s=np.tile(own, (jobs, 1)),
    )


def nothing(instance: Instance) -> tuple[np.ndarray, np.ndarray]:
    none = np.full(instance.jobs, POSTPONED, dtype=np.int64)
    return none, none.copy()


@settings(deadline=None)
@given(instance=capped(), objective=st.sampled_from(OBJECTIVES))
def test_caps_eliminated_beforehand_cost_no_more_than_caps_in_the_programme(
    instance: Instance, objective
) -> None:  # type: ignore[no-untyped-def]
    charges = objective(instance)
    found, *_ = decide(instance, charges, "exact", *nothing(instance), Effort(20, 0, 1e-9))
    check_assignment(instance, found)
    cost = compute_cost(instance, charges, found)
    assert cost == pytest.approx(found.cost, rel=1e-9, abs=1e-9)
    # The oracle has a variable for every job, configuration with its cap, and node.
    assert cost == pytest.approx(minimal_cost_by_node(instance, charges), rel=1e-6, abs=1e-9)


@settings(deadline=None)
@given(instance=capped(), method=st.sampled_from(METHODS), objective=st.sampled_from(OBJECTIVES))
def test_no_method_is_better_than_the_best(instance: Instance, method: str, objective) -> None:  # type: ignore[no-untyped-def]
    charges = objective(instance)
    found, *_ = decide(instance, charges, method, *nothing(instance), Effort(20, 0, 1e-9))
    best, *_ = decide(instance, charges, "exact", *nothing(instance), Effort(20, 0, 1e-9))
    check_assignment(instance, found)
    assert found.cost >= best.cost - 1e-6 * max(1.0, abs(best.cost))


@given(instance=capped())
def test_without_a_choice_of_caps_elimination_changes_nothing(instance: Instance) -> None:
    plain = replace(
        instance,
        config_node_type=instance.config_node_type[::3],
        config_gpus=instance.config_gpus[::3],
        left_s=instance.left_s[:, ::3],
        own_cost_per_s=instance.own_cost_per_s[:, ::3],
    )
    charges = rolling(plain)
    capless = eliminate_caps(plain, charges)
    assert capless.merged.tolist() == list(range(3))
    assert np.array_equal(capless.charges.run_cost, charges.run_cost)


@given(instance=capped())
def test_the_own_cost_of_jobs_is_part_of_the_cost(instance: Instance) -> None:
    found, *_ = decide(instance, to_the_end(instance), "greedy", *nothing(instance), Effort())
    until_s, energy, _ = compute_cost_until_end(instance, found)
    _, without, _ = compute_cost_until_end(replace(instance, own_cost_per_s=np.empty(0)), found)
    runs = np.flatnonzero(found.config != POSTPONED)
    own = instance.own_cost_per_s[runs, found.config[runs]].sum() * until_s
    assert energy == pytest.approx(without + own)


def test_jobs_with_time_wait_for_cheaper_energy_and_urgent_jobs_run() -> None:
    from support.optimize_instances import build_instance

    instance = build_instance([[3600, 2400, np.inf]] * 2, due_s=[80_000, 3700], nodes=(1, 0))
    now, *_ = decide(instance, rolling(instance), "exact", *nothing(instance), Effort())
    assert (now.config != POSTPONED).all()
    later = replace(instance, later_price=np.array([0.3, 0.3]))
    found, *_ = decide(later, rolling(later), "exact", *nothing(instance), Effort())
    assert (found.config == POSTPONED).tolist() == [True, False]

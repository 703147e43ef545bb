"""Power caps inside the best decision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.optimize_instances import instances, minimal_cost_by_node
from wattline.optimize import METHODS
from wattline.optimize.cap_elimination import fold
from wattline.optimize.decide import Effort, decide
from wattline.optimize.exact import charged
from wattline.optimize.instance import POSTPONED, Event, check, cost_of
from wattline.optimize.objective import rolling, to_the_end

OBJECTIVES = (to_the_end, rolling)


@st.composite
def capped(draw: st.DrawFn) -> Event:
    """A small moment in which each configuration comes with three caps: slower, and with less draw."""
    moment = draw(instances(most_jobs=6))
    jobs, configs = moment.left_s.shape
    slow = np.array([1.0, 1.2, draw(st.floats(1.3, 2.0))])
    watts = np.array([200.0, draw(st.floats(120.0, 190.0)), 90.0])
    left_s = np.repeat(moment.left_s, 3, axis=1) * np.tile(slow, configs)
    own = np.tile(watts, configs) * np.repeat(moment.config_gpus, 3) * 0.2 / 3.6e6
    return replace(
        moment,
        config_sort=np.repeat(moment.config_sort, 3),
        config_gpus=np.repeat(moment.config_gpus, 3),
        left_s=left_s,
        own_s=np.tile(own, (jobs, 1)),
    )


def nothing(moment: Event) -> tuple[np.ndarray, np.ndarray]:
    none = np.full(moment.jobs, POSTPONED, dtype=np.int64)
    return none, none.copy()


@settings(deadline=None)
@given(moment=capped(), objective=st.sampled_from(OBJECTIVES))
def test_caps_decided_beforehand_are_as_good_as_caps_in_the_program(moment: Event, objective) -> None:  # type: ignore[no-untyped-def]
    charges = objective(moment)
    found, *_ = decide(moment, charges, "exact", *nothing(moment), Effort(20, 0, 1e-9, 20.0))
    check(moment, found)
    worth = charged(moment, charges, found)
    assert worth == pytest.approx(found.worth, rel=1e-9, abs=1e-9)
    # The oracle has a variable for every job, configuration with its cap, and node.
    assert worth == pytest.approx(minimal_cost_by_node(moment, charges), rel=1e-6, abs=1e-9)


@settings(deadline=None)
@given(moment=capped(), method=st.sampled_from(METHODS), objective=st.sampled_from(OBJECTIVES))
def test_no_method_is_better_than_the_best(moment: Event, method: str, objective) -> None:  # type: ignore[no-untyped-def]
    charges = objective(moment)
    found, *_ = decide(moment, charges, method, *nothing(moment), Effort(20, 0, 1e-9, 20.0))
    best, *_ = decide(moment, charges, "exact", *nothing(moment), Effort(20, 0, 1e-9, 20.0))
    check(moment, found)
    assert found.worth >= best.worth - 1e-6 * max(1.0, abs(best.worth))


@given(moment=capped())
def test_without_a_choice_of_caps_folding_changes_nothing(moment: Event) -> None:
    plain = replace(
        moment,
        config_sort=moment.config_sort[::3],
        config_gpus=moment.config_gpus[::3],
        left_s=moment.left_s[:, ::3],
        own_s=moment.own_s[:, ::3],
    )
    charges = rolling(plain)
    slim = fold(plain, charges)
    assert slim.of.tolist() == list(range(3))
    assert np.array_equal(slim.charges.runs, charges.runs)


@given(moment=capped())
def test_what_jobs_draw_themselves_is_part_of_the_bill(moment: Event) -> None:
    found, *_ = decide(moment, to_the_end(moment), "greedy", *nothing(moment), Effort())
    until_s, energy, _ = cost_of(moment, found)
    _, without, _ = cost_of(replace(moment, own_s=np.empty(0)), found)
    runs = np.flatnonzero(found.config != POSTPONED)
    own = moment.own_s[runs, found.config[runs]].sum() * until_s
    assert energy == pytest.approx(without + own)


def test_where_energy_gets_cheaper_who_has_time_waits_and_who_has_not_runs() -> None:
    from support.optimize_instances import build_instance

    moment = build_instance([[3600, 2400, np.inf]] * 2, due_s=[80_000, 3700], nodes=(1, 0))
    now, *_ = decide(moment, rolling(moment), "exact", *nothing(moment), Effort())
    assert (now.config != POSTPONED).all()
    later = replace(moment, later=np.array([0.3, 0.3]))
    found, *_ = decide(later, rolling(later), "exact", *nothing(moment), Effort())
    assert (found.config == POSTPONED).tolist() == [True, False]

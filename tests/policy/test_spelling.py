"""Policies and placers print as they are typed, and what they print can be typed."""

from dataclasses import MISSING, dataclass, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline import papers
from wattline import policy as p
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.energy.budgets import Budget
from wattline.energy.prices import Price
from wattline.errors import ConfigError
from wattline.optimize import METHODS, OBJECTIVES
from wattline.placement import Buddy, Optimum, Pack, Power, Tune
from wattline.placement.parser import parse_placer
from wattline.policy.parser import BUDGETS, list_stages, parse_policy

STAGES = [*list_stages().values(), *papers.POLICIES.values()]
PLACERS = [Pack, Buddy, Tune, Optimum, *papers.PLACERS.values()]
WORDS = {
    "backfill": ("none", "easy", "greedy"),
    "lengths": ("unknown", "known"),
    "method": METHODS,
    "objective": OBJECTIVES,
    "order": ("fifo", "edf", "priority"),
}
SECONDS = st.one_of(st.floats(0, 1), st.floats(1, 1e7), st.integers(1, 10**6).map(float))
NUMBERS = st.one_of(st.floats(0, 1), st.floats(-100, 1e20), st.just(float("inf")))


def is_valid(cls: Any, name: str, value: object) -> bool:
    try:
        cls(**{name: value})
    except ConfigError:
        return False
    return True


def values(cls: Any, field: Any) -> st.SearchStrategy[Any]:
    if field.name in WORDS:
        return st.sampled_from(WORDS[field.name])
    drawn: st.SearchStrategy[Any] = SECONDS if field.name.endswith("_s") else NUMBERS
    if isinstance(field.default, tuple):
        drawn = st.lists(st.floats(1e-6, 1e9), min_size=1, unique=True).map(
            lambda found: tuple(sorted(found))
        )
    elif isinstance(field.default, int):
        drawn = st.integers(0, 64)
    return drawn.filter(lambda value: is_valid(cls, field.name, value))


def instances(thing: Any) -> st.SearchStrategy[Any]:
    """Return all that can be typed of one class; a function is itself."""
    if not isinstance(thing, type):
        return st.just(thing)
    knobs = [f for f in fields(thing) if f.name not in (*BUDGETS, "place") and f.default is not MISSING]
    return st.fixed_dictionaries({}, optional={f.name: values(thing, f) for f in knobs}).map(
        lambda found: thing(**found)
    )


stages = st.sampled_from(STAGES).flatmap(instances)
placers = st.sampled_from(PLACERS).flatmap(instances)


@given(st.lists(stages, min_size=1, max_size=3))
def test_a_policy_that_is_typed_as_it_prints_is_the_same(drawn: list[Any]) -> None:
    policy = drawn[0] if len(drawn) == 1 else p.chain(*drawn)
    assert parse_policy(p.spell(policy), papers.POLICIES) == policy


@given(placers, st.booleans(), st.integers(0, 64))
def test_a_placer_that_is_typed_as_it_prints_is_the_same(drawn: Any, switches: bool, spare: int) -> None:
    place = Power(drawn, spare) if switches else drawn
    assert parse_placer(p.spell(place), extra=papers.PLACERS) == place


@pytest.mark.parametrize("thing", [*STAGES, *PLACERS])
def test_a_policy_or_placer_without_knobs_prints_its_name_only(thing: Any) -> None:
    known = {**list_stages(), **papers.POLICIES, **papers.PLACERS}
    typed = p.spell(thing() if isinstance(thing, type) else thing).partition(":")[0]
    assert known.get(typed, thing) is thing


@dataclass(frozen=True)
class Mine:
    """A placer and a policy that cannot be typed."""

    weight_s: float = 2.0

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        raise NotImplementedError


def my_order(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("decider", "text"),
    [
        (p.fifo, "fifo"),
        (p.Las(), "las"),
        (p.chain(p.Las(60.0), p.keep), "las:quantum=60s+keep"),
        (p.Tiresias((0.5, 600.0)), "tiresias:thresholds=0.5s/600s"),
        (p.Cap(slowdown=1.5, known=1), "cap:slowdown=1.5,known=1"),
        (p.Demand(keep=1.0), "demand:keep=1"),
        (p.Andreas("greedy", price=Price.flat(3.0)), "andreas:method=greedy"),
        (papers.drf_published, "drf-published"),
        (p.PowerFlow(0.5, (Budget.watts(5000),)), "powerflow:eta=0.5,budgets=5kW"),
        (Pack(), "pack"),
        (Power(Buddy("none"), spare=8), "buddy:backfill=none+power:spare=8"),
        (papers.TunePublished("easy", round_s=60.0), "tune-published:round=60s"),
        (papers.Greedy(), "greedy:backfill=greedy"),
        (Power(Mine()), "Mine(weight_s=2.0)+power"),
        (Mine(3.0), "Mine(weight_s=3.0)"),
        (my_order, "my_order"),
    ],
)
def test_deciders_print_as_they_are_typed(decider: object, text: str) -> None:
    assert p.spell(decider) == text

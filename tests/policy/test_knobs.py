"""The energy knob that policies declare."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest

from wattline.core.energy_knob import EnergyKnob
from wattline.errors import ConfigError
from wattline.policy import Cap, PowerFlow
from wattline.policy.chain import Chain
from wattline.policy.knobs import (
    find_energy_knob,
    get_knob,
    list_policies_with_energy_knob,
    turn_energy_knob,
)
from wattline.policy.parser import parse_policy


@dataclass(frozen=True)
class Priced:
    """A stage with a price of energy, which is nothing but its knob here."""

    ENERGY_KNOB: ClassVar[EnergyKnob] = EnergyKnob("energy_price", 0.0, math.inf, "log", start=1e-3)
    energy_price: float = 0.0


def test_a_policy_without_an_energy_knob_has_none() -> None:
    assert find_energy_knob(parse_policy("afs")) is None
    with pytest.raises(ConfigError, match="batch, cap, market, powerflow"):
        turn_energy_knob(parse_policy("afs"), 0.5)
    assert "powerflow" in list_policies_with_energy_knob()


def test_a_whole_policy_comes_before_a_stage_that_refines_it() -> None:
    for text in ("cap+powerflow", "powerflow+cap"):
        turned = turn_energy_knob(parse_policy(text), 0.25)
        stages = turned.stages  # type: ignore[attr-defined]
        assert [stage.eta for stage in stages if isinstance(stage, PowerFlow)] == [0.25]
        assert [stage.eta for stage in stages if isinstance(stage, Cap)] == [Cap().eta]


def test_a_stage_is_turned_where_it_has_the_only_knob() -> None:
    assert get_knob(turn_energy_knob(parse_policy("fifo+cap"), 0.9), "eta") == 0.9


def test_a_knob_of_another_name_is_turned() -> None:
    turned = turn_energy_knob(Chain((Priced(), Cap())), 2e-3)  # type: ignore[arg-type]
    assert turned.stages[0].energy_price == 2e-3  # type: ignore[attr-defined]

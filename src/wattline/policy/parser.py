"""Parser of policies: `las:quantum=600s+keep`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from wattline import policy as home
from wattline.core.protocols import Policy
from wattline.errors import ConfigError, did_you_mean
from wattline.knob_parser import build_from_knobs
from wattline.policy.chain import Chain, Stage, chain

BUDGETS = ("budgets", "price")
"""Fields that have options of their own on the command line: `--budget` and `--price`."""


def parse_policy(text: str, extra: Mapping[str, Stage] | None = None) -> Policy:
    """Return the policy that *text* names: stages joined by `+`, knobs after `:` as `name=value,name=value`.

    Names are those of `wattline.policy` and of *extra*, in any case. A knob may leave its unit out
    (`quantum=5m` sets `quantum_s`); several numbers are joined by `/`. `wattline.policy.chain.spell` is the
    inverse.
    """
    stages = [_parse_stage(part.strip(), text, extra or {}) for part in text.split("+")]
    return stages[0] if len(stages) == 1 else chain(*stages)


def list_stages() -> Mapping[str, Any]:
    """Return all stages by name: plain functions as they are, classes to be built with knobs."""
    found = {}
    for name in home.__all__:
        thing = getattr(home, name)
        if inspect.isclass(thing):
            if is_dataclass(thing) and thing is not Chain:
                found[name.casefold()] = thing
        elif list(inspect.signature(thing).parameters) == ["snapshot", "models", "plan"]:
            found[name.casefold().replace("_", "-")] = thing
    return found


def _parse_stage(part: str, text: str, extra: Mapping[str, Stage]) -> Stage:
    name, _, knobs = part.partition(":")
    names = list_stages()
    spelled = name.casefold().replace("_", "-")
    thing = names.get(spelled) or extra.get(spelled)
    if thing is None:
        raise ConfigError(
            f"policy {text!r}: unknown stage {name!r}, expected one of {', '.join(sorted(names))}",
            hint=did_you_mean(name.casefold(), names),
        )
    if not inspect.isclass(thing):
        if knobs:
            raise ConfigError(f"policy {text!r}: {name} has no knobs, got {knobs!r}")
        stage: Stage = thing
        return stage
    made: Stage = build_from_knobs(thing, name, knobs, f"policy {text!r}", BUDGETS)
    return made

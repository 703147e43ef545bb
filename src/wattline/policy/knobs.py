"""The knobs of a policy, whichever stage has them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

from wattline.core.protocols import Policy
from wattline.errors import ConfigError
from wattline.policy import DUE, ELASTIC
from wattline.policy.chain import Chain
from wattline.policy.parser import stage_names


def has_knob(policy: object, name: str) -> bool:
    """Whether a policy, or a stage of it, has a knob of that name."""
    stages = policy.stages if isinstance(policy, Chain) else (policy,)
    return any(_has(stage, name) for stage in stages)


def turned(policy: Policy, name: str, value: object) -> Policy:
    """*policy* with this knob set to *value*, in the first stage that has it; rather in one with budgets."""
    stages: list[Any] = list(policy.stages) if isinstance(policy, Chain) else [policy]
    has = [place for place, stage in enumerate(stages) if _has(stage, name)]
    if has:
        place = next((place for place in has if _has(stages[place], "budgets")), has[0])
        stages[place] = replace(stages[place], **{name: value})
        if name == "budgets":
            _check_last_word(stages[place], stages[place + 1 :])
    return Chain(tuple(stages)) if isinstance(policy, Chain) else cast(Policy, stages[0])


def _check_last_word(holder: object, later: Sequence[object]) -> None:
    """Raise if a stage behind the one that holds the budgets gives GPUs out anew, and so undoes them."""
    for stage in later:
        if (after := type(stage).__name__.casefold()) in (*ELASTIC, *DUE):
            first = type(holder).__name__.casefold()
            raise ConfigError(
                f"{first}+{after} cannot hold a budget: {after} gives out anew what {first} has shared out",
                hint=f"put {after} before {first}, or leave it out",
            )


def who_has(name: str) -> str:
    """The built-in policies with a knob of that name, as in `a, b`; for messages."""
    return ", ".join(
        sorted(text for text, thing in stage_names().items() if inspect.isclass(thing) and _has(thing, name))
    )


def refuse_budget(text: str) -> ConfigError:
    """What to raise where *text* names a policy that cannot hold a budget."""
    return ConfigError(f"{text} cannot hold a budget; {who_has('budgets')} can")


def _has(thing: object, name: str) -> bool:
    return is_dataclass(thing) and any(field.name == name for field in fields(thing))

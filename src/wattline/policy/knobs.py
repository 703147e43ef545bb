"""Reading and setting the knobs of a policy, in any of its stages."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

from wattline.core.energy_knob import EnergyKnob
from wattline.core.protocols import Policy
from wattline.errors import ConfigError
from wattline.policy import DEADLINE, ELASTIC, PROGRAMS
from wattline.policy.chain import Chain, spell
from wattline.policy.parser import list_stages
from wattline.policy.stages.quota import Quota


def has_knob(policy: object, name: str) -> bool:
    """Return whether a policy, or a stage of it, has a knob of that name."""
    stages = policy.stages if isinstance(policy, Chain) else (policy,)
    return any(_has_field(stage, name) for stage in stages)


def get_knob(policy: object, name: str) -> Any:
    """Return the value of a knob in the first stage that has it, one with budgets before others."""
    stages = policy.stages if isinstance(policy, Chain) else (policy,)
    has = [stage for stage in stages if _has_field(stage, name)]
    return getattr(next((stage for stage in has if _has_field(stage, "budgets")), has[0]), name)


def set_knob(policy: Policy, name: str, value: object) -> Policy:
    """Return *policy* with this knob set to *value*, in the first stage that has it.

    A stage with budgets comes before others.
    """
    stages: list[Any] = list(policy.stages) if isinstance(policy, Chain) else [policy]
    has = [place for place, stage in enumerate(stages) if _has_field(stage, name)]
    if has:
        place = next((place for place in has if _has_field(stages[place], "budgets")), has[0])
        stages[place] = replace(stages[place], **{name: value})
        if name == "budgets":
            _check_budgets_hold(stages[place], stages[place + 1 :])
    return Chain(tuple(stages)) if isinstance(policy, Chain) else cast(Policy, stages[0])


def find_energy_knob(policy: object) -> EnergyKnob | None:
    """Return the energy knob of a policy, the first of its stages that is not secondary; None: no knob."""
    stages = policy.stages if isinstance(policy, Chain) else (policy,)
    found = [stage.ENERGY_KNOB for stage in stages if hasattr(stage, "ENERGY_KNOB")]
    return min(found, key=lambda knob: knob.secondary, default=None)


def turn_energy_knob(policy: Policy, value: float) -> Policy:
    """Return *policy* with its energy knob set to *value*; raises `ConfigError` if it has none."""
    knob = find_energy_knob(policy)
    if knob is None:
        raise ConfigError(
            f"{policy} has no energy knob, expected one with {list_policies_with_energy_knob()}"
        )
    stages: list[Any] = list(policy.stages) if isinstance(policy, Chain) else [policy]
    place = next(at for at, stage in enumerate(stages) if getattr(stage, "ENERGY_KNOB", None) is knob)
    stages[place] = replace(stages[place], **{knob.name: value})
    return Chain(tuple(stages)) if isinstance(policy, Chain) else cast(Policy, stages[0])


def list_policies_with_energy_knob() -> str:
    """Return the names of the built-in policies with an energy knob, as in `a, b`; for messages."""
    return ", ".join(sorted(text for text, thing in list_stages().items() if hasattr(thing, "ENERGY_KNOB")))


def _check_budgets_hold(holder: object, later: Sequence[object]) -> None:
    """Raise if a stage behind *holder*, which keeps the budgets, allocates the GPUs anew."""
    for stage in later:
        if (after := type(stage).__name__.casefold()) in (*ELASTIC, *DEADLINE, *PROGRAMS):
            first = type(holder).__name__.casefold()
            raise ConfigError(
                f"{first}+{after} cannot hold a budget: {after} allocates the GPUs anew after {first}",
                hint=f"put {after} before {first}, or leave it out",
            )


_BEHIND_QUOTA = ("keep", "preempt", "demand", "fuse", "cap", "batch")
_RESIZE_JOBS = (*ELASTIC, *DEADLINE, *PROGRAMS)
_SHARE_GPUS = (*_RESIZE_JOBS, "gavel")  # also among jobs that a quota leaves out behind them


def insert_quota(policy: Policy) -> Policy:
    """Return *policy* with the stage `quota` where it belongs, unless it has one.

    That is behind the stage that orders jobs or shares GPUs out, and also before the latter; there a job
    counts with its fewest GPUs if the stage chooses their number.
    """
    stages: list[Any] = list(policy.stages) if isinstance(policy, Chain) else [policy]
    if any(isinstance(stage, Quota) for stage in stages):
        return policy
    names = [spell(stage).partition(":")[0] for stage in stages]
    end = len(stages)
    while end and names[end - 1] in _BEHIND_QUOTA:
        end -= 1
    stages.insert(end, Quota())
    first = next((at for at, name in enumerate(names) if name in _SHARE_GPUS), None)
    if first is not None:
        stages.insert(first, Quota(least=1 if names[first] in _RESIZE_JOBS else 0))
    return Chain(tuple(stages))


def list_policies_with_knob(name: str) -> str:
    """Return the names of the built-in policies with a knob of that name, as in `a, b`; for messages."""
    return ", ".join(
        sorted(
            text
            for text, thing in list_stages().items()
            if inspect.isclass(thing) and _has_field(thing, name)
        )
    )


def build_budget_error(text: str, command: str = "") -> ConfigError:
    """Return the error for a budget on the policy *text*, which cannot hold one.

    *command* is the command that sets the policy, if it is not the one that failed.
    """
    holders = list_policies_with_knob("budgets")
    return ConfigError(
        f"{text} cannot hold a budget, expected one of {holders}", f"{command} --policy {holders}".strip()
    )


def _has_field(thing: object, name: str) -> bool:
    return is_dataclass(thing) and any(field.name == name for field in fields(thing))

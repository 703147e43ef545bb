"""Who decides: a policy and a placer from words, with the budgets and knobs given beside them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

from wattline.budget import parse_budget
from wattline.cli.show import tell
from wattline.errors import ConfigError, did_you_mean
from wattline.model.array import keyed
from wattline.place.parse import parse_placer
from wattline.policy import DUE, ELASTIC
from wattline.policy.chain import Chain
from wattline.policy.parse import parse_policy, stage_names
from wattline.types import Jobs, Placer, Policy


def read_deciders(text: str, place: str, backfill: str) -> tuple[Policy, Placer]:
    """What `POLICY` or `POLICY@PLACE` names; without its own, the policy has the placer *place*."""
    policy, at, own = text.partition("@")
    placer = own.strip() if at else place
    who, where = parse_policy(policy.strip()), parse_placer(placer, backfill)
    stages = who.stages if isinstance(who, Chain) else (who,)
    if any(getattr(stage, "names_nodes", False) for stage in stages) and not placer.startswith("pack"):
        raise ConfigError(
            f"{policy} says itself which nodes jobs run on, and {placer} would choose others",
            hint=f"{policy}@pack, or {policy}@pack+power to switch idle nodes off",
        )
    return who, where


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


def check_teams(budgets: Sequence[str], jobs: Jobs, trace: str) -> None:
    """Raise if one of the *budgets* is of a team that no job belongs to."""
    teams = set(jobs.team.words()) - {""}
    for text in budgets:
        team = parse_budget(text).team
        if team and team not in teams:
            raise ConfigError(
                f"budget {text!r}: team {team!r} has no jobs in {trace}, "
                + (f"expected one of {', '.join(sorted(teams))}" if teams else "which names no teams"),
                hint=did_you_mean(team, teams),
            )


def _has(thing: object, name: str) -> bool:
    return is_dataclass(thing) and any(field.name == name for field in fields(thing))


def tell_elastic(policy: str, models: str | None) -> None:
    """Say what is taken of jobs that get other GPUs than they asked for, if nothing is known of them."""
    if models is None and _stages(policy) & {*ELASTIC, *DUE}:
        tell(f"{policy}: without --models jobs are taken to be faster in proportion to their GPUs")


def tell_fuse(policy: str, jobs: Jobs) -> None:
    """Say so if nobody can be fused."""
    if "fuse" in _stages(policy) and not keyed(jobs).any():
        tell(f"{policy}: no job of this trace has a fusion key (the column fuse), so nobody is fused")


def _stages(policy: str) -> set[str]:
    """The names of the stages in a policy's text."""
    return {stage.partition(":")[0].strip().casefold() for stage in policy.partition("@")[0].split("+")}

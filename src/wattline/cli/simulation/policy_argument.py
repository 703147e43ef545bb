"""Who decides: a policy and a placer from words, with the budgets and knobs given beside them."""

from __future__ import annotations

from collections.abc import Sequence

from wattline import papers
from wattline.cli.output import tell
from wattline.core.jobs import Jobs
from wattline.core.protocols import Placer, Policy
from wattline.energy.budgets import parse_budget
from wattline.errors import ConfigError, did_you_mean
from wattline.models.array_speed import keyed
from wattline.placement.parser import parse_placer
from wattline.policy import DUE, ELASTIC
from wattline.policy.chain import Chain
from wattline.policy.parser import parse_policy


def read_deciders(text: str, place: str, backfill: str) -> tuple[Policy, Placer]:
    """What `POLICY` or `POLICY@PLACE` names; without its own, the policy has the placer *place*."""
    policy, at, own = text.partition("@")
    placer = own.strip() if at else place
    who = parse_policy(policy.strip(), papers.POLICIES)
    where = parse_placer(placer, backfill, papers.PLACERS)
    stages = who.stages if isinstance(who, Chain) else (who,)
    if any(getattr(stage, "names_nodes", False) for stage in stages) and not placer.startswith("pack"):
        raise ConfigError(
            f"{policy} says itself which nodes jobs run on, and {placer} would choose others",
            hint=f"{policy}@pack, or {policy}@pack+power to switch idle nodes off",
        )
    return who, where


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

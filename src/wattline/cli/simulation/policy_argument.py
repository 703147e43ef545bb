"""Policy and placer from `--policy`, `--place` and `--backfill`, and checks of both."""

from __future__ import annotations

from collections.abc import Sequence

from wattline import papers
from wattline.cli.output import notify
from wattline.core.jobs import Jobs
from wattline.core.protocols import Placer, Policy
from wattline.core.quotas import Quotas
from wattline.energy.budgets import parse_budget
from wattline.errors import ConfigError, did_you_mean
from wattline.models.array_speed import has_fusion_key
from wattline.placement.parser import parse_placer
from wattline.policy import DEADLINE, ELASTIC, PROGRAMS
from wattline.policy.chain import Chain
from wattline.policy.parser import parse_policy


def parse_policy_and_placer(text: str, place: str, backfill: str) -> tuple[Policy, Placer]:
    """Parse `POLICY` or `POLICY@PLACE`; a policy without its own placer gets *place*."""
    policy_text, at, own_place = text.partition("@")
    placer_text = own_place.strip() if at else place
    policy = parse_policy(policy_text.strip(), papers.POLICIES)
    placer = parse_placer(placer_text, backfill, papers.PLACERS)
    stages = policy.stages if isinstance(policy, Chain) else (policy,)
    if any(getattr(stage, "names_nodes", False) for stage in stages) and not placer_text.startswith("pack"):
        raise ConfigError(
            f"{policy_text} chooses the nodes of jobs itself and works only with the placer pack,"
            f" not {placer_text}",
            hint=f"{policy_text}@pack, or {policy_text}@pack+power to switch idle nodes off",
        )
    return policy, placer


def check_teams(budgets: Sequence[str], jobs: Jobs, trace: str) -> None:
    """Raise `ConfigError` if one of the *budgets* is for a team without jobs."""
    teams = set(jobs.team.words()) - {""}
    for text in budgets:
        team = parse_budget(text).team
        if team and team not in teams:
            raise ConfigError(
                f"budget {text!r}: team {team!r} has no jobs in {trace}, "
                + (f"expected one of {', '.join(sorted(teams))}" if teams else "which names no teams"),
                hint=did_you_mean(team, teams),
            )


def check_owners(quotas: Quotas, jobs: Jobs, trace: str) -> None:
    """Raise `ConfigError` if one of the *quotas* is for a user or team without jobs."""
    for rule in quotas.rules:
        names = set((jobs.team if rule.owner == "team" else jobs.user).words()) - {""}
        if rule.name not in names:
            shown = ", ".join(sorted(names)[:20]) + (", ..." if len(names) > 20 else "")
            raise ConfigError(
                f"quota of {rule}: it has no jobs in {trace}, "
                + (f"expected one of {shown}" if names else f"which names no {rule.owner}s"),
                hint=did_you_mean(rule.name, names),
            )


def warn_fixed_sizes(policy: str, models: str | None, assume: Sequence[str]) -> None:
    """Print that *policy* gives no job more GPUs than it asked for, if nothing is known of their scaling."""
    names_scaling = any(text.startswith("scaling=") for text in assume)
    if models is None and not names_scaling and _stage_names(policy) & {*ELASTIC, *DEADLINE, *PROGRAMS}:
        notify(
            f"{policy}: no job gets more GPUs than it asks for, because how jobs scale is not known;"
            " --models library, or --assume scaling=linear, changes that"
        )


def warn_no_fusion_keys(policy: str, jobs: Jobs) -> None:
    """Print a warning if *policy* fuses jobs and none of *jobs* can be fused."""
    if "fuse" in _stage_names(policy) and not has_fusion_key(jobs).any():
        notify(f"{policy}: no job of this trace has a fusion key (column fuse), so no job is fused")


def _stage_names(policy: str) -> set[str]:
    return {stage.partition(":")[0].strip().casefold() for stage in policy.partition("@")[0].split("+")}

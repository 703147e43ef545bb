"""Quotas, and fair share of users and teams, as users read them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wattline.core.leases import Leases
from wattline.core.protocols import Policy
from wattline.core.quotas import QuotaRule, Quotas
from wattline.core.snapshot import Snapshot
from wattline.core.usage import Account, Usage, number_accounts
from wattline.errors import NotFound
from wattline.policy.chain import Chain
from wattline.policy.fair_tree import levels_of
from wattline.policy.stages.fairshare import FairShare
from wattline.policy.stages.quota import find_free_s, find_members, used_gpu_s
from wattline.service.forecast import current_state
from wattline.service.view import ControllerView
from wattline.units import format_seconds

_HOUR_S = 3600.0


def change_rule(quotas: Quotas, change: QuotaRule) -> Quotas:
    """Return *quotas* with the fields of *change* that are set; other fields and rules stay."""
    old = quotas.find(change.owner, change.name)
    kept = {} if old is None else old.as_dict()
    new = QuotaRule.from_dict({**kept, **change.as_dict()})
    return Quotas((*(rule for rule in quotas.rules if rule is not old), new))


def remove_rule(quotas: Quotas, owner: str, name: str) -> Quotas:
    """Return *quotas* without the rule of a user or team; raise `NotFound` if it has none."""
    old = quotas.find(owner, name)
    if old is None:
        raise NotFound(f"{owner} {name} has no quota", "wattline quota show")
    return Quotas(tuple(rule for rule in quotas.rules if rule is not old))


def find_fair_share(policy: Policy) -> FairShare | None:
    """Return the stage `fairshare` of a policy, or None."""
    stages = policy.stages if isinstance(policy, Chain) else (policy,)
    return next((stage for stage in stages if isinstance(stage, FairShare)), None)


def describe_quotas(view: ControllerView) -> list[dict[str, Any]]:
    """Return all quotas with what is used, what is left and when used-up hours are free again."""
    state = current_state(view)
    return [_describe_rule(state, rule) for rule in view.quotas.rules]


def describe_accounts(view: ControllerView) -> list[dict[str, Any]]:
    """Return usage, share, factor and rank of every team and user that has used GPUs or has jobs."""
    state, stage = current_state(view), find_fair_share(view.policy)
    usage = Usage.empty(state.now_s) if state.usage is None else state.usage
    queued = [] if not len(state.queue) else _queued_accounts(state)
    names = tuple(dict.fromkeys((*queued, *usage.accounts)))
    if not names:
        return []
    half_life_s = FairShare().half_life_s if stage is None else stage.half_life_s
    levels = levels_of(names, usage, view.quotas, half_life_s)
    used = dict(zip(usage.accounts, usage.decayed_gpu_s(half_life_s).tolist(), strict=True))
    total = math.fsum(used.values())
    rank = np.empty(len(names), dtype=np.int64)
    rank[np.lexsort((levels.user, levels.team))] = np.arange(1, len(names) + 1)
    shares = _share_fractions(names, view.quotas)
    rows = []
    for number, (team, user) in enumerate(names):
        part = used.get((team, user), 0.0) / total if total > 0 else 0.0
        rows.append(
            {
                "team": team,
                "user": user,
                "gpu_hours": used.get((team, user), 0.0) / _HOUR_S,
                "usage": part,
                "share": shares[number],
                "factor": 2.0 ** (-part / shares[number]),
                "rank": int(rank[number]),
            }
        )
    return sorted(rows, key=lambda row: row["rank"])


def explain_account(view: ControllerView, team: str, user: str) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the fair share of a job's user and team, and sentences on it and on their quotas."""
    stage, facts = find_fair_share(view.policy), list[str]()
    accounts = describe_accounts(view)
    own = next((row for row in accounts if (row["team"], row["user"]) == (team, user)), None)
    if own is not None and stage is not None and len(accounts) > 1:
        facts.append(
            f"Fair share: {_name(team, user)} has used {own['gpu_hours']:.3g} GPU h"
            f" (half-life {format_seconds(stage.half_life_s)}), {own['usage']:.0%} of all; its share is"
            f" {own['share']:.0%}, its factor {own['factor']:.2f}, its rank {own['rank']} of {len(accounts)}."
        )
    state = current_state(view)
    for rule in view.quotas.limits:
        if rule.name == (team if rule.owner == "team" else user):
            facts.append(_quota_sentence(_describe_rule(state, rule), rule, state.now_s))
    return (own if stage is not None else None), facts


def describe_gpu_quota(view: ControllerView, team: str, user: str, of_team: bool) -> str:
    """Return the sentence on a quota of GPUs that keeps a job from starting; empty: it is gone."""
    rule = view.quotas.find("team", team) if of_team else view.quotas.find("user", user)
    if view.step is None or rule is None or rule.gpus is None:
        return ""
    owner, allowed = ("Its team", "its quota") if of_team else ("Its user", "the user's quota")
    held = _count_gpus(view.step.state, rule, view.step.placement.leases)
    if held < rule.gpus:
        return f"{owner} may use {rule.gpus - held} more of the {rule.gpus} GPUs that {allowed} allows."
    return f"{owner} runs on {held} GPU{'s' if held != 1 else ''}, as many as {allowed} allows."


def _name(team: str, user: str) -> str:
    person = f"user {user}" if user else "the service's user"
    return f"{person} of team {team}" if team else person


def _quota_sentence(row: dict[str, Any], rule: QuotaRule, now_s: float) -> str:
    parts = []
    if rule.gpus is not None:
        parts.append(f"{row['gpus_used']} of {rule.gpus} GPUs")
    if rule.gpu_hours_per_week is not None:
        hours = f"{row['gpu_hours_used']:.3g} of {rule.gpu_hours_per_week:g} GPU hours in seven days"
        if row["frees_s"] is not None:
            hours += f", which is free again in {format_seconds(row['frees_s'] - now_s)}"
        parts.append(hours)
    return f"Quota of {rule}: {' and '.join(parts)} are used."


def _describe_rule(state: Snapshot, rule: QuotaRule) -> dict[str, Any]:
    hours, limit = used_gpu_s(state, rule) / _HOUR_S, rule.gpu_hours_per_week
    frees_s = None
    if limit is not None and hours >= limit:
        at_s = find_free_s(state, rule)
        frees_s = at_s if math.isfinite(at_s) else None
    return {
        "team": rule.name if rule.owner == "team" else None,
        "user": rule.name if rule.owner == "user" else None,
        "gpus": rule.gpus,
        "gpu_hours_per_week": limit,
        "share": rule.share,
        "gpus_used": _count_gpus(state, rule),
        "gpu_hours_used": hours,
        "gpu_hours_left": None if limit is None else max(0.0, limit - hours),
        "frees_s": frees_s,
    }


def _count_gpus(state: Snapshot, rule: QuotaRule, leases: Leases | None = None) -> int:
    """Return the GPUs that jobs of a user or team hold; those of an array once."""
    leases = state.leases if leases is None else leases
    if not len(leases):
        return 0
    own = find_members(state, (rule,))[0][np.searchsorted(state.queue.job, leases.job)] == 1
    keys = {(g, n): c for g, n, c in zip(leases.group[own], leases.node[own], leases.gpus[own], strict=True)}
    return int(sum(keys.values()))


def _queued_accounts(state: Snapshot) -> list[Account]:
    pair, names = number_accounts(state.jobs)
    return [names[number] for number in dict.fromkeys(pair[state.queue.job].tolist())]


def _share_fractions(names: tuple[Account, ...], quotas: Quotas) -> list[float]:
    """Return the fraction of all GPUs that is each account's share: that of its team, times its own in it."""
    shares = quotas.shares
    teams = {team: shares.get(("team", team), 1.0) for team, _ in names}
    users: dict[str, float] = {}
    for team, user in names:
        users[team] = users.get(team, 0.0) + shares.get(("user", user), 1.0)
    whole = math.fsum(teams.values())
    return [teams[team] / whole * shares.get(("user", user), 1.0) / users[team] for team, user in names]

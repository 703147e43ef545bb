"""Fair share of teams and of the users inside them, after Slurm's Fair Tree.

A team's level is its decayed GPU time over its share, and so is the level of a user among the users of its
team. The account of the team with the smallest level goes first, inside a team the user with the smallest.
Slurm sorts by shares over usage, which is the same order (slurm.schedmd.com/fair_tree.html).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from wattline.core.quotas import Quotas
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.core.usage import Account, Usage, number_accounts

_SMALLEST_S = 1e-9  # smaller levels count as unused: decay never ends, numbers do
_DIGITS = 9  # significant digits of a level that count: a replay adds the same seconds in fewer steps


class AccountLevels(NamedTuple):
    """Levels by the number of an account; the smallest goes first."""

    team: Floats
    user: Floats


def compute_levels(snapshot: Snapshot, half_life_s: float) -> AccountLevels:
    """Return the levels of all accounts of the job table, see `wattline.core.usage.number_accounts`."""
    _, names = number_accounts(snapshot.jobs)
    return levels_of(names, snapshot.usage, snapshot.quotas, half_life_s)


def levels_of(
    names: tuple[Account, ...], usage: Usage | None, quotas: Quotas, half_life_s: float
) -> AccountLevels:
    """Return the levels of the accounts *names*."""
    if usage is None or not usage.accounts:
        return AccountLevels(np.zeros(len(names)), np.zeros(len(names)))
    tree = _build_tree(names, usage.accounts, quotas)
    used = usage.decayed_gpu_s(half_life_s)
    by_team = np.bincount(tree.team_of_account, used, tree.teams)
    own = np.where(tree.account >= 0, used[tree.account], 0.0)
    return AccountLevels(_round(by_team[tree.team] / tree.team_share), _round(own / tree.user_share))


def _round(level: Floats) -> Floats:
    """Return levels rounded to significant digits; next to nothing is 0."""
    is_used = level >= _SMALLEST_S
    exponent = np.floor(np.log10(np.where(is_used, level, 1.0)))
    scale = 10.0 ** (_DIGITS - exponent)
    return np.where(is_used, np.round(level * scale) / scale, 0.0)


class _Tree(NamedTuple):
    """Positions of accounts of the job table in the usage, and their shares."""

    account: Ints  # by name: its column of the usage; -1: none
    team: Ints  # by name
    team_of_account: Ints  # by column of the usage
    teams: int
    team_share: Floats  # by name
    user_share: Floats  # by name


@lru_cache(maxsize=8)
def _build_tree(names: tuple[Account, ...], accounts: tuple[Account, ...], quotas: Quotas) -> _Tree:
    column = {account: number for number, account in enumerate(accounts)}
    teams: dict[str, int] = {}
    for team, _ in (*accounts, *names):
        teams.setdefault(team, len(teams))
    shares = quotas.shares
    return _Tree(
        np.array([column.get(name, -1) for name in names], dtype=np.int64),
        np.array([teams[team] for team, _ in names], dtype=np.int64),
        np.array([teams[team] for team, _ in accounts], dtype=np.int64),
        len(teams),
        np.array([shares.get(("team", team), 1.0) for team, _ in names]),
        np.array([shares.get(("user", user), 1.0) for _, user in names]),
    )

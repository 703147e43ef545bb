"""What do all budgets together allow at this moment?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattline.budget import Budget
from wattline.table import Bools, Floats, Ints
from wattline.types import Snapshot


@dataclass(frozen=True, eq=False, slots=True)
class Limits:
    """All budgets at one moment, one entry each, as an allocator holds them.

    Entries of watts bound what jobs draw (of the whole cluster: beyond what is drawn without any job),
    those of joules what jobs will use until they end. *eta* has pairs of an eta and a team.
    """

    most: Floats
    joules: Ints  # 0: watts, 1: joules, 2: joules for which nobody is held back, see eta
    team: Ints  # -1: everybody
    ever_w: Floats  # the most that will ever be allowed
    eta: tuple[tuple[float, int], ...] = ()
    tick_s: float = math.inf

    def with_joules(self, most_j: float, team: int) -> Limits:
        """These, and so many joules for a team (-1: for everybody)."""
        return replace(
            self,
            most=np.append(self.most, most_j),
            joules=np.append(self.joules, 2),
            team=np.append(self.team, team),
            ever_w=np.append(self.ever_w, math.inf),
        )

    def never(self, least_w: Floats, idle_w: Floats, least_j: Floats, team: Ints) -> Bools:
        """Which rows, that draw at least *least_w* where they would draw *idle_w* idle and need *least_j*,
        will never be allowed to run.

        Joules without an end in sight only get fewer.
        """
        never = np.zeros(len(least_w), dtype=np.bool_)
        for most, joules, of, ever_w in zip(self.most, self.joules, self.team, self.ever_w, strict=True):
            late = least_j > most if joules == 1 else least_w - (idle_w if of < 0 else 0.0) > ever_w
            never |= late & ((team == of) | (of < 0))
        return never


NO_LIMITS = Limits(np.empty(0), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))


def limits(budgets: Sequence[Budget], snapshot: Snapshot, interval_s: float) -> Limits:
    """What *budgets* allow now, and when to look again if nothing happens: at most *interval_s* later."""
    if not budgets:
        return NO_LIMITS
    rest_w = _resting_w(snapshot)
    lasting_w = rest_w if _nobody_switches(snapshot) else _one_on_w(snapshot)
    teams = snapshot.jobs.team.codes[snapshot.queue.job]
    tick_s = math.inf
    entries: list[tuple[float, int, int, float]] = []
    eta: list[tuple[float, int]] = []
    for budget in budgets:
        of = budget.column(snapshot) - 1
        if budget.unit == "eta":
            eta.append((budget.amount, of))
            continue
        now, anyway_w = budget.at(snapshot), 0.0 if budget.team else rest_w
        ever_w = budget.most_w(0.0 if budget.team else lasting_w)
        if now.joules <= 0 and now.until_s == math.inf:
            ever_w = -math.inf  # nothing is left, and nothing will come
        entries.append((max(0.0, now.watts - anyway_w), 0, of, ever_w))
        if math.isfinite(now.joules) and now.until_s == math.inf:
            entries.append((max(0.0, now.joules), 1, of, math.inf))
        tick_s = min(tick_s, snapshot.now_s + interval_s, now.until_s)
        mine = teams == of if budget.team else np.ones(len(teams), dtype=np.bool_)
        drawn_w = anyway_w + float(snapshot.queue.watts[mine].sum())
        if math.isfinite(now.joules) and drawn_w > 0:
            tick_s = min(tick_s, snapshot.now_s + max(1.0, now.joules / drawn_w))
    most, joules, team, ever = zip(*entries, strict=True) if entries else ((), (), (), ())
    return Limits(
        most=np.array(most, dtype=np.float64),
        joules=np.array(joules, dtype=np.int64),
        team=np.array(team, dtype=np.int64),
        ever_w=np.array(ever, dtype=np.float64),
        eta=tuple(eta),
        tick_s=tick_s if len(snapshot.queue) else math.inf,
    )


def _resting_w(snapshot: Snapshot) -> float:
    """What the nodes draw without any job."""
    nodes = snapshot.nodes
    states = (snapshot.up, np.isfinite(snapshot.wakes_s), snapshot.wakes_s == math.inf)
    return float(np.select(states, (nodes.rest_w, nodes.boot_w, nodes.off_w), 0.0).sum())


def _one_on_w(snapshot: Snapshot) -> float:
    """What the nodes draw without any job if all but the most modest one are off."""
    nodes = snapshot.nodes
    return float(nodes.off_w.sum() + (nodes.rest_w - nodes.off_w).min())


def _nobody_switches(snapshot: Snapshot) -> bool:
    """Whether idle nodes stay on: one of them has been quiet for so long that it would be off by now."""
    quiet_s = snapshot.now_s - snapshot.quiet_s
    return bool((snapshot.up & (quiet_s > 2 * snapshot.nodes.break_even_s + 1.0)).any())

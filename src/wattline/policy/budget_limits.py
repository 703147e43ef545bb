"""What do all budgets together allow at this moment?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.energy.budgets import Budget

_LOOKS = 64  # how often, while nobody may run, an allowance that grows with time is looked at


@dataclass(frozen=True, eq=False, slots=True)
class Limits:
    """All budgets at one moment, one entry each, as an allocator holds them.

    Entries of watts bound what jobs draw (of the whole cluster: beyond what is drawn without any job),
    those of joules what jobs will use until they end (of the whole cluster: with what is drawn without any
    job until then). *eta* has pairs of an eta and a team.
    """

    most: Floats
    joules: Ints  # 0: watts, 1: joules, 2: joules for which nobody is held back, see eta
    team: Ints  # -1: everybody
    ever_w: Floats  # the most that will ever be allowed
    mean_w: Floats  # what the nodes draw must be less, or nothing is left for jobs, ever
    eta: tuple[tuple[float, int], ...] = ()
    tick_s: float = math.inf  # when to look again
    idle_tick_s: float = math.inf  # when to look again if nobody runs and nobody may

    def with_joules(self, most_j: float, team: int) -> Limits:
        """These, and so many joules for a team (-1: for everybody)."""
        return replace(
            self,
            most=np.append(self.most, most_j),
            joules=np.append(self.joules, 2),
            team=np.append(self.team, team),
            ever_w=np.append(self.ever_w, math.inf),
            mean_w=np.append(self.mean_w, math.inf),
        )

    def never(self, watts: Floats, idle_w: Floats, rest_w: Floats, run_s: Floats, team: Ints) -> Bools:
        """Which rows will never be allowed to run, in none of their ways: axes 1 and 2.

        They draw *watts* for *run_s* where they would draw *idle_w* idle, and nodes draw at least *rest_w*
        as long as they run. Joules without an end in sight only get fewer.
        """
        never = np.zeros(len(watts), dtype=np.bool_)
        for most, joules, of, ever_w, mean_w in zip(
            self.most, self.joules, self.team, self.ever_w, self.mean_w, strict=True
        ):
            drawn_w = watts - idle_w + rest_w if of < 0 else watts
            least_w = rest_w.min(axis=(1, 2)) if of < 0 else 0.0
            if joules == 1:
                late = (drawn_w * run_s).min(axis=(1, 2)) > most
            else:
                late = (drawn_w.min(axis=(1, 2)) > ever_w) | (least_w >= mean_w)
            never |= late & ((team == of) | (of < 0))
        return never


_NONE = np.empty(0)
NO_LIMITS = Limits(_NONE, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), _NONE, _NONE)


def limits(budgets: Sequence[Budget], snapshot: Snapshot, interval_s: float) -> Limits:
    """What *budgets* allow now, and when to look again if nothing happens: at most *interval_s* later."""
    if not budgets:
        return NO_LIMITS
    now_s, rest_w = snapshot.now_s, resting_w(snapshot)
    teams = snapshot.jobs.team.codes[snapshot.queue.job]
    drawn_w = np.where(snapshot.queue.running, snapshot.queue.watts, 0.0)
    tick_s, idle_tick_s = math.inf, math.inf if _all_quiet(snapshot) else now_s + interval_s
    entries: list[tuple[float, int, int, float, float]] = []
    eta: list[tuple[float, int]] = []
    for budget in budgets:
        of = budget.column(snapshot) - 1
        if budget.unit == "eta":
            eta.append((budget.amount, of))
            continue
        now, anyway_w = budget.at(snapshot), 0.0 if budget.team else rest_w
        spent = now.joules <= 0 and now.until_s == math.inf  # nothing is left, and nothing will come
        ever_w = -math.inf if spent else budget.most_w
        entries.append((max(0.0, now.watts - anyway_w), 0, of, ever_w, budget.mean_w(now)))
        tick_s = min(tick_s, now_s + interval_s, now.until_s)
        idle_tick_s = min(idle_tick_s, now.until_s)
        if not math.isfinite(now.joules):
            continue
        if now.until_s == math.inf:
            entries.append((max(0.0, now.joules), 1, of, math.inf, math.inf))
        elif now.joules > 0:
            idle_tick_s = min(idle_tick_s, now_s + max(interval_s, (now.until_s - now_s) / _LOOKS))
        mine = teams == of if budget.team else np.ones(len(teams), dtype=np.bool_)
        used_w = anyway_w + float(drawn_w[mine].sum())
        if now.joules > 0 and used_w > 0:
            tick_s = min(tick_s, now_s + max(1.0, now.joules / used_w))
    most, joules, team, ever, mean = zip(*entries, strict=True) if entries else ((), (), (), (), ())
    return Limits(
        most=np.array(most, dtype=np.float64),
        joules=np.array(joules, dtype=np.int64),
        team=np.array(team, dtype=np.int64),
        ever_w=np.array(ever, dtype=np.float64),
        mean_w=np.array(mean, dtype=np.float64),
        eta=tuple(eta),
        tick_s=tick_s if len(snapshot.queue) else math.inf,
        idle_tick_s=idle_tick_s if entries and len(snapshot.queue) else math.inf,
    )


def resting_w(snapshot: Snapshot) -> float:
    """What the nodes draw without any job; those that boot, at least what they will draw then."""
    nodes = snapshot.nodes
    states = (snapshot.up, np.isfinite(snapshot.wakes_s), snapshot.wakes_s == math.inf)
    draws_w = (nodes.rest_w, np.maximum(nodes.boot_w, nodes.rest_w), nodes.off_w)
    return float(np.select(states, draws_w, 0.0).sum())


def lasting_w(snapshot: Snapshot, kind: Ints, gpus: Ints) -> Floats:
    """What the nodes draw at least while so many GPUs (axis 1) of a kind are in use, idle as they may be.

    That is with all others off, but for those that are on for nobody, and so seem to stay on.
    """
    nodes, stays = snapshot.nodes, _quiet_too_long(snapshot)
    on_w = nodes.rest_w - nodes.off_w
    least_w = np.full(gpus.shape, float(nodes.off_w.sum() + on_w[stays].sum()))
    for k in range(len(nodes.kind.names)):
        here = nodes.kind.codes == k
        more_w = np.cumsum(np.sort(np.where(stays, 0.0, on_w)[here]))
        count = np.minimum(-(-gpus // int(nodes.gpus[here].max())), len(more_w))
        least_w += np.where((kind == k)[:, None], more_w[count - 1], 0.0)
    return least_w


def _quiet_too_long(snapshot: Snapshot) -> Bools:
    """Nodes that have been on and quiet for so long that they would be off by now, were they switched."""
    began_s = snapshot.jobs.submit_s[:1].max(initial=-math.inf)  # before, nobody could switch anything
    quiet_s = snapshot.now_s - np.maximum(snapshot.quiet_s, began_s)
    return np.asarray(snapshot.up & (quiet_s > 2 * snapshot.nodes.break_even_s + 1.0))


def _all_quiet(snapshot: Snapshot) -> bool:
    """Whether no node will be switched off any more if nobody runs."""
    stays = _quiet_too_long(snapshot) | (snapshot.nodes.break_even_s == math.inf)
    return bool((stays | ~snapshot.up).all())

"""Limits that all budgets together set at one moment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattline.core.queue import QUEUE_SINCE_S
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.energy.budgets import Budget

_CHECKS = 64  # of an allowance that grows with time, in its period, while no job may run

WATTS, JOULES, ETA_JOULES, CAP_WATTS = range(4)
"""Values of `BudgetLimits.unit`; joules of an eta never keep a job from running, see `BudgetLimits.eta`."""


@dataclass(frozen=True, eq=False, slots=True)
class BudgetLimits:
    """Limits of all budgets at one moment, one entry each, for an allocator.

    Entries in watts limit the power draw of jobs, and those in watts of caps the sum of their power caps;
    those of the whole cluster only what is beyond the draw without any job. Entries in joules limit the
    energy that jobs use until they end; those of the whole cluster include the draw without any job until
    then. *eta* has pairs of an eta and a team.
    """

    amount: Floats
    unit: Ints  # WATTS, JOULES, ETA_JOULES or CAP_WATTS
    team: Ints  # -1: the whole cluster
    max_ever_w: Floats  # the most that will ever be allowed
    max_mean_w: Floats  # nothing is ever left for jobs unless the nodes draw less than this
    eta: tuple[tuple[float, int], ...] = ()
    next_decision_s: float = math.inf
    next_idle_decision_s: float = math.inf  # if no job runs or may run

    def with_eta_joules(self, amount_j: float, team: int) -> BudgetLimits:
        """Return these limits and the joules of an eta, for a team (-1: for the whole cluster)."""
        return replace(
            self,
            amount=np.append(self.amount, amount_j),
            unit=np.append(self.unit, ETA_JOULES),
            team=np.append(self.team, team),
            max_ever_w=np.append(self.max_ever_w, math.inf),
            max_mean_w=np.append(self.max_mean_w, math.inf),
        )

    def find_unaffordable(
        self, watts: Floats, caps_w: Floats, idle_w: Floats, rest_w: Floats, run_s: Floats, team: Ints
    ) -> Bools:
        """Return which rows will never be allowed to run in any of their configurations (axes 1 and 2).

        They draw *watts*, under caps of *caps_w* in sum, for *run_s* where their GPUs draw *idle_w* without a
        job, and nodes draw at least *rest_w* as long as they run. Joules without an end in sight only get
        fewer.
        """
        never = np.zeros(len(watts), dtype=np.bool_)
        for amount, unit, of, max_ever_w, max_mean_w in zip(
            self.amount, self.unit, self.team, self.max_ever_w, self.max_mean_w, strict=True
        ):
            own_w = caps_w if unit == CAP_WATTS else watts
            drawn_w = own_w - idle_w + rest_w if of < 0 else own_w
            least_w = rest_w.min(axis=(1, 2)) if of < 0 else 0.0
            if unit == JOULES:
                exceeds = (drawn_w * run_s).min(axis=(1, 2)) > amount
            else:
                exceeds = (drawn_w.min(axis=(1, 2)) > max_ever_w) | (least_w >= max_mean_w)
            never |= exceeds & ((team == of) | (of < 0))
        return never


_NONE = np.empty(0)
NO_LIMITS = BudgetLimits(_NONE, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), _NONE, _NONE)


def compute_limits(
    budgets: Sequence[Budget], snapshot: Snapshot, interval_s: float, overshoot: float = math.inf
) -> BudgetLimits:
    """Return the limits of *budgets* now, and when to decide again: at most *interval_s* later.

    Where *overshoot* is finite, the sum of power caps is at most that many times each budget of watts.
    """
    if not budgets:
        return NO_LIMITS
    now_s, rest_w = snapshot.now_s, compute_idle_w(snapshot)
    teams = snapshot.jobs.team.codes[snapshot.queue.job]
    drawn_w = np.where(snapshot.queue.running, snapshot.queue.watts, 0.0)
    next_s, next_idle_s = math.inf, math.inf if _is_settled(snapshot) else now_s + interval_s
    entries: list[tuple[float, int, int, float, float]] = []
    eta: list[tuple[float, int]] = []
    for budget in budgets:
        of = budget.meter_column(snapshot) - 1
        if budget.unit == "eta":
            eta.append((budget.amount, of))
            continue
        now, base_w = budget.allowance(snapshot), 0.0 if budget.team else rest_w
        spent = now.joules <= 0 and now.until_s == math.inf  # nothing is left, and nothing will come
        max_ever_w = -math.inf if spent else budget.max_w
        counted = teams == of if budget.team else np.ones(len(teams), dtype=np.bool_)
        allowed_w = max(0.0, now.watts - base_w)
        if budget.unit == "kwh_per_day":
            least_w = _compute_least_w(snapshot, counted)
            spare_j = now.joules - base_w * (now.until_s - now_s)  # nodes draw without jobs, too
            allowed_w = least_w if allowed_w < least_w and spare_j >= interval_s * least_w else allowed_w
        entries.append((allowed_w, WATTS, of, max_ever_w, budget.mean_w(now)))
        if budget.is_power and math.isfinite(overshoot):
            caps_w, most_w = overshoot * now.watts - base_w, overshoot * budget.max_w
            entries.append((max(0.0, caps_w), CAP_WATTS, of, most_w, math.inf))
        next_s = min(next_s, now_s + interval_s, now.until_s)
        next_idle_s = min(next_idle_s, now.until_s)
        if not math.isfinite(now.joules):
            continue
        if now.until_s == math.inf:
            entries.append((max(0.0, now.joules), JOULES, of, math.inf, math.inf))
        elif now.joules > 0:
            next_idle_s = min(next_idle_s, now_s + max(interval_s, (now.until_s - now_s) / _CHECKS))
        used_w = base_w + float(drawn_w[counted].sum())
        if now.joules > 0 and used_w > 0:
            next_s = min(next_s, now_s + max(1.0, now.joules / used_w))
    amount, unit, team, max_ever, max_mean = zip(*entries, strict=True) if entries else ((), (), (), (), ())
    return BudgetLimits(
        amount=np.array(amount, dtype=np.float64),
        unit=np.array(unit, dtype=np.int64),
        team=np.array(team, dtype=np.int64),
        max_ever_w=np.array(max_ever, dtype=np.float64),
        max_mean_w=np.array(max_mean, dtype=np.float64),
        eta=tuple(eta),
        next_decision_s=next_s if len(snapshot.queue) else math.inf,
        next_idle_decision_s=next_idle_s if entries and len(snapshot.queue) else math.inf,
    )


def _compute_least_w(snapshot: Snapshot, counted: Bools) -> float:
    """Return what one of the *counted* jobs needs: the one that runs longest, else the smallest that waits.

    The energy of a day is spread over the day, but a budget below the draw of a job would allow none before
    the evening. So one job may run as long as energy is left.
    """
    queue, jobs = snapshot.queue, snapshot.jobs
    running = np.flatnonzero(counted & queue.running)
    if len(running):
        gpus = float(queue.held_gpus[running[np.argmin(queue.block[QUEUE_SINCE_S][running])]])
    else:
        least = np.where(jobs.min_gpus[queue.job] > 0, jobs.min_gpus[queue.job], 1)
        gpus = float(least[counted].min()) if counted.any() else 0.0
    return gpus * float(snapshot.nodes.busy_w.max(initial=0.0))


def compute_idle_w(snapshot: Snapshot) -> float:
    """Return the draw of all nodes without any job; booting nodes count as if they were up."""
    nodes = snapshot.nodes
    states = (snapshot.up, np.isfinite(snapshot.boot_done_s), snapshot.boot_done_s == math.inf)
    draws_w = (nodes.idle_node_w, np.maximum(nodes.boot_w, nodes.idle_node_w), nodes.off_w)
    return float(np.select(states, draws_w, 0.0).sum())


def compute_least_idle_w(snapshot: Snapshot, kind: Ints, gpus: Ints) -> Floats:
    """Return the least draw of the nodes without jobs while so many GPUs (axis 1) of a kind are in use.

    All other nodes count as off, except those that have been on without jobs for so long that they seem to
    stay on.
    """
    nodes, stays = snapshot.nodes, find_always_on(snapshot)
    on_w = nodes.idle_node_w - nodes.off_w
    least_w = np.full(gpus.shape, float(nodes.off_w.sum() + on_w[stays].sum()))
    for k in range(len(nodes.kind.names)):
        here = nodes.kind.codes == k
        more_w = np.cumsum(np.sort(np.where(stays, 0.0, on_w)[here]))
        count = np.minimum(-(-gpus // int(nodes.gpus[here].max())), len(more_w))
        least_w += np.where((kind == k)[:, None], more_w[count - 1], 0.0)
    return least_w


def find_always_on(snapshot: Snapshot) -> Bools:
    """Return the nodes that have been up without jobs for so long that no placer seems to switch them."""
    began_s = snapshot.jobs.submit_s[:1].max(initial=-math.inf)  # before, no placer could switch anything
    quiet_s = snapshot.now_s - np.maximum(snapshot.idle_since_s, began_s)
    return np.asarray(snapshot.up & (quiet_s > 2 * snapshot.nodes.break_even_s + 1.0))


def _is_settled(snapshot: Snapshot) -> bool:
    """Return whether no node will be switched off any more if no job runs."""
    stays = find_always_on(snapshot) | (snapshot.nodes.break_even_s == math.inf)
    return bool((stays | ~snapshot.up).all())

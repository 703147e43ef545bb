"""One decision, by the method that is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.optimize.cap_elimination import Folded, fold
from wattline.optimize.exact import charged, nobody, solve
from wattline.optimize.greedy import greedy, randomised
from wattline.optimize.instance import POSTPONED, Event, Schedule, at_most
from wattline.optimize.node_assignment import stick
from wattline.optimize.objective import Charges, rolling, to_the_end
from wattline.optimize.relink import relink
from wattline.optimize.search import improve

_OBJECTIVES = {"rolling": rolling, "to_the_end": to_the_end}


class Effort(NamedTuple):
    """How hard to look: tries of chance and their seed; the gap and the seconds at which the exact solver
    stops."""

    tries: int = 1000
    seed: int = 0
    gap: float = 1e-3
    time_s: float = 2.0


class Decided(NamedTuple):
    """What was decided, by which method, and how far from the best it may be (nan: nobody knows).

    The gap is of who runs in which configuration. On which of several equal nodes that is follows from who is
    there already, so that few move, and what that costs is not in it.
    """

    schedule: Schedule
    method: str
    gap: float


def charges_of(event: Event, objective: str) -> Charges:
    """What decisions on *event* are charged for by one of `wattline.optimize.OBJECTIVES`."""
    return _OBJECTIVES[objective](event)


def decide(
    event: Event,
    charges: Charges,
    method: str,
    config: Ints,
    node: Ints,
    effort: Effort,
    restart_s: float = 0.0,
) -> Decided:
    """What *method* finds best by *charges*.

    Jobs have *config* on *node* now (POSTPONED: nothing), and stay where they are unless moving them, which
    takes *restart_s*, pays.
    """
    if not event.possible.any():
        return Decided(nobody(event, charges), method, 0.0)
    slim = fold(event, charges)
    schedule, method = _found(event, charges, slim, method, effort)
    now = np.where(config == POSTPONED, POSTPONED, slim.of[config])
    moving = restart_s * (_alone_s(event, config) + charges.delay)
    kept = stick(slim.event, slim.charges, schedule, now, node, moving)
    return Decided(slim.up(kept), method, schedule.gap)


def _alone_s(event: Event, config: Ints) -> Floats:
    """Money per second of each job in *config*, alone on its node."""
    row = np.arange(event.jobs) if len(event.share_s) == event.jobs else np.zeros(event.jobs, dtype=np.int64)
    return np.asarray(event.share_s[row, config, event.config_gpus[config]])


def _found(event: Event, charges: Charges, slim: Folded, method: str, effort: Effort) -> tuple[Schedule, str]:
    if method == "relink":
        return relink(slim.event, slim.charges, effort.tries, effort.seed), method
    tries = 1 if method == "greedy" else effort.tries
    tried = _recount(
        slim, randomised(event, charges, tries, effort.seed) if tries > 1 else greedy(event, charges)
    )
    if method in ("randomised", "greedy"):
        return tried, method
    tried = _searched(slim, tried, effort)
    if method == "search":
        return tried, method
    best = solve(slim.event, slim.charges, gap=effort.gap, time_s=effort.time_s)
    if best is None:
        return tried, "search"
    if tried.worth < best.worth:  # the solver ran out of time, or stopped at its gap
        return replace(tried, bound=best.bound), method if best.gap <= effort.gap else "search"
    return best, method


def _searched(slim: Folded, tried: Schedule, effort: Effort) -> Schedule:
    """The better of what local search makes of *tried* and of a start at which nobody has more than it needs.

    Who is late takes the fastest way, and no single move takes GPUs from it and lets another in.
    """
    least = int(slim.event.config_gpus[slim.event.possible.any(axis=0)].min(initial=1 << 30))
    frugal = randomised(at_most(slim.event, least), slim.charges, effort.tries, effort.seed)
    found = (improve(slim.event, slim.charges, start) for start in (tried, frugal))
    return min(found, key=lambda schedule: schedule.worth)


def _recount(slim: Folded, schedule: Schedule) -> Schedule:
    """*schedule* without caps, and what it then costs."""
    down = slim.down(schedule)
    return replace(down, worth=charged(slim.event, slim.charges, down))

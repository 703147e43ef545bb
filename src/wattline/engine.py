"""The one loop: wait, advance, decide, place, reconcile, apply, log."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from wattline import __version__
from wattline.core import Decision, advance, begin, check, decide_nothing, reconcile, switch
from wattline.log import Log
from wattline.messages import EVERY_EVENT, METERED, NEWS, NO_ACTIONS
from wattline.model.asked import Asked
from wattline.place.pack import Pack
from wattline.policy.chain import spell
from wattline.price import Price
from wattline.table import Ints
from wattline.types import (
    JOB,
    REASON,
    REASONS,
    Backend,
    Models,
    Placement,
    Placer,
    Policy,
    Reason,
    Snapshot,
)

_NEVER = [REASONS.index(reason) for reason in (Reason.TOO_BIG, Reason.NO_NODE, Reason.NEVER_IN_BUDGET)]
_PATIENCE = 10_000  # rounds with nobody to come, in which who asks to be asked again starts nobody
_NO_HELD = np.empty((0, 2), dtype=np.int64)


def run(
    backend: Backend,
    policy: Policy,
    models: Models | None = None,
    *,
    place: Placer | None = None,
    seed: int = 0,
    trace: Mapping[str, Any] | None = None,
    price: Price | None = None,
    progress: Callable[[float, int], None] | None = None,
) -> Log:
    """Let *policy* and *place* decide for *backend* until all jobs are done; answers the log.

    *models* is what the policy believes (default: jobs do what their trace says), *trace* and *price* (of
    energy, for reports) go into the header of the log, *progress* is called now and then with the time and
    the number of decisions.
    """
    models = Asked() if models is None else models
    place = Pack() if place is None else place
    jobs, nodes = backend.jobs, backend.nodes
    accepts = nodes.accepts(jobs.gpu_kind)
    state = begin(jobs, nodes, seed)
    decision = decide_nothing(state)
    log = Log(
        header={
            "version": __version__,
            "policy": spell(policy),
            "place": spell(place),
            "models": str(models),
            "seed": seed,
            "trace": dict(trace or {}),
            **({} if price is None else {"price": price.as_dict()}),
            **backend.describe(),
        },
        jobs=jobs,
        nodes=nodes,
    )
    tick_s, wake, rounds, quiet = math.inf, EVERY_EVENT, 0, 0
    while not (len(state.queue) == 0 and backend.idle()):
        now_s, events = backend.wait(tick_s, wake)
        if now_s == math.inf:
            break  # nothing will ever happen again: whoever is left can never run
        state = advance(state, decision, now_s, events, jobs, accepts)
        models = models.observe(events, jobs, decision.placement.leases, nodes)
        plan = policy(state, models)
        placement = place(plan, state, models)
        actions = NO_ACTIONS
        changed = placement.leases is not state.leases or placement.on is not None
        if changed or len(placement.reason) != len(state.queue):
            check(placement, state)
            actions = reconcile(state.leases, placement.leases)
        if placement.on is not None:
            actions = np.concatenate((actions, switch(state, placement.on)))
        if len(actions):
            backend.apply(actions)
        log.append(now_s, events, actions, _newly_held(state, placement), plan.gap)
        decision, tick_s = Decision(placement, actions), min(plan.tick_s, placement.tick_s)
        settled = placement.waiting == 0 and placement.on is None and not placement.unsettled
        wake = NEWS if plan.lasts and settled else EVERY_EVENT
        if plan.meters:
            wake |= {METERED}
        quiet = quiet + 1 if backend.idle() else 0
        if quiet > _PATIENCE or (quiet and not len(actions) and _nobody_ever(placement, tick_s, state)):
            break
        rounds += 1
        if progress is not None and rounds % 512 == 0:
            progress(now_s, rounds)
    log.append(state.now_s, backend.close(), NO_ACTIONS, _NO_HELD)
    return log


def _nobody_ever(placement: Placement, tick_s: float, state: Snapshot) -> bool:
    """Whether, on an empty cluster, nobody who is left will ever start."""
    if np.isin(placement.reason, _NEVER).all():
        return True
    return tick_s == math.inf and bool(state.usable.all()) and not np.isfinite(state.wakes_s).any()


def _newly_held(state: Snapshot, placement: Placement) -> Ints:
    """Jobs that wait for another reason than before, with the number of that reason."""
    if placement.waiting == 0:
        return _NO_HELD
    reason, block = placement.reason, state.queue.block
    rows = np.flatnonzero((reason != block[REASON]) & (reason != 0))
    if not len(rows):
        return _NO_HELD
    held = np.empty((len(rows), 2), dtype=np.int64)
    held[:, 0], held[:, 1] = block[JOB, rows], reason[rows]
    return held

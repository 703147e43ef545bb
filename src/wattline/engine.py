"""The one loop: wait, advance, decide, place, reconcile, apply, log."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from wattline import __version__
from wattline.core import Decision, advance, begin, check, decide_nothing, reconcile
from wattline.log import Log
from wattline.messages import FAILED, FINISHED, NO_ACTIONS, RAN, STOPPED, Event
from wattline.model.asked import Asked
from wattline.place.pack import Pack
from wattline.policy.chain import spell
from wattline.types import (
    REASON,
    REASONS,
    Backend,
    Ints,
    Models,
    Placement,
    Placer,
    Policy,
    Reason,
    Snapshot,
)

_QUIET = frozenset((RAN, STOPPED, FINISHED, FAILED))  # nobody came, nobody has to be placed again
_TOO_BIG = REASONS.index(Reason.TOO_BIG)
_NO_HELD = np.empty((0, 2), dtype=np.int64)


def run(
    backend: Backend,
    policy: Policy,
    models: Models | None = None,
    *,
    place: Placer | None = None,
    seed: int = 0,
    trace: Mapping[str, Any] | None = None,
    progress: Callable[[float, int], None] | None = None,
) -> Log:
    """Let *policy* and *place* decide for *backend* until all jobs are done; answers the log.

    *models* is what the policy believes (default: jobs do what their trace says), *trace* goes into
    the header of the log, *progress* is called now and then with the time and the number of decisions.
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
            **backend.describe(),
        },
        jobs=jobs,
        nodes=nodes,
    )
    now_s, tick_s = 0.0, math.inf
    settled = False  # everybody has what the plan grants, and it lasts when jobs end
    since: list[Event] = []  # what happened since the last decision
    rounds = 0
    while not (backend.idle() and (settled or len(state.queue) == 0)):
        woken_s, events = backend.wait(tick_s)
        if woken_s == math.inf:
            break  # nothing will ever happen again: whoever is left can never run
        now_s = woken_s
        since += events
        if settled and now_s < tick_s and all(event[0] in _QUIET for event in events):
            log.append(now_s, events, NO_ACTIONS, _NO_HELD)
            continue
        state = advance(state, decision, now_s, since, jobs, accepts)
        models = models.observe(since)
        since = []
        plan = policy(state, models)
        placement = place(plan, state, models)
        actions = NO_ACTIONS
        if placement.leases is not state.leases:
            check(placement.leases, state)
            actions = reconcile(state.leases, placement.leases)
            backend.apply(actions)
        log.append(now_s, events, actions, _newly_held(state, placement))
        decision, tick_s = Decision(placement, actions), plan.tick_s
        settled = plan.lasts and placement.waiting == 0
        if not len(actions) and backend.idle() and _nobody_ever(placement, tick_s, state):
            break
        rounds += 1
        if progress is not None and rounds % 512 == 0:
            progress(now_s, rounds)
    log.append(now_s, backend.close(), NO_ACTIONS, _NO_HELD)
    return log


def _nobody_ever(placement: Placement, tick_s: float, state: Snapshot) -> bool:
    """Whether, on an empty cluster, nobody who is left will ever start."""
    if (placement.reason == _TOO_BIG).all():
        return True
    return tick_s == math.inf and bool(state.up.all())


def _newly_held(state: Snapshot, placement: Placement) -> Ints:
    """Jobs that wait for another reason than before, with the number of that reason."""
    if placement.waiting == 0:
        return _NO_HELD
    rows = np.flatnonzero(placement.reason != state.queue.block[REASON])
    rows = rows[placement.reason[rows] != 0]
    return np.column_stack((state.queue.job[rows], placement.reason[rows]))

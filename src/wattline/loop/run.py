"""The one loop: wait, advance, decide, place, reconcile, apply, log."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from wattline import __version__
from wattline.core.actions import NO_ACTIONS, Actions
from wattline.core.events import ARRIVED, EVERY_EVENT, METERED, NEWS, Event, Events, rows
from wattline.core.leases import Leases
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Backend, Models, Placer, Policy
from wattline.core.queue import JOB, REASON
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Ints
from wattline.energy.prices import Price
from wattline.loop.check import check
from wattline.loop.reconcile import reconcile, switch
from wattline.loop.runlog import Log, begins_words
from wattline.loop.state import Decision, advance, begin, decide_nothing
from wattline.models.trace_model import Asked
from wattline.placement.pack import Pack
from wattline.policy.chain import spell

_NEVER = [REASONS.index(reason) for reason in (Reason.TOO_BIG, Reason.NO_NODE, Reason.NEVER_IN_BUDGET)]
_PATIENCE = 10_000  # rounds with nobody to come, in which who asks to be asked again starts nobody
_NO_HELD = np.empty((0, 2), dtype=np.int64)


class Turn(NamedTuple):
    """One turn of the loop: what was known, what happened, what was decided and done."""

    state: Snapshot
    events: Events
    plan: Plan
    placement: Placement
    actions: Actions
    held: Ints  # rows (job, number of the reason): who waits for another reason than before


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
    begins: Snapshot | None = None,
) -> Log:
    """Let *policy* and *place* decide for *backend* until all jobs are done; answers the log.

    *models* is what the policy believes (default: jobs do what their trace says), *trace* and *price* (of
    energy, for reports) go into the header of the log, *progress* is called now and then with the time and
    the number of decisions. With *begins* it goes on from there, see `turns`.
    """
    models = Asked() if models is None else models
    place = Pack() if place is None else place
    log = Log(header(backend, policy, models, place, seed, trace, price, begins), backend.jobs, backend.nodes)
    now_s = 0.0
    if begins is not None:
        now_s = begins.now_s
        log.append(now_s, *first_round(begins))
    for number, turn in enumerate(turns(backend, policy, models, place, begins or seed), 1):
        now_s = turn.state.now_s
        log.append(now_s, turn.events, turn.actions, turn.held, turn.plan.gap)
        if progress is not None and number % 512 == 0:
            progress(now_s, number)
    log.jobs = backend.jobs
    log.append(now_s, backend.close(), NO_ACTIONS, _NO_HELD)
    return log


def turns(
    backend: Backend, policy: Policy, models: Models, place: Placer, begins: Snapshot | int = 0
) -> Iterator[Turn]:
    """The loop itself, turn by turn: who asks for the next one lets it go on.

    It *begins* with nobody there (and this seed), or with who is there already: those jobs have arrived, and
    those leases are held, whatever policy gave them.
    """
    jobs, nodes = backend.jobs, backend.nodes
    accepts = nodes.accepts(jobs.gpu_kind)
    state = begins if isinstance(begins, Snapshot) else begin(jobs, nodes, begins)
    decision = decide_nothing(state)
    tick_s, wake, quiet = -math.inf if len(state.queue) else math.inf, EVERY_EVENT, 0
    while not (len(state.queue) == 0 and backend.idle()):
        now_s, events = backend.wait(tick_s, wake)
        if now_s == math.inf:
            break  # nothing will ever happen again: whoever is left can never run
        if backend.jobs is not jobs:  # somebody came whom nobody expected
            jobs = backend.jobs
            accepts = nodes.accepts(jobs.gpu_kind)
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
        yield Turn(state, events, plan, placement, actions, _newly_held(state, placement))
        decision, tick_s = Decision(placement, actions), min(plan.tick_s, placement.tick_s)
        settled = placement.waiting == 0 and placement.on is None and not placement.unsettled
        wake = NEWS if plan.lasts and settled else EVERY_EVENT
        if plan.meters:
            wake |= {METERED}
        quiet = quiet + 1 if backend.idle() else 0
        if quiet > _PATIENCE or (quiet and not len(actions) and _nobody_ever(placement, tick_s, state)):
            break


def header(
    backend: Backend,
    policy: Policy,
    models: Models,
    place: Placer,
    seed: int,
    trace: Mapping[str, Any] | None = None,
    price: Price | None = None,
    begins: Snapshot | None = None,
) -> dict[str, Any]:
    """What a log says of itself before its first round: enough to decide all of it again."""
    return {
        "version": __version__,
        "policy": spell(policy),
        "place": spell(place),
        "models": str(models),
        "seed": seed,
        "trace": dict(trace or {}),
        **({} if price is None else {"price": price.as_dict()}),
        **({} if begins is None else {"begins": begins_words(begins)}),
        **backend.describe(),
    }


def first_round(begins: Snapshot) -> tuple[Events, Actions, Ints]:
    """The round in which a log tells who was there: they arrive, and start on what they hold."""
    queue = begins.queue.job.tolist()
    arrived = rows(*(Event(ARRIVED, job, float(begins.jobs.submit_s[job])) for job in queue))
    return arrived, reconcile(Leases.of((), (), (), ()), begins.leases), _NO_HELD


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

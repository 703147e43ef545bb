"""The scheduling loop: wait, advance, decide, place, reconcile, apply, log."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from wattline import __version__
from wattline.core.actions import NO_ACTIONS, Actions
from wattline.core.events import ARRIVED, METERED, START_EVENTS, WAKE_EVENTS, Event, Events, build_events
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Backend, Models, Placer, Policy
from wattline.core.queue import QUEUE_ACCEPTED_KINDS, QUEUE_JOB, QUEUE_REASON
from wattline.core.quotas import NO_QUOTAS, Quotas
from wattline.core.reasons import NEVER_BY_RULES, REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Ints
from wattline.core.usage import Usage
from wattline.energy.prices import Price
from wattline.loop.check import check_placement
from wattline.loop.log_writer import encode_initial_state
from wattline.loop.protection import find_protected_rows, keep_leases, restore_leases
from wattline.loop.reconcile import reconcile, switch_nodes
from wattline.loop.runlog import Log
from wattline.loop.state import Decision, advance, build_empty_decision, build_empty_state
from wattline.models.durations.estimates import DurationEstimates, EstimateBuilder
from wattline.models.trace_model import TraceModels
from wattline.placement.pack import Pack
from wattline.policy.chain import spell

_PERMANENT = [
    REASONS.index(reason)
    for reason in (Reason.TOO_BIG, Reason.NO_NODE, Reason.NEVER_IN_BUDGET, *NEVER_BY_RULES)
]
_TOO_BIG, _NO_KIND, _HELD_BY_OTHERS = (
    REASONS.index(reason) for reason in (Reason.TOO_BIG, Reason.NO_KIND, Reason.HELD_BY_OTHERS)
)
_MAX_IDLE_ROUNDS = 10_000  # idle rounds without progress before giving up
_NO_REASONS = np.empty((0, 2), dtype=np.int64)


class LoopStep(NamedTuple):
    """One step of the loop: the state, the events that led to it, the decision and its actions."""

    state: Snapshot
    events: Events
    plan: Plan
    placement: Placement
    actions: Actions
    wait_reasons: Ints  # columns job, index in `REASONS`: jobs that wait for another reason than before


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
    initial_state: Snapshot | None = None,
    quotas: Quotas | None = None,
    durations: EstimateBuilder | None = None,
    assumptions: Sequence[Mapping[str, Any]] = (),
) -> Log:
    """Run *policy* and *place* on *backend* until all jobs have ended; return the log.

    *models* are the policy's predictions (default: jobs behave as their trace records). *trace* and *price*
    (of energy, for reports) go into the header of the log. *progress* is called every 512 decisions with the
    time and their number. *initial_state* is the state to start from, see `iterate`. *quotas* limit users and
    teams if the policy has the stage `quota`; None: those of *initial_state*, or of a replayed log.
    *durations* builds the estimates that policies see instead of the true durations; None: they see the
    truth. *assumptions* go into the header.
    """
    models = TraceModels() if models is None else models
    place = Pack() if place is None else place
    if quotas is None:
        quotas = getattr(backend, "quotas", NO_QUOTAS) if initial_state is None else initial_state.quotas
    log = Log(
        build_header(backend, policy, models, place, seed, trace, price, initial_state, quotas),
        backend.jobs,
        backend.nodes,
    )
    if assumptions:
        log.header["assumptions"] = [dict(assumption) for assumption in assumptions]
    estimates = None if durations is None else durations(backend.jobs)
    now_s = 0.0
    if initial_state is not None:
        now_s = initial_state.now_s
        log.append(now_s, *build_first_round(initial_state))
    steps = iterate(backend, policy, models, place, initial_state or seed, quotas, estimates)
    for number, step in enumerate(steps, 1):
        now_s = step.state.now_s
        has_note = step.plan.note is not None
        log.append(
            now_s,
            step.events,
            step.actions,
            step.wait_reasons,
            step.plan.gap,
            has_note,
            step.plan.prices,
        )
        if progress is not None and number % 512 == 0:
            progress(now_s, number)
    log.jobs = backend.jobs
    if estimates is not None:
        log.header["durations"] = estimates.describe()
    log.append(now_s, backend.close(), NO_ACTIONS, _NO_REASONS)
    return log


def iterate(
    backend: Backend,
    policy: Policy,
    models: Models,
    place: Placer,
    initial_state: Snapshot | int = 0,
    quotas: Quotas | None = None,
    estimates: DurationEstimates | None = None,
) -> Iterator[LoopStep]:
    """Iterate over the steps of the loop; the loop continues when the next step is requested.

    *initial_state* is the state to start from, with jobs that have arrived and leases that are held; or the
    seed of an empty one. *quotas* replace those of the state. GPU time of users and teams is recorded if the
    state has a record to go on from, or the policy needs one. With *estimates*, which only a backend with a
    constant table of jobs can have, policies and placers see those instead of the true work.
    """
    jobs, nodes = backend.jobs if estimates is None else estimates.jobs, backend.nodes
    accepts = nodes.accepted_kinds(jobs.gpu_kind)
    state = (
        initial_state
        if isinstance(initial_state, Snapshot)
        else build_empty_state(jobs, nodes, initial_state)
    )
    state = state if quotas is None else replace(state, quotas=quotas)
    if state.usage is None and getattr(policy, "needs_usage", False):
        state = replace(state, usage=Usage.empty(state.now_s))
    decision, note = build_empty_decision(state), state.note
    next_decision_s, wake, idle_rounds = -math.inf if len(state.queue) else math.inf, WAKE_EVENTS, 0
    while not (len(state.queue) == 0 and backend.is_idle()):
        now_s, events = backend.wait(next_decision_s, wake)
        if now_s == math.inf:
            break  # no event can come any more: the remaining jobs can never run
        if estimates is not None:
            estimates.observe(events)
        elif backend.jobs is not jobs:  # jobs were submitted to a service
            jobs = backend.jobs
            accepts = nodes.accepted_kinds(jobs.gpu_kind)
        state = advance(state, decision, now_s, events, jobs, accepts)
        if estimates is not None:
            estimates.extend(state)
            state = replace(state, estimates=estimates.record)
        if note is not state.note:
            state = replace(state, note=note)
        models = models.observe(events, jobs, decision.placement.leases, nodes)
        plan = policy(state, models)
        note = plan.note
        protected = find_protected_rows(plan, state)
        plan = plan if protected is None else keep_leases(plan, state, protected)
        placement = place(plan, state, models)
        if protected is not None:
            placement = restore_leases(placement, plan, state, protected)
        if state.nodes is not nodes:
            placement = _name_others(placement, state, nodes)
        actions = NO_ACTIONS
        changed = placement.leases is not state.leases or placement.powered_on is not None
        if changed or len(placement.reason) != len(state.queue):
            check_placement(placement, state)
            actions = reconcile(state.leases, placement.leases)
        if placement.powered_on is not None:
            actions = np.concatenate((actions, switch_nodes(state, placement.powered_on)))
        if len(actions):
            backend.apply(actions)
        yield LoopStep(state, events, plan, placement, actions, _find_new_reasons(state, placement))
        decision, next_decision_s = (
            Decision(placement, actions),
            min(plan.next_decision_s, placement.next_decision_s),
        )
        all_placed = placement.waiting == 0 and placement.powered_on is None and not placement.host_limited
        wake = START_EVENTS if plan.stable and all_placed else WAKE_EVENTS
        if plan.needs_meter:
            wake |= {METERED}
        idle_rounds = idle_rounds + 1 if backend.is_idle() else 0
        stuck = idle_rounds > 0 and not len(actions) and _can_never_start(placement, next_decision_s, state)
        if stuck or idle_rounds > _MAX_IDLE_ROUNDS:
            break


def build_header(
    backend: Backend,
    policy: Policy,
    models: Models,
    place: Placer,
    seed: int,
    trace: Mapping[str, Any] | None = None,
    price: Price | None = None,
    initial_state: Snapshot | None = None,
    quotas: Quotas = NO_QUOTAS,
) -> dict[str, Any]:
    """Return the header of a log: enough to repeat all decisions of the run."""
    return {
        "version": __version__,
        "policy": spell(policy),
        "place": spell(place),
        "models": str(models),
        "seed": seed,
        "trace": dict(trace or {}),
        **({} if price is None else {"price": price.as_dict()}),
        **({} if initial_state is None else {"initial_state": encode_initial_state(initial_state)}),
        **backend.describe(),
        **({"quotas": quotas.as_list()} if quotas.rules else {}),
    }


def build_first_round(initial_state: Snapshot) -> tuple[Events, Actions, Ints]:
    """Return the first round of a log that has an *initial_state*: jobs arrive and start on their leases."""
    queue = initial_state.queue.job.tolist()
    arrived = build_events(*(Event(ARRIVED, job, float(initial_state.jobs.submit_s[job])) for job in queue))
    return arrived, reconcile(Leases.of((), (), (), ()), initial_state.leases), _NO_REASONS


def _can_never_start(placement: Placement, next_decision_s: float, state: Snapshot) -> bool:
    """Return True if none of the remaining jobs can start on the empty cluster, now or later."""
    if np.isin(placement.reason, _PERMANENT).all():
        return True
    return (
        next_decision_s == math.inf and bool(state.usable.all()) and not np.isfinite(state.boot_done_s).any()
    )


def _name_others(placement: Placement, state: Snapshot, nodes: Nodes) -> Placement:
    """Return *placement* with its own reason for jobs that are too big only for what others leave."""
    kinds = np.arange(len(nodes.kind.names))
    room = np.bincount(nodes.kind.codes, nodes.gpus, len(kinds))
    accepts = (state.queue.block[QUEUE_ACCEPTED_KINDS].astype(np.int64)[:, None] >> kinds) & 1 == 1
    fits = (accepts & (state.queue.requested_gpus[:, None] <= room)).any(axis=1)
    others = (placement.reason == _TOO_BIG) & fits
    if not others.any():
        return placement
    return replace(placement, reason=np.where(others, _HELD_BY_OTHERS, placement.reason))


def _find_new_reasons(state: Snapshot, placement: Placement) -> Ints:
    """Return the jobs that wait for another reason than before, and the index of that reason."""
    if placement.waiting == 0:
        return _NO_REASONS
    reason, block = placement.reason, state.queue.block
    rows = np.flatnonzero((reason != block[QUEUE_REASON]) & (reason != 0))
    if not len(rows):
        return _NO_REASONS
    held = np.empty((len(rows), 2), dtype=np.int64)
    held[:, 0], held[:, 1] = block[QUEUE_JOB, rows], reason[rows]
    # Policies and placers count GPUs of accepted kinds: none at all is too few for any job.
    held[(held[:, 1] == _TOO_BIG) & (block[QUEUE_ACCEPTED_KINDS, rows] == 0), 1] = _NO_KIND
    return held

"""A snapshot as an event: what each job would take and cost on each sort of node, by what models believe."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import ACCEPTS
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.energy.prices import Price
from wattline.models.configurations import Menu, menu, with_own_batch
from wattline.optimize.instance import POSTPONED, Event, Schedule, with_pauses

_FAR_S = 30 * 86400.0  # prices are not looked at further ahead
_LEAST_S = 1e-3  # who is nearly done still takes something


@dataclass(frozen=True, eq=False)
class Moment:
    """An event of the rows of a queue, and what its numbers mean.

    *nodes* has by sort the rows of the cluster's nodes, those that are up first. *config* and *node* are what
    each job has now.
    """

    event: Event
    nodes: tuple[Ints, ...]
    cap_w: Ints  # by configuration
    config: Ints
    node: Ints
    ever: Bools  # which jobs fit on some node, be it up or not


@dataclass(frozen=True)
class Terms:
    """On what terms a snapshot is looked at.

    *restart_s* is what it takes to move a job that has run. Whether nodes that nobody uses are *off* decides
    if the first job of a node pays for waking it. Without *caps* nobody gets one. Who is late pays
    `late_per_h`, or, if it says nothing, *urgency* times what its energy usually costs in that time; who has
    no deadline is taken to have one *patience* times its run time after its submission.
    """

    price: Price
    restart_s: float
    off: bool
    caps: bool
    urgency: float
    patience: float


def moment(snapshot: Snapshot, models: Models, rows: Ints, terms: Terms) -> Moment:
    """What there is to decide for *rows* of the queue."""
    nodes, jobs = snapshot.nodes, snapshot.jobs
    ways = menu(models, with_own_batch(jobs), nodes)
    job = snapshot.queue.job[rows]
    work_s = np.maximum(snapshot.steps_left[rows] * jobs.step_s[job], _LEAST_S)
    sort = _sorts(snapshot)
    members = tuple(_awake_first(snapshot, np.flatnonzero(sort == s)) for s in range(int(sort.max()) + 1))
    example = np.array([rows_of_sort[0] for rows_of_sort in members])
    kind, gpus = nodes.kind.codes[example], nodes.gpus[example]
    per_j = terms.price.at(snapshot.now_s)[0]
    blocks = [
        _of_sort(ways, job, work_s, int(kind[s]), int(gpus[s]), float(nodes.idle_w[example[s]]), terms.caps)
        for s in range(len(members))
    ]
    accepts = (snapshot.queue.block[ACCEPTS, rows].astype(np.int64)[:, None] >> kind) & 1 == 1
    left_s = np.concatenate(
        [np.where(accepts[:, s : s + 1], block.left_s, np.inf) for s, block in enumerate(blocks)], axis=1
    )
    config_sort = np.repeat(np.arange(len(members)), [len(block.gpus) for block in blocks])
    config_gpus = np.concatenate([block.gpus for block in blocks])
    now, place = _now(snapshot, rows, sort, members, config_sort, config_gpus)
    cost_s = np.zeros((len(members), int(gpus.max()) + 1))
    if terms.off:
        cost_s[:, 1:] = per_j * np.maximum(nodes.rest_w - nodes.off_w, 0.0)[example, None]
    due_s, late, has_due = _due(snapshot, rows, terms)
    event = Event(
        now_s=snapshot.now_s,
        nodes=np.array([int(snapshot.usable[of].sum()) for of in members], dtype=np.int64),
        gpus=gpus,
        cost_s=cost_s,
        config_sort=config_sort,
        config_gpus=config_gpus,
        left_s=left_s,
        due_s=due_s,
        late=late,
        stands_s=terms.price.at(snapshot.now_s)[1] - snapshot.now_s,
        own_s=per_j * np.concatenate([block.more_w for block in blocks], axis=1),
    )
    event = with_pauses(event, now, ~np.isnan(snapshot.queue.first_s[rows]), terms.restart_s)
    if terms.price.changes:
        event = _with_later(event, terms.price, has_due)
    ever = (np.isfinite(left_s) & (config_gpus <= gpus[config_sort])).any(axis=1)
    return Moment(event, members, np.concatenate([block.cap_w for block in blocks]), now, place, ever)


@dataclass(frozen=True, eq=False)
class _Block:
    """The configurations of one sort of node."""

    gpus: Ints
    cap_w: Ints
    left_s: Floats
    more_w: Floats  # than its GPUs draw without a job


def _of_sort(
    ways: Menu, job: Ints, work_s: Floats, kind: int, room: int, idle_w: float, capped: bool
) -> _Block:
    row = ways.sort[job, kind]
    sizes, counts = ways.gpus[row], np.arange(ways.gpus.shape[1]) < ways.sizes[row][:, None]
    wanted = np.unique(sizes[counts & (sizes <= room)])
    caps = ways.cap_w[ways.sort[0, kind], 0]
    level = [*np.flatnonzero(capped & (caps > 0)).tolist(), len(caps) - 1]  # the last is none
    gpus, cap_w = np.repeat(wanted, len(level)), np.tile(caps[level], len(wanted))
    left_s, more_w = np.empty((len(job), len(gpus))), np.zeros((len(job), len(gpus)))
    for k, size in enumerate(wanted.tolist()):
        has = counts & (sizes == size)
        at = np.argmax(has, axis=1)
        here = slice(k * len(level), (k + 1) * len(level))
        speed = ways.speed[row, at][:, level]
        fits = has.any(axis=1)[:, None] & (speed > 0)
        left_s[:, here] = np.where(fits, work_s[:, None] / np.where(fits, speed, 1.0), np.inf)
        more_w[:, here] = np.where(fits, ways.watts[row, at][:, level] - size * idle_w, 0.0)
    return _Block(gpus, cap_w, left_s, np.maximum(more_w, 0.0))


def _sorts(snapshot: Snapshot) -> Ints:
    """Nodes that are interchangeable have the same number."""
    nodes = snapshot.nodes
    watts = (nodes.base_w, nodes.idle_w, nodes.busy_w, nodes.off_w)
    columns = np.stack((nodes.kind.codes, nodes.gpus, *(w.view(np.int64) for w in watts)), axis=1)
    _, sort = np.unique(columns, axis=0, return_inverse=True)
    return np.asarray(sort.reshape(-1).astype(np.int64))


def _awake_first(snapshot: Snapshot, rows: Ints) -> Ints:
    """Nodes that are up, then those that are up soon, then those that are broken."""
    broken = ~snapshot.usable[rows]
    return rows[np.lexsort((rows, snapshot.wakes_s[rows], broken))]


def _now(
    snapshot: Snapshot,
    rows: Ints,
    sort: Ints,
    members: tuple[Ints, ...],
    config_sort: Ints,
    config_gpus: Ints,
) -> tuple[Ints, Ints]:
    """What each of *rows* has now: configuration and number of the node in its sort; POSTPONED: nothing, or
    what it could not be given again."""
    leases, job = snapshot.leases, snapshot.queue.job[rows]
    config = np.full(len(rows), POSTPONED, dtype=np.int64)
    node = np.full(len(rows), -1, dtype=np.int64)
    number = np.empty(len(sort), dtype=np.int64)
    for of in members:
        number[of] = np.arange(len(of))
    first = np.searchsorted(leases.job, job)
    many = np.searchsorted(leases.job, job, side="right") - first
    for i in np.flatnonzero(many == 1).tolist():
        lease = first[i]
        at = int(leases.node[lease])
        same = np.flatnonzero((config_sort == sort[at]) & (config_gpus == leases.gpus[lease]))
        if len(same) and leases.group[lease] == job[i]:
            config[i], node[i] = same[-1], number[at]
    return config, node


def _due(snapshot: Snapshot, rows: Ints, terms: Terms) -> tuple[Floats, Floats, Bools]:
    """When each is due, what a second late costs, and whether its owner said when it is due."""
    jobs, job = snapshot.jobs, snapshot.queue.job[rows]
    deadline_s = jobs.deadline_s[job]
    said = np.isfinite(deadline_s)
    usual_s = jobs.submit_s[job] + terms.patience * jobs.duration_s[job]
    watts = jobs.gpus[job] * float(snapshot.nodes.busy_w.max())
    per_j = terms.price.usual
    priced = said & (jobs.late_per_h[job] > 0)
    late = np.where(priced, jobs.late_per_h[job] / 3600, terms.urgency * per_j * watts)
    return np.where(said, deadline_s, usual_s), late, said


def _with_later(event: Event, price: Price, has_due: Bools) -> Event:
    """*event*, with what energy will cost when each job should do the last of its work: the dearest of the
    cheapest hours that it needs, of those before it is due. Who needs this hour too has no reason to wait."""
    later = np.ones(event.jobs)
    last_s = min(float(event.due_s[has_due].max(initial=event.now_s)), event.now_s + _FAR_S)
    if last_s <= event.now_s:
        return replace(event, later=later)
    edges_s, prices = price.pieces(event.now_s, last_s)
    takes_s = np.where(np.isfinite(event.slowest_s), event.slowest_s, 0.0)
    takes_s = takes_s * max(1.0, event.jobs / max(1, event.total_gpus))
    for j in np.flatnonzero(has_due & np.isfinite(event.fastest_s)).tolist():
        lasts_s = np.diff(np.minimum(edges_s, event.due_s[j]))
        order = np.argsort(prices, kind="stable")
        enough = np.searchsorted(np.cumsum(lasts_s[order]), takes_s[j])
        if enough < len(order) and prices[order[enough]] < prices[0]:
            later[j] = prices[order[enough]] / prices[0]
    return replace(event, later=later)


def plan_of(at: Moment, rows: Ints, schedule: Schedule, reason: Ints) -> Plan:
    """The plan that gives each of *rows* its configuration, on the node with that number of its sort."""
    runs = np.flatnonzero(schedule.config != POSTPONED)
    config = schedule.config[runs]
    sort = at.event.config_sort[config]
    node = np.array(
        [at.nodes[s][n] for s, n in zip(sort.tolist(), schedule.node[runs].tolist(), strict=True)],
        dtype=np.int64,
    )
    return Plan(
        row=rows[runs],
        gpus=at.event.config_gpus[config],
        group=rows[runs],
        cap_w=at.cap_w[config],
        reason=reason,
        node=node,
    )

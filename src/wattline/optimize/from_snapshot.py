"""Conversion of a snapshot into an instance, and of an assignment into a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from wattline.core.nodes import Nodes
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_ACCEPTED_KINDS
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.energy.prices import Price
from wattline.models.configurations import Configurations, build_configurations, with_fixed_batch
from wattline.optimize.instance import POSTPONED, Assignment, Instance, add_restart_pauses

_FAR_S = 30 * 86400.0  # prices are not looked at further ahead
_LEAST_S = 1e-3  # remaining work of a job that is nearly done


@dataclass(frozen=True, eq=False)
class SnapshotInstance:
    """An instance of the rows of a queue, and the meaning of its numbers."""

    instance: Instance
    nodes: tuple[Ints, ...]  # by node type: rows of the cluster's nodes, those that are up first
    cap_w: Ints  # by configuration
    config: Ints  # by job: its present configuration
    node: Ints  # by job: its present node, counted within the type
    fits_somewhere: Bools  # by job, on a node that is up or not


@dataclass(frozen=True)
class Terms:
    """Assumptions under which a snapshot becomes an instance.

    *restart_s* is the time that moving a job takes once it has run. If idle nodes are *off*, the first job
    of a node pays for its idle draw. Without *caps* no job gets one. A late job pays `late_per_h`, or, if
    that is unset, *urgency* times the mean cost of its energy in that time. A job without deadline is due
    *patience* times its run time after its submission.
    """

    price: Price
    restart_s: float
    off: bool
    caps: bool
    urgency: float
    patience: float


def build_instance(snapshot: Snapshot, models: Models, rows: Ints, terms: Terms) -> SnapshotInstance:
    """Return the instance of *rows* of the queue."""
    nodes, jobs = snapshot.nodes, snapshot.jobs
    configs = build_configurations(models, with_fixed_batch(jobs), nodes)
    job = snapshot.queue.job[rows]
    work_s = np.maximum(snapshot.steps_left[rows] * jobs.step_s[job], _LEAST_S)
    node_type = _number_node_types(nodes)
    members = tuple(
        _order_by_state(snapshot, np.flatnonzero(node_type == s)) for s in range(int(node_type.max()) + 1)
    )
    example = np.array([rows_of_type[0] for rows_of_type in members])
    kind, gpus = nodes.kind.codes[example], nodes.gpus[example]
    per_j = terms.price.at(snapshot.now_s)[0]
    blocks = [
        _build_block(
            configs, job, work_s, int(kind[s]), int(gpus[s]), float(nodes.idle_w[example[s]]), terms.caps
        )
        for s in range(len(members))
    ]
    accepts = (snapshot.queue.block[QUEUE_ACCEPTED_KINDS, rows].astype(np.int64)[:, None] >> kind) & 1 == 1
    left_s = np.concatenate(
        [np.where(accepts[:, s : s + 1], block.left_s, np.inf) for s, block in enumerate(blocks)], axis=1
    )
    config_node_type = np.repeat(np.arange(len(members)), [len(block.gpus) for block in blocks])
    config_gpus = np.concatenate([block.gpus for block in blocks])
    now, place = _find_present(snapshot, rows, node_type, members, config_node_type, config_gpus)
    cost_per_s = np.zeros((len(members), int(gpus.max()) + 1))
    if terms.off:
        cost_per_s[:, 1:] = per_j * np.maximum(nodes.idle_node_w - nodes.off_w, 0.0)[example, None]
    due_s, late, has_due = _compute_due(snapshot, rows, terms)
    instance = Instance(
        now_s=snapshot.now_s,
        node_counts=np.array([int(snapshot.usable[of].sum()) for of in members], dtype=np.int64),
        gpus=gpus,
        cost_per_s=cost_per_s,
        config_node_type=config_node_type,
        config_gpus=config_gpus,
        left_s=left_s,
        due_s=due_s,
        late_per_s=late,
        valid_s=terms.price.at(snapshot.now_s)[1] - snapshot.now_s,
        own_cost_per_s=per_j * np.concatenate([block.more_w for block in blocks], axis=1),
    )
    instance = add_restart_pauses(
        instance, now, ~np.isnan(snapshot.queue.first_start_s[rows]), terms.restart_s
    )
    if terms.price.is_variable:
        instance = _add_later_prices(instance, terms.price, has_due)
    fits_somewhere = (np.isfinite(left_s) & (config_gpus <= gpus[config_node_type])).any(axis=1)
    cap_w = np.concatenate([block.cap_w for block in blocks])
    return SnapshotInstance(instance, members, cap_w, now, place, fits_somewhere)


@dataclass(frozen=True, eq=False)
class _Block:
    """Configurations of one type of node."""

    gpus: Ints
    cap_w: Ints
    left_s: Floats
    more_w: Floats  # draw beyond that of its GPUs without a job


def _build_block(
    configs: Configurations, job: Ints, work_s: Floats, kind: int, room: int, idle_w: float, capped: bool
) -> _Block:
    """Return the configurations of a node type with *room* GPUs of *kind*, by job and configuration."""
    from wattline.optimize.times_and_draws import compute_times_and_draws  # takes long to compile

    row = configs.job_class[job, kind]
    sizes, counts = configs.gpus[row], np.arange(configs.gpus.shape[1]) < configs.size_count[row][:, None]
    wanted = np.unique(sizes[counts & (sizes <= room)])
    caps = configs.cap_w[configs.job_class[0, kind], 0]
    level = [*np.flatnonzero(capped & (caps > 0)).tolist(), len(caps) - 1]  # the last is none
    gpus, cap_w = np.repeat(wanted, len(level)), np.tile(caps[level], len(wanted))
    left_s, more_w = compute_times_and_draws(
        np.ascontiguousarray(sizes),
        np.ascontiguousarray(configs.size_count[row]),
        np.ascontiguousarray(configs.speed),
        np.ascontiguousarray(configs.watts),
        np.ascontiguousarray(row),
        work_s,
        wanted,
        np.array(level, dtype=np.int64),
        idle_w,
    )
    return _Block(gpus, cap_w, left_s, more_w)


@lru_cache(maxsize=4)
def _number_node_types(nodes: Nodes) -> Ints:
    """Return a number for each node, the same for interchangeable ones."""
    watts = (nodes.base_w, nodes.idle_w, nodes.busy_w, nodes.off_w)
    columns = np.stack((nodes.kind.codes, nodes.gpus, *(w.view(np.int64) for w in watts)), axis=1)
    _, node_type = np.unique(columns, axis=0, return_inverse=True)
    return np.asarray(node_type.reshape(-1).astype(np.int64))


def _order_by_state(snapshot: Snapshot, rows: Ints) -> Ints:
    """Return *rows* of nodes in the order up, booting (by time), off, broken."""
    broken = ~snapshot.usable[rows]
    return rows[np.lexsort((rows, snapshot.boot_done_s[rows], broken))]


def _find_present(
    snapshot: Snapshot,
    rows: Ints,
    node_type: Ints,
    members: tuple[Ints, ...],
    config_node_type: Ints,
    config_gpus: Ints,
) -> tuple[Ints, Ints]:
    """Return configuration and node, counted within its type, that each of *rows* has now.

    POSTPONED: nothing, or a lease that no configuration stands for.
    """
    leases, job = snapshot.leases, snapshot.queue.job[rows]
    config = np.full(len(rows), POSTPONED, dtype=np.int64)
    node = np.full(len(rows), -1, dtype=np.int64)
    number = np.empty(len(node_type), dtype=np.int64)
    for of in members:
        number[of] = np.arange(len(of))
    most = max(int(config_gpus.max(initial=0)), int(leases.gpus.max(initial=0)))
    uncapped = np.full((len(members), most + 1), POSTPONED, dtype=np.int64)
    uncapped[config_node_type, config_gpus] = np.arange(len(config_gpus))  # the last of equals has no cap
    first = np.searchsorted(leases.job, job)
    many = np.searchsorted(leases.job, job, side="right") - first
    single = np.flatnonzero(many == 1)
    lease = first[single]
    single, lease = (column[leases.group[lease] == job[single]] for column in (single, lease))
    at = leases.node[lease]
    config[single] = uncapped[node_type[at], leases.gpus[lease]]
    node[single] = np.where(config[single] == POSTPONED, -1, number[at])
    return config, node


def _compute_due(snapshot: Snapshot, rows: Ints, terms: Terms) -> tuple[Floats, Floats, Bools]:
    """Return when each row is due, the cost of a second late, and whether its deadline was given."""
    jobs, job = snapshot.jobs, snapshot.queue.job[rows]
    deadline_s = jobs.deadline_s[job]
    has_due = np.isfinite(deadline_s)
    default_s = jobs.submit_s[job] + terms.patience * jobs.duration_s[job]
    watts = jobs.gpus[job] * float(snapshot.nodes.busy_w.max())
    per_j = terms.price.mean_per_j
    priced = has_due & (jobs.late_per_h[job] > 0)
    late = np.where(priced, jobs.late_per_h[job] / 3600, terms.urgency * per_j * watts)
    return np.where(has_due, deadline_s, default_s), late, has_due


def _add_later_prices(instance: Instance, price: Price, has_due: Bools) -> Instance:
    """Return *instance* with the price of energy that each job can wait for.

    That is the dearest of the cheapest hours that the job needs before it is due. A job that needs the
    present hour too has no reason to wait.
    """
    later = np.ones(instance.jobs)
    last_s = min(float(instance.due_s[has_due].max(initial=instance.now_s)), instance.now_s + _FAR_S)
    if last_s <= instance.now_s:
        return replace(instance, later_price=later)
    edges_s, prices = price.price_steps(instance.now_s, last_s)
    takes_s = np.where(np.isfinite(instance.slowest_s), instance.slowest_s, 0.0)
    takes_s = takes_s * max(1.0, instance.jobs / max(1, instance.total_gpus))
    for j in np.flatnonzero(has_due & np.isfinite(instance.fastest_s)).tolist():
        lasts_s = np.diff(np.minimum(edges_s, instance.due_s[j]))
        order = np.argsort(prices, kind="stable")
        enough = np.searchsorted(np.cumsum(lasts_s[order]), takes_s[j])
        if enough < len(order) and prices[order[enough]] < prices[0]:
            later[j] = prices[order[enough]] / prices[0]
    return replace(instance, later_price=later)


def build_plan(problem: SnapshotInstance, rows: Ints, assignment: Assignment, reason: Ints) -> Plan:
    """Return the plan that gives each of *rows* its configuration and node of *assignment*."""
    runs = np.flatnonzero(assignment.config != POSTPONED)
    config = assignment.config[runs]
    node_type = problem.instance.config_node_type[config]
    node = np.empty(len(runs), dtype=np.int64)
    for s, of_type in enumerate(problem.nodes):
        here = node_type == s
        node[here] = of_type[assignment.node[runs[here]]]
    return Plan(
        row=rows[runs],
        gpus=problem.instance.config_gpus[config],
        group=rows[runs],
        cap_w=problem.cap_w[config],
        reason=reason,
        node=node,
    )

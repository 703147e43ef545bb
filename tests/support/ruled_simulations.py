"""Small simulations under operators' rules: when each job starts, and why it waited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.backend.sim.spread_speeds import SpreadPenalty
from wattline.cluster import parse_cluster
from wattline.core.actions import ACTION_JOB, ACTION_NODE, ACTION_VERB, START
from wattline.core.events import EVENT_AT_S, EVENT_JOB, EVENT_VERB, FINISHED
from wattline.core.jobs import Jobs
from wattline.core.protocols import Policy
from wattline.core.reasons import REASONS, Reason
from wattline.core.table import Labels
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.placement.pack import Pack
from wattline.policy.ordering import fifo
from wattline.rules.binding import BoundRules, bind_rules
from wattline.rules.drains import DrainTimes
from wattline.rules.rule_set import RuleSet
from wattline.trace.recorded import MISSING, RecordedSchedule


class RuledRun(NamedTuple):
    """First starts, ends, the nodes of each first start, and all reasons of each job."""

    start_s: list[float]
    end_s: list[float]
    nodes: list[list[int]]
    reasons: list[list[Reason]]
    log: Log
    bound: BoundRules | None


def build_records(count: int, **columns: Sequence[Any]) -> RecordedSchedule:
    """Return recorded columns, given as lists."""
    filled = {
        name: np.array(values, dtype=np.float64) if name in MISSING else Labels.of(values)
        for name, values in columns.items()
    }
    return RecordedSchedule.of(count, filled)


def simulate_ruled(
    rules: RuleSet,
    cluster: str,
    jobs: Mapping[str, Sequence[Any]],
    *,
    policy: Policy = fifo,
    backfill: str = "easy",
    origin_s: float | None = None,
    drains: DrainTimes = (),
    keep_nodes: bool = False,
    **recorded: Sequence[Any],
) -> RuledRun:
    """Simulate jobs with the columns *jobs* of `Jobs.of` and *recorded* of `RecordedSchedule`."""
    table, nodes = Jobs.of(**jobs), parse_cluster(cluster)  # type: ignore[arg-type]
    records = build_records(len(table), **recorded)
    bound = bind_rules(rules, table, records, nodes, origin_s, drains=drains, keep_nodes=keep_nodes)
    place: Any = Pack(backfill)  # type: ignore[arg-type]
    spread = None
    if bound is not None:
        table = bound.adjust_jobs(table)
        policy, place = bound.insert_stages(policy), bound.replace_placer(place)
        if bound.nodes is not None:
            spread = SpreadPenalty(bound.nodes.rack, bound.nodes.pod, bound.nodes.penalty)
    sim = Sim(table, nodes, overheads=Overheads(restart_s=0.0), spread=spread)
    log = run(sim, policy, place=place)
    return RuledRun(*_find_times(log), log, bound)


def _find_times(
    log: Log,
) -> tuple[list[float], list[float], list[list[int]], list[list[Reason]]]:
    count = len(log.jobs)
    start_s, end_s = [np.inf] * count, [np.inf] * count
    nodes: list[list[int]] = [[] for _ in range(count)]
    reasons: list[list[Reason]] = [[] for _ in range(count)]
    for row in log:
        for action in row.actions:
            job = int(action[ACTION_JOB])
            if action[ACTION_VERB] == START and (start_s[job] in (np.inf, row.now_s)):
                start_s[job] = row.now_s
                nodes[job].append(int(action[ACTION_NODE]))
        for event in row.events:
            if event[EVENT_VERB] == FINISHED:
                end_s[int(event[EVENT_JOB])] = float(event[EVENT_AT_S])
        for job, reason in row.wait_reasons.tolist():
            reasons[job].append(REASONS[reason])
    return start_s, end_s, nodes, reasons

"""Jobs that a run left unfinished, and the part that a budget has in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from wattline.cli.simulation.scenario import SimulationCase
from wattline.cluster import parse_cluster
from wattline.core.events import EVENT_JOB, EVENT_VERB, FAILED, FINISHED
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.protocols import Models
from wattline.core.reasons import NEVER_BY_RULES, REASONS, Reason
from wattline.energy.budgets import Budget
from wattline.loop.runlog import Log
from wattline.models.configurations import build_configurations
from wattline.placement.power import Power

_BUDGET_REASONS = (Reason.NEVER_IN_BUDGET, Reason.OVER_BUDGET)
_IMPOSSIBLE = (Reason.TOO_BIG, Reason.NO_KIND, Reason.NO_NODE, *NEVER_BY_RULES)

UnfinishedCounts = dict[str, int]
"""Number of unfinished jobs by the name of the reason they wait for, as run logs write it."""


def count_unfinished(log: Log) -> UnfinishedCounts:
    """Count the jobs that *log* left unfinished, by the last reason each has."""
    is_end = np.isin(log.events[:, EVENT_VERB], (FINISHED, FAILED))
    is_unfinished = np.ones(len(log.jobs), dtype=np.bool_)
    is_unfinished[log.events[is_end, EVENT_JOB].astype(np.int64)] = False
    last_reason = np.zeros(len(log.jobs), dtype=np.int64)
    for job, reason in log.wait_reasons.tolist():
        last_reason[job] = reason
    return dict(Counter(REASONS[code].name.lower() for code in last_reason[is_unfinished].tolist()))


def describe_budget_limit(unfinished: UnfinishedCounts, jobs: int, budgets: Sequence[str]) -> str:
    """Describe how many of *jobs* the budgets left unfinished; empty if none."""
    count, reason = _count_over_budget(unfinished)
    if not count:
        return ""
    return f"{count:,} of {jobs:,} jobs were left unfinished by the budget {' and '.join(budgets)}: {reason}"


def describe_impossible(unfinished: UnfinishedCounts, jobs: int) -> str:
    """Describe how many of *jobs* can never run on this cluster, and why; empty if all can."""
    lines = []
    for reason in _IMPOSSIBLE:
        if count := unfinished.get(reason.name.lower(), 0):
            can = "job can" if count == 1 else "jobs can"
            lines.append(f"{count:,} of {jobs:,} {can} never run: {reason.value}")
    return "\n".join(lines)


def explain_nothing_started(unfinished: UnfinishedCounts, jobs: Jobs, case: SimulationCase) -> str:
    """Describe why no job could start, and the power that the smallest one needs."""
    count, reason = _count_over_budget(unfinished)
    if not count:
        impossible = describe_impossible(unfinished, len(jobs))
        return f"no job could start on {case.cluster}" + (f"\n{impossible}" if impossible else "")
    nodes, (_, place) = parse_cluster(case.cluster), case.build_policy_and_placer()
    idle_w = float(nodes.idle_node_w.sum())
    if isinstance(place, Power):  # one node must be on, the others may be off
        idle_w = float(nodes.off_w.sum() + (nodes.idle_node_w - nodes.off_w).min())
    needs = "; ".join(_describe_least_power(case.read_budgets(), jobs, nodes, case.read_models(), idle_w))
    return f"no job could start: {reason}\n  budget {' and '.join(case.budgets)}: {needs}"


def _count_over_budget(unfinished: UnfinishedCounts) -> tuple[int, str]:
    """Return the number of jobs that a budget left unfinished, and the reason most of them have."""
    counts = {reason: unfinished.get(reason.name.lower(), 0) for reason in _BUDGET_REASONS}
    return sum(counts.values()), max(counts, key=lambda reason: counts[reason]).value


def _describe_least_power(
    budgets: Sequence[Budget], jobs: Jobs, nodes: Nodes, models: Models, idle_w: float
) -> list[str]:
    """Describe the power that the most modest job needs, once for the cluster and for each team."""
    ways = build_configurations(models, jobs, nodes)
    accepts = (nodes.accepted_kinds(jobs.gpu_kind)[:, None] >> np.arange(len(nodes.kind.names))) & 1 == 1
    least_w = ways.watts[:, 0].min(axis=1)
    more_w = np.where(accepts, (least_w - ways.idle_w * ways.gpus[:, 0])[ways.job_class], np.inf).min(axis=1)
    job_w = np.where(accepts, least_w[ways.job_class], np.inf).min(axis=1)
    sentences = []
    for team in dict.fromkeys(budget.team for budget in budgets if budget.unit != "eta"):
        if team:
            in_team = np.array([word == team for word in jobs.team.words()])
            sentences.append(f"the most modest job of {team} draws {_format_watts(job_w[in_team].min())}")
        else:
            sentences.append(
                f"idle nodes draw {_format_watts(idle_w)}, the most modest job"
                f" {_format_watts(more_w.min())} more"
            )
    return sentences


def _format_watts(value_w: float) -> str:
    return f"{value_w / 1000:.3g} kW" if value_w >= 1000 else f"{value_w:.3g} W"

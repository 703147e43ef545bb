"""Who was left when a run ended, and was it the budget?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from wattline.cli.simulation.scenario import Case
from wattline.cluster import parse_cluster
from wattline.core.events import FAILED, FINISHED
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.protocols import Models
from wattline.core.reasons import REASONS, Reason
from wattline.energy.budgets import Budget
from wattline.loop.runlog import Log
from wattline.models.configurations import menu
from wattline.placement.power import Power

_BUDGET = (Reason.NEVER_IN_BUDGET, Reason.OVER_BUDGET)

Left = dict[str, int]
"""Unfinished jobs by the name of the reason why they wait, as logs write it."""


def left(log: Log) -> Left:
    """Who was left in *log*."""
    over = np.isin(log.events[:, 0], (FINISHED, FAILED))
    waits = np.ones(len(log.jobs), dtype=np.bool_)
    waits[log.events[over, 1].astype(np.int64)] = False
    why = np.zeros(len(log.jobs), dtype=np.int64)
    for job, reason in log.held.tolist():  # the last one counts
        why[job] = reason
    return dict(Counter(REASONS[code].name.lower() for code in why[waits].tolist()))


def blame(found: Left, jobs: int, budgets: Sequence[str]) -> str:
    """A sentence about whom a budget left unfinished, of *jobs* in all; empty if that is nobody."""
    kept, why = _by_budget(found)
    if not kept:
        return ""
    return f"{kept:,} of {jobs:,} jobs were left unfinished by the budget {' and '.join(budgets)}: {why}"


def nobody(found: Left, jobs: Jobs, case: Case) -> str:
    """Why no job could start."""
    kept, why = _by_budget(found)
    if not kept:
        return "no job could start on this cluster"
    nodes, (_, place) = parse_cluster(case.cluster), case.deciders()
    idle_w = float(nodes.rest_w.sum())
    if isinstance(place, Power):  # of which one node must be on, and the others need not
        idle_w = float(nodes.off_w.sum() + (nodes.rest_w - nodes.off_w).min())
    needs = "; ".join(_needs(case.read_budgets(), jobs, nodes, case.beliefs(), idle_w))
    return f"no job could start: {why}\n  budget {' and '.join(case.budgets)}: {needs}"


def _by_budget(found: Left) -> tuple[int, str]:
    """How many the budget kept from finishing, and what most of them are told."""
    counts = {reason: found.get(reason.name.lower(), 0) for reason in _BUDGET}
    return sum(counts.values()), max(counts, key=lambda reason: counts[reason]).value


def _needs(budgets: Sequence[Budget], jobs: Jobs, nodes: Nodes, models: Models, idle_w: float) -> list[str]:
    """What the most modest job would need, a sentence for the cluster and one for each team."""
    ways = menu(models, jobs, nodes)
    accepts = (nodes.accepts(jobs.gpu_kind)[:, None] >> np.arange(len(nodes.kind.names))) & 1 == 1
    least_w = ways.watts[:, 0].min(axis=1)
    more_w = np.where(accepts, (least_w - ways.idle_w * ways.gpus[:, 0])[ways.sort], np.inf).min(axis=1)
    job_w = np.where(accepts, least_w[ways.sort], np.inf).min(axis=1)
    said = []
    for team in dict.fromkeys(budget.team for budget in budgets if budget.unit != "eta"):
        if team:
            mine = np.array([word == team for word in jobs.team.words()])
            said.append(f"the most modest job of {team} draws {_watts(job_w[mine].min())}")
        else:
            said.append(f"idle nodes draw {_watts(idle_w)}, the most modest job {_watts(more_w.min())} more")
    return said


def _watts(value_w: float) -> str:
    return f"{value_w / 1000:.3g} kW" if value_w >= 1000 else f"{value_w:.3g} W"

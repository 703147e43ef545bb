"""The overview: power against budget, GPUs by job, and the jobs that wait, with their reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo
from itertools import groupby

import numpy as np

from wattline.core.reasons import REASONS, Reason
from wattline.energy.budgets import parse_budget
from wattline.service.budget_usage import BudgetUsage, read_budget_usage
from wattline.service.controller import Controller
from wattline.service.gpu_status import GpuNow, read_gpus
from wattline.service.http.job_responses import build_job_responses
from wattline.service.http.schemas import JobResponse
from wattline.service.power_history import PowerPoint, read_power
from wattline.service.states import LIVE_STATES, STATES
from wattline.service.view import ControllerView
from wattline.service.web.charts import PageChart, PageCurve, Span, draw_chart

_NO_ROOM = REASONS.index(Reason.NO_ROOM)

SHOWN_WAITING = 20
_STEPS = 360  # of the chart
_SHORTEST_S = 120.0
SPANS = {"1h": 3600.0, "6h": 6 * 3600.0, "1d": 86400.0, "7d": 7 * 86400.0}
COLOURS = 8  # classes of the stylesheet


@dataclass(frozen=True)
class NodeGpus:
    """The GPUs of one node."""

    name: str
    kind: str
    gpus: list[GpuNow]


@dataclass(frozen=True)
class Overview:
    """Everything that the overview shows."""

    power_w: float | None  # of all GPUs in the last sample; None: one could not be read
    power_at_s: float | None
    method: str
    budget_w: float | None  # the lowest budget of watts of the whole cluster; None: there is none
    budgets: list[BudgetUsage]
    gpus: int
    gpus_busy: int
    counts: dict[str, int]
    ended: dict[str, int]  # of them, the jobs that have ended
    nodes: list[NodeGpus]
    colours: dict[str, int]  # of the jobs that hold GPUs
    chart: PageChart | None
    waiting: list[JobResponse]
    policy: str


def build_overview(
    controller: Controller, zone: tzinfo, span: str = "1h", zoom: Span | None = None
) -> Overview:
    """Return the overview as of the last decision and the last power sample; the chart shows *zoom*."""
    view, now_s = controller.view(), controller.clock()
    gpus, at_s = read_gpus(controller)
    powers = [gpu.power_w for gpu in gpus]
    budget_w, counts = find_watt_budget(view.budgets), controller.store.count_by_state()
    return Overview(
        power_w=None if None in powers or not powers else sum(power for power in powers if power is not None),
        power_at_s=at_s,
        method=view.energy_method,
        budget_w=budget_w,
        budgets=read_budget_usage(controller.store, view),
        gpus=len(gpus),
        gpus_busy=sum(bool(gpu.jobs) for gpu in gpus),
        counts=counts,
        ended={state: counts[state] for state in STATES if state not in LIVE_STATES and counts.get(state)},
        nodes=[
            NodeGpus(name, found[0].kind, found)
            for name, found in ((name, list(group)) for name, group in groupby(gpus, lambda gpu: gpu.node))
        ],
        colours=choose_colours([gpu.jobs[0] for gpu in gpus if gpu.jobs]),
        chart=_draw_power(controller, zoom or (now_s - SPANS[span], now_s), budget_w, zone),
        waiting=_read_waiting(controller, list_waiting(view)[:SHOWN_WAITING]),
        policy=controller.describe()["policy"],
    )


def choose_colours(jobs: Sequence[str]) -> dict[str, int]:
    """Return a colour for each job that no other has, as long as there are enough.

    A job keeps the colour of its number unless an older one has it, so that colours change seldom.
    """
    chosen: dict[str, int] = {}
    for job in sorted(set(jobs), key=int):
        wanted = int(job) % COLOURS
        free = [(wanted + step) % COLOURS for step in range(COLOURS)]
        taken = set(chosen.values())
        chosen[job] = next((one for one in free if one not in taken), wanted)
    return chosen


def _read_waiting(controller: Controller, ids: Sequence[str]) -> list[JobResponse]:
    """Return the jobs *ids* that still wait, in this order."""
    jobs = build_job_responses(controller, controller.store.jobs_with_ids(ids))
    place = {id: number for number, id in enumerate(ids)}
    return sorted((job for job in jobs if job.state == "PENDING"), key=lambda job: place[job.id])


def list_waiting(view: ControllerView) -> list[str]:
    """Return the ids of the jobs that wait, in the order in which the last decision would start them.

    Those that it does not want to run follow: the first in line, then by priority and submission.
    """
    if view.step is None:
        return []
    state, plan = view.step.state, view.step.plan
    waits = ~state.queue.running
    first = plan.row[waits[plan.row]]
    waits[first] = False
    rest = np.flatnonzero(waits)
    behind = np.zeros(len(waits)) if plan.reason is None else plan.reason != _NO_ROOM
    rest = rest[np.lexsort((-state.jobs.priority[state.queue.job[rest]], behind[rest]))]
    order = np.concatenate((first, rest))
    return [str(id) for id in state.jobs.id[state.queue.job[order]]]


def find_watt_budget(budgets: Sequence[str]) -> float | None:
    """Return the lowest budget of watts of the whole cluster; None: there is none."""
    parsed = [parse_budget(text) for text in budgets]
    watts = [one.amount for one in parsed if one.unit == "watts" and not one.team]
    return min(watts) if watts else None


def _draw_power(controller: Controller, span: Span, budget_w: float | None, zone: tzinfo) -> PageChart | None:
    since_s, until_s = span
    step_s = max((until_s - since_s) / _STEPS, 10.0)
    points, _ = read_power(controller.store, since_s - step_s, until_s + step_s, step_s, _STEPS + 3)
    if not points:
        return None
    # of a service that is young
    start_s = max(since_s, min(points[0].at_s, until_s - _SHORTEST_S))
    lines = [
        PageCurve("power of all GPUs", _with_gaps(points, step_s), "main"),
        PageCurve("caps of busy GPUs", [(one.at_s, _sum_caps(one)) for one in points], "second", steps=True),
    ]
    if budget_w is not None:
        lines.append(PageCurve("budget", [(start_s, budget_w), (until_s, budget_w)], "limit"))
    return draw_chart("Power", "W", lines, zone, span=(start_s, until_s))


def _sum_caps(point: PowerPoint) -> float | None:
    """Return the sum of the caps of the GPUs with jobs, which budgets limit; None: one is unknown."""
    caps = [gpu.cap_w for gpu in point.gpus if gpu.jobs]
    return None if None in caps else sum(cap for cap in caps if cap is not None)


def _with_gaps(points: Sequence[PowerPoint], step_s: float) -> list[tuple[float, float | None]]:
    """Return the power over time, with a gap where no samples were written."""
    line: list[tuple[float, float | None]] = []
    before_s = None
    for point in points:
        if before_s is not None and point.at_s - before_s > 3 * step_s:
            line.append((point.at_s, None))
        line.append((point.at_s, point.power_w))
        before_s = point.at_s
    return line

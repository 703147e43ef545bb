"""A schedule given by start and end of each job: recorded ones, and reproductions of them."""

from __future__ import annotations

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.table import Floats
from wattline.whatif.digest import Blocks, ScheduleDigest

METHOD = "estimated: idle nodes all the time, and GPUs that are held draw what their kind does in training"


def digest_intervals(
    jobs: Jobs, start_s: Floats, end_s: Floats, nodes: Nodes, blocks: Blocks, until_s: float = np.inf
) -> ScheduleDigest:
    """Reduce a schedule in which each job ran from *start_s* to *end_s* on the GPUs that it requested.

    Jobs without both times do not count. Energy is estimated from the kinds of GPUs of *nodes*: a trace
    has none that could be compared.
    """
    known = np.isfinite(start_s) & np.isfinite(end_s)
    start_s, end_s = np.where(known, start_s, np.nan), np.where(known, end_s, np.nan)
    begin_s = float(jobs.submit_s.min(initial=0.0))
    until_s = min(until_s, float(np.nanmax(np.append(end_s, blocks.edges_s[-1]))))
    at_s, held, extra_w = _count_held(jobs, start_s, end_s, above_idle_watts(jobs, nodes), begin_s)
    return ScheduleDigest(
        start_s=start_s,
        end_s=end_s,
        wait_s=np.maximum(start_s - jobs.submit_s, 0.0),
        gpu_s=blocks.integrate(at_s, held, until_s),
        energy_j=blocks.integrate(at_s, extra_w + float(nodes.idle_node_w.sum()), until_s),
        until_s=until_s,
        energy_method=METHOD,
    )


def above_idle_watts(jobs: Jobs, nodes: Nodes) -> Floats:
    """Return the watts above idle of one GPU of each job, by the kinds that it accepts."""
    kinds = len(nodes.kind.names)
    weight = np.bincount(nodes.kind.codes, nodes.gpus, kinds)
    extra = np.bincount(nodes.kind.codes, nodes.gpus * (nodes.busy_w - nodes.idle_w), kinds)
    accepts = (nodes.accepted_kinds(jobs.gpu_kind)[:, None] >> np.arange(kinds)) & 1
    has_any = np.asarray(accepts.any(axis=1))
    accepts = np.where(has_any[:, None], accepts, 1)  # a kind that is not there: the mean of all
    return np.asarray((accepts @ extra) / np.maximum(accepts @ weight, 1.0))


def find_most_held(jobs: Jobs, start_s: Floats, end_s: Floats) -> int:
    """Return the largest number of GPUs that were held at once."""
    _, held, _ = _count_held(jobs, start_s, end_s, np.zeros(len(jobs)), 0.0)
    return int(held.max(initial=0.0))


def count_held_at(jobs: Jobs, start_s: Floats, end_s: Floats, moment_s: Floats) -> Floats:
    """Return the number of GPUs that were held right before each moment."""
    at_s, held, _ = _count_held(jobs, start_s, end_s, np.zeros(len(jobs)), -np.inf)
    return held[np.maximum(np.searchsorted(at_s, moment_s, side="left") - 1, 0)]


def _count_held(
    jobs: Jobs, start_s: Floats, end_s: Floats, watts: Floats, begin_s: float
) -> tuple[Floats, Floats, Floats]:
    """Return the step functions of held GPUs and of their watts above idle: times and values."""
    known = np.flatnonzero(np.isfinite(start_s) & np.isfinite(end_s))
    gpus, draws = jobs.gpus[known].astype(np.float64), jobs.gpus[known] * watts[known]
    moment_s = np.concatenate(([begin_s], start_s[known], end_s[known]))
    change = np.stack((np.concatenate(([0.0], gpus, -gpus)), np.concatenate(([0.0], draws, -draws))))
    at_s, place = np.unique(moment_s, return_inverse=True)
    held, extra_w = (np.cumsum(np.bincount(place, row, len(at_s))) for row in change)
    return at_s, np.maximum(held, 0.0), np.maximum(extra_w, 0.0)

"""Objectives of Gavel: target shares of each kind of GPU for each job."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.table import Bools, Floats
from wattline.policy.gavel.max_min import maximise_least_value

OBJECTIVES = ("maxmin", "ftf", "makespan", "fifo")
_HALVINGS = 30


@dataclass(frozen=True, eq=False)
class ShareProblem:
    """Jobs that share GPUs of several kinds: arrays by job, or by job and kind, or by kind."""

    steps_s: Floats  # throughput of each job on each kind
    possible: Bools  # whether it can run there
    gpus: Floats  # that each job needs
    weight: Floats  # its weight: twice the weight is twice the share
    steps_left: Floats
    age_s: Floats  # since its submission
    isolated_s: Floats  # time that its work so far would have taken with an equal share
    room: Floats  # GPUs of each kind
    equal_speeds: bool  # True: a job is as fast on every kind


def compute_shares(problem: ShareProblem, objective: str) -> Floats:
    """Return the fraction of time that each job should spend on each kind of GPU.

    With T the throughput and x the shares, the objectives of Narayanan et al. (OSDI 2020) are:

    - `maxmin`: max min_j gpus_j / weight_j · T_j(x) / T_j(a share of each kind in proportion to its size);
    - `ftf`: min max_j (age + steps_left / T_j(x)) / (the same with 1/J of the cluster from the start);
    - `makespan`: min max_j steps_left / T_j(x).
    """
    p = problem
    if objective == "makespan":
        return _share(p, 1.0 / np.maximum(p.steps_left, 1.0))[0]
    if objective == "ftf":
        return _share_for_fair_finish_times(p)
    equal = p.room / max(p.room.sum(), 1.0)
    normal = (np.where(p.possible, p.steps_s, 0.0) * equal).sum(axis=1)
    return _share(p, p.gpus / (p.weight * np.maximum(normal, 1e-300)))[0]


def compute_isolated_throughputs(problem: ShareProblem) -> Floats:
    """Return the steps per second of each job with 1/J of the GPUs of each kind, at most all of the time."""
    p = problem
    share = p.room[None, :] / max(len(p.gpus), 1) / p.gpus[:, None]
    share = share / np.maximum(share.sum(axis=1), 1.0)[:, None]
    return np.asarray(np.maximum((np.where(p.possible, p.steps_s, 0.0) * share).sum(axis=1), 1e-300))


def _share(problem: ShareProblem, factor: Floats) -> tuple[Floats, float]:
    """Return the shares with the largest least factor · T_j(x), and that least value."""
    if problem.equal_speeds:
        return _fill_equal_kinds(problem, factor * problem.steps_s.max(axis=1))
    return maximise_least_value(
        problem.steps_s * factor[:, None], problem.gpus, problem.room, problem.possible
    )


def _fill_equal_kinds(problem: ShareProblem, value: Floats) -> tuple[Floats, float]:
    """Return shares for kinds that are equally fast, and the least value·(share of all kinds) of a job.

    All values are raised together until a job has all of its time, then the others, until no GPU is left.
    Each job's time is divided over the kinds in proportion to their GPUs: any division is as good, and a
    corner of the linear program would tie a job to one kind.
    """
    gpus, total = problem.gpus, float(problem.room.sum())
    order = np.argsort(-value, kind="stable")  # the last to have all of its time comes first
    ratio = (gpus / value)[order]
    # With the jobs from i on full, the others share what these leave, at a common value.
    full = np.concatenate((np.cumsum(gpus[order][::-1])[::-1], [0.0]))
    level = np.maximum(total - full[1:], 0.0) / np.cumsum(ratio)
    possible = np.flatnonzero(level <= value[order])
    common = float(level[possible].max(initial=0.0)) if gpus.sum() > total else np.inf
    time = np.minimum(common / value, 1.0)
    room = np.where(problem.possible, problem.room, 0.0)
    parts = room / np.maximum(room.sum(axis=1), 1.0)[:, None]
    return time[:, None] * parts, float((time * value).min(initial=np.inf))


def _share_for_fair_finish_times(problem: ShareProblem) -> Floats:
    """Return the shares with the smallest largest ratio of finish times, by bisection over that ratio.

    A ratio r is met if T_j(x) ≥ steps_left / (r · isolated − age) for all jobs.
    """
    p = problem
    alone_s = np.maximum(p.isolated_s + p.steps_left / compute_isolated_throughputs(p), 1.0)
    low = float((p.age_s / alone_s).max(initial=0.0))
    high = 2.0 * low + 1.0
    left = np.maximum(p.steps_left, 1.0)

    def reach(ratio: float) -> tuple[Floats, float]:
        return _share(p, np.maximum(ratio * alone_s - p.age_s, 1e-9) / left)

    while reach(high)[1] < 1.0 and high < 1e12:
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        if reach(middle)[1] >= 1.0:
            high = middle
        else:
            low = middle
        if high - low < 1e-4 * high:
            break
    return reach(high)[0]

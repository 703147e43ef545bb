"""An instance of the cost programme: jobs with due dates, nodes of several types, the cost of energy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from wattline.core.table import Bools, Floats, Ints
from wattline.errors import InputError

POSTPONED = -1


def _none() -> Floats:
    return np.empty(0)


@dataclass(frozen=True, eq=False)
class Instance:
    """Jobs that can run in several configurations, and the nodes on which they can run.

    A configuration is a number of GPUs on a type of node, and maybe a power cap; nodes of one type are
    interchangeable. A job runs on one node, beside others. A node costs *cost_per_s*, and each of its jobs
    *own_cost_per_s* in addition. Money has any unit, as long as it is the same everywhere.
    """

    now_s: float
    node_counts: Ints  # number of nodes of each type
    gpus: Ints  # of a node of each type
    cost_per_s: Floats  # money by node type and number of busy GPUs; a node without any costs nothing
    config_node_type: Ints
    config_gpus: Ints
    left_s: Floats  # remaining time by job and configuration; inf: impossible
    due_s: Floats
    late_per_s: Floats  # money for each second that a job is late
    own_cost_per_s: Floats = field(default_factory=_none)  # money by job and configuration; empty: 0
    pause_s: Floats = field(default_factory=_none)  # part of *left_s* without progress; empty: 0
    valid_s: float = math.inf  # until prices change
    stop_penalty_s: Floats = field(default_factory=_none)  # by job: lost if it is stopped now; empty: 0
    later_price: Floats = field(
        default_factory=_none
    )  # by job: price it can wait for over price now; empty: 1

    def __post_init__(self) -> None:
        jobs, configs = self.left_s.shape
        rules = (
            (
                len(self.node_counts) == len(self.gpus) == len(self.cost_per_s),
                "node_counts, gpus and cost_per_s differ in length",
            ),
            (
                len(self.config_node_type) == len(self.config_gpus) == configs,
                "config_node_type, config_gpus and left_s differ in their configurations",
            ),
            (
                len(self.due_s) == len(self.late_per_s) == jobs,
                "due_s, late_per_s and left_s differ in their jobs",
            ),
            (
                bool((self.node_counts >= 0).all() and (self.gpus >= 1).all()),
                "a node type has a negative number of nodes or no GPUs",
            ),
            (
                self.cost_per_s.shape[1] > int(self.gpus.max(initial=0)),
                "cost_per_s has too few columns for all GPUs busy",
            ),
            (bool((self.left_s > 0).all()), "left_s must be above 0"),
            (bool((self.late_per_s >= 0).all()), "late_per_s must be at least 0"),
            (
                self.own_cost_per_s.shape in ((0,), (jobs, configs)),
                "own_cost_per_s and left_s differ in shape",
            ),
            (self.pause_s.shape in ((0,), (jobs, configs)), "pause_s and left_s differ in shape"),
            (self.later_price.shape in ((0,), (jobs,)), "later_price and left_s differ in their jobs"),
            (self.stop_penalty_s.shape in ((0,), (jobs,)), "stop_penalty_s and left_s differ in their jobs"),
        )
        for holds, problem in rules:
            if not holds:
                raise InputError(problem)

    @property
    def jobs(self) -> int:
        """Number of jobs."""
        return len(self.left_s)

    @cached_property
    def possible(self) -> Bools:
        """True by job and configuration where the job can run on these nodes."""
        fits = (self.config_gpus <= self.gpus[self.config_node_type]) & (
            self.node_counts[self.config_node_type] > 0
        )
        return np.asarray(np.isfinite(self.left_s) & fits)

    @cached_property
    def job_cost_per_s(self) -> Floats:
        """Money per second by job (one row if the same for all), configuration and busy GPUs of its node.

        A job pays for its node in proportion to its GPUs, and its own cost.
        """
        used = np.maximum(np.arange(self.cost_per_s.shape[1]), 1)
        share = self.config_gpus[:, None] * self.cost_per_s[self.config_node_type] / used
        return np.asarray(
            share[None] + (self.own_cost_per_s[:, :, None] if self.own_cost_per_s.size else 0.0)
        )

    @cached_property
    def finite_left_s(self) -> Floats:
        """*left_s*, with 1 where it is impossible."""
        return np.where(self.possible, self.left_s, 1.0)

    @cached_property
    def fastest_s(self) -> Floats:
        """Least remaining time of each job; inf: it can run nowhere."""
        return np.asarray(np.where(self.possible, self.left_s, np.inf).min(axis=1, initial=np.inf))

    @cached_property
    def slowest_s(self) -> Floats:
        """Longest remaining time of each job in a possible configuration."""
        return np.asarray(np.where(self.possible, self.left_s, -np.inf).max(axis=1, initial=-np.inf))

    @cached_property
    def total_gpus(self) -> int:
        """Number of GPUs of all nodes."""
        return int((self.node_counts * self.gpus).sum())


@dataclass(frozen=True, eq=False)
class Assignment:
    """A configuration for each job, and its node, counted from 0 within the type.

    *cost* is by the objective that was minimised, *bound* a lower bound of it for all assignments; nan:
    unknown.
    """

    config: Ints  # POSTPONED: it waits
    node: Ints
    cost: float = np.nan
    bound: float = np.nan

    @property
    def gap(self) -> float:
        """Largest possible distance from the least cost, relative; nan: unknown."""
        return float(np.maximum(self.cost - self.bound, 0.0) / max(abs(self.cost), 1e-12))


def add_restart_pauses(instance: Instance, config: Ints, started: Bools, restart_s: float) -> Instance:
    """Return *instance* with the time that restarts take.

    Jobs have *config* now. Those that have *started* lose *restart_s* with other GPUs, and running ones by
    waiting.
    """
    node_type, gpus = (
        np.append(column, -1)[config] for column in (instance.config_node_type, instance.config_gpus)
    )
    moves = (instance.config_node_type != node_type[:, None]) | (instance.config_gpus != gpus[:, None])
    pause_s = np.where(moves & started[:, None] & np.isfinite(instance.left_s), restart_s, 0.0)
    stop_penalty_s = np.where(config != POSTPONED, restart_s, 0.0)
    return replace(instance, left_s=instance.left_s + pause_s, pause_s=pause_s, stop_penalty_s=stop_penalty_s)


def limit_gpus(instance: Instance, gpus: int) -> Instance:
    """Return *instance* without the configurations of more GPUs than so many."""
    return replace(instance, left_s=np.where(instance.config_gpus <= gpus, instance.left_s, np.inf))


def count_busy_gpus(instance: Instance, assignment: Assignment) -> list[Ints]:
    """Return the busy GPUs of each node, by node type."""
    busy = [np.zeros(int(count), dtype=np.int64) for count in instance.node_counts]
    runs = np.flatnonzero(assignment.config != POSTPONED)
    config, node = assignment.config[runs], assignment.node[runs]
    for node_type, of_type in enumerate(busy):
        here = instance.config_node_type[config] == node_type
        np.add.at(of_type, node[here], instance.config_gpus[config[here]])
    return busy


def check_assignment(instance: Instance, assignment: Assignment) -> None:
    """Raise if a job runs where it cannot, or a node has more busy GPUs than GPUs."""
    runs = np.flatnonzero(assignment.config != POSTPONED)
    if not instance.possible[runs, assignment.config[runs]].all():
        row = int(runs[~instance.possible[runs, assignment.config[runs]]][0])
        raise InputError(f"job {row} cannot run in configuration {assignment.config[row]}")
    for node_type, used in enumerate(count_busy_gpus(instance, assignment)):
        if (used > instance.gpus[node_type]).any():
            most = instance.gpus[node_type]
            raise InputError(
                f"a node of type {node_type} has {used.max()} busy GPUs, expected at most {most}"
            )


def compute_cost_until_end(
    instance: Instance, assignment: Assignment, valid_s: float = np.inf
) -> tuple[float, float, float]:
    """Return the seconds until the first running job ends, and the money for energy and tardiness until then.

    At most *valid_s* are counted. All jobs past their due dates cost money, running or not. All are 0 if no
    job runs.
    """
    runs = np.flatnonzero(assignment.config != POSTPONED)
    if not len(runs):
        return 0.0, 0.0, 0.0
    until_s = min(valid_s, float(instance.left_s[runs, assignment.config[runs]].min()))
    rate = sum(
        float(instance.cost_per_s[node_type, used].sum())
        for node_type, used in enumerate(count_busy_gpus(instance, assignment))
        if len(used)
    )
    if instance.own_cost_per_s.size:
        rate += float(instance.own_cost_per_s[runs, assignment.config[runs]].sum())
    late_s = np.maximum(0.0, instance.now_s + until_s - np.maximum(instance.due_s, instance.now_s))
    return until_s, rate * until_s, float((instance.late_per_s * late_s).sum())

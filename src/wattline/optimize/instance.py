"""What there is to decide at one moment: jobs with due dates, nodes of several sorts, what energy costs."""

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
class Event:
    """Jobs that could run in one of several configurations, and the nodes they could run on.

    A configuration is a number of GPUs on a sort of node, and maybe a power cap; nodes of one sort are
    interchangeable. A job runs on one node, beside others. A node costs what *cost_s* says, and beside that
    each of its jobs what *own_s* does. Money has any unit, as long as it is one.
    """

    now_s: float
    nodes: Ints  # how many of each sort there are
    gpus: Ints  # of a node of each sort
    cost_s: Floats  # money per second: row sort, column busy GPUs; a node without any costs nothing
    config_sort: Ints
    config_gpus: Ints
    left_s: Floats  # what each job (row) still takes in each configuration (column); inf: impossible
    due_s: Floats
    late: Floats  # money for each second that a job is late
    own_s: Floats = field(default_factory=_none)  # money per second, as *left_s* has it; empty: 0
    pause_s: Floats = field(default_factory=_none)  # of *left_s*, before there is any progress; empty: 0
    stands_s: float = math.inf  # when prices change: a decision is not good for longer
    stop_s: Floats = field(default_factory=_none)  # by job: lost later if it waits now; empty: 0
    later: Floats = field(
        default_factory=_none
    )  # by job: the price that it can wait for over that now; empty: 1

    def __post_init__(self) -> None:
        jobs, configs = self.left_s.shape
        rules = (
            (
                len(self.nodes) == len(self.gpus) == len(self.cost_s),
                "nodes, gpus, cost_s differ in length",
            ),
            (len(self.config_sort) == len(self.config_gpus) == configs, "left_s has other configurations"),
            (len(self.due_s) == len(self.late) == jobs, "due_s, late and left_s differ in their jobs"),
            (bool((self.nodes >= 0).all() and (self.gpus >= 1).all()), "a sort has no nodes or no GPUs"),
            (self.cost_s.shape[1] > int(self.gpus.max(initial=0)), "cost_s ends before all GPUs are busy"),
            (bool((self.left_s > 0).all()), "left_s must be above 0"),
            (bool((self.late >= 0).all()), "late must be at least 0"),
            (self.own_s.shape in ((0,), (jobs, configs)), "own_s and left_s differ in shape"),
            (self.pause_s.shape in ((0,), (jobs, configs)), "pause_s and left_s differ in shape"),
            (self.later.shape in ((0,), (jobs,)), "later and left_s differ in their jobs"),
            (self.stop_s.shape in ((0,), (jobs,)), "stop_s and left_s differ in their jobs"),
        )
        for holds, problem in rules:
            if not holds:
                raise InputError(problem)

    @property
    def jobs(self) -> int:
        """How many there are."""
        return len(self.left_s)

    @cached_property
    def possible(self) -> Bools:
        """Which job can run in which configuration on these nodes."""
        fits = (self.config_gpus <= self.gpus[self.config_sort]) & (self.nodes[self.config_sort] > 0)
        return np.asarray(np.isfinite(self.left_s) & fits)

    @cached_property
    def share_s(self) -> Floats:
        """Money per second that a job pays, by job (one for all if alike), configuration and busy GPUs of its
        node: of the node in proportion to its GPUs, and its own."""
        used = np.maximum(np.arange(self.cost_s.shape[1]), 1)
        share = self.config_gpus[:, None] * self.cost_s[self.config_sort] / used
        return np.asarray(share[None] + (self.own_s[:, :, None] if self.own_s.size else 0.0))

    @cached_property
    def known_s(self) -> Floats:
        """*left_s*, with some number where it is impossible."""
        return np.where(self.possible, self.left_s, 1.0)

    @cached_property
    def fastest_s(self) -> Floats:
        """What each job takes at least; inf: it can run nowhere."""
        return np.asarray(np.where(self.possible, self.left_s, np.inf).min(axis=1, initial=np.inf))

    @cached_property
    def slowest_s(self) -> Floats:
        """What each job takes at most, in a configuration that is possible."""
        return np.asarray(np.where(self.possible, self.left_s, -np.inf).max(axis=1, initial=-np.inf))

    @cached_property
    def total_gpus(self) -> int:
        """Of all nodes."""
        return int((self.nodes * self.gpus).sum())


@dataclass(frozen=True, eq=False)
class Schedule:
    """What was decided: a configuration for each job, and on which node of its sort, counted from 0.

    *bound*: no decision costs less by the objective that was minimised, nan: nobody knows; *worth* is
    what this one costs by it.
    """

    config: Ints  # POSTPONED: it waits
    node: Ints
    worth: float = np.nan
    bound: float = np.nan

    @property
    def gap(self) -> float:
        """How far it may be from the best, relative; nan: nobody knows."""
        return float(np.maximum(self.worth - self.bound, 0.0) / max(abs(self.worth), 1e-12))


def with_pauses(event: Event, config: Ints, who: Bools, restart_s: float) -> Event:
    """*event*, if *who* of the jobs, that have *config* now, lose *restart_s* with other GPUs, and those who
    run by waiting."""
    sort, gpus = (np.append(column, -1)[config] for column in (event.config_sort, event.config_gpus))
    moves = (event.config_sort != sort[:, None]) | (event.config_gpus != gpus[:, None])
    pause_s = np.where(moves & who[:, None] & np.isfinite(event.left_s), restart_s, 0.0)
    stop_s = np.where(config != POSTPONED, restart_s, 0.0)
    return replace(event, left_s=event.left_s + pause_s, pause_s=pause_s, stop_s=stop_s)


def at_most(event: Event, gpus: int) -> Event:
    """*event*, if nobody may have more GPUs than so many."""
    return replace(event, left_s=np.where(event.config_gpus <= gpus, event.left_s, np.inf))


def busy(event: Event, schedule: Schedule) -> list[Ints]:
    """GPUs that are busy on each node, by sort."""
    found = [np.zeros(int(count), dtype=np.int64) for count in event.nodes]
    for config, node in zip(schedule.config.tolist(), schedule.node.tolist(), strict=True):
        if config != POSTPONED:
            found[event.config_sort[config]][node] += event.config_gpus[config]
    return found


def check(event: Event, schedule: Schedule) -> None:
    """Raise unless jobs run where they can and no node has more busy GPUs than it has GPUs."""
    runs = np.flatnonzero(schedule.config != POSTPONED)
    if not event.possible[runs, schedule.config[runs]].all():
        row = int(runs[~event.possible[runs, schedule.config[runs]]][0])
        raise InputError(f"job {row} cannot run in configuration {schedule.config[row]}")
    for sort, used in enumerate(busy(event, schedule)):
        if (used > event.gpus[sort]).any():
            raise InputError(f"a node of sort {sort} has {used.max()} busy GPUs, expected {event.gpus[sort]}")


def cost_of(event: Event, schedule: Schedule, stands_s: float = np.inf) -> tuple[float, float, float]:
    """Seconds until the first job that runs ends, at most *stands_s*, and money until then: for energy, and
    for all who are past their due dates by then, running or not. Nothing runs: 0."""
    runs = np.flatnonzero(schedule.config != POSTPONED)
    if not len(runs):
        return 0.0, 0.0, 0.0
    until_s = min(stands_s, float(event.left_s[runs, schedule.config[runs]].min()))
    rate = sum(
        float(event.cost_s[sort, used].sum()) for sort, used in enumerate(busy(event, schedule)) if len(used)
    )
    if event.own_s.size:
        rate += float(event.own_s[runs, schedule.config[runs]].sum())
    late_s = np.maximum(0.0, event.now_s + until_s - np.maximum(event.due_s, event.now_s))
    return until_s, rate * until_s, float((event.late * late_s).sum())

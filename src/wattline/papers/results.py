"""Results of reproduced experiments: figures with their spread over seeds, beside the claim of the paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

PUBLIC = "public"
SYNTHETIC = "SYNTHETIC"
MEASURED = "measured"
"""Data of a row: published by others, a synthetic stand-in, or measured on this machine now."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Sample:
    """Figures of one case, one for each seed."""

    values: tuple[float, ...]

    @cached_property
    def mean(self) -> float:
        """Mean over the seeds; nan without any."""
        return float(np.mean(self.values)) if self.values else math.nan

    @cached_property
    def interval(self) -> tuple[float, float]:
        """Bootstrap interval of the mean, 95 %."""
        return bootstrap_interval(self.values) if self.values else (math.nan, math.nan)

    @property
    def range(self) -> tuple[float, float]:
        """Least and most of the seeds."""
        return (min(self.values), max(self.values)) if self.values else (math.nan, math.nan)


@dataclass(frozen=True)
class CaseResult:
    """One row: figures of the original as published (None: it was not run) and of ours.

    *losses* is the number of seeds in which ours is worse than the original or, without one, than the
    baseline of the claim.
    """

    case: str
    data: str  # PUBLIC, SYNTHETIC or MEASURED
    ours: Sample
    original: Sample | None = None
    baseline: float = 0.0

    @property
    def losses(self) -> int:
        """Seeds in which ours is worse than what it is compared with."""
        if self.original is None:
            return sum(value < self.baseline for value in self.ours.values)
        return sum(
            own < other - 1e-9 for own, other in zip(self.ours.values, self.original.values, strict=True)
        )


@dataclass(frozen=True)
class PaperResult:
    """The result of one experiment.

    *claim* is the paper's sentence in short, *low* and *high* its figures (nan: the claim has no such end).
    *left_out* says why nothing was run, and what to type; empty: it was run.
    """

    name: str
    title: str
    claim: str
    unit: str  # " %" or "x"
    low: float
    high: float
    original: str  # what the column of the original is
    conditions: str
    cases: tuple[CaseResult, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: str = ""
    figure: str = "cases"  # or "widths", "steps"
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def data(self) -> str:
        """The kinds of data of the rows, joined."""
        return ", ".join(dict.fromkeys(case.data for case in self.cases))


@dataclass(frozen=True)
class Experiments:
    """Settings of an experiment: folders of data, seeds, and a way to run many tasks.

    *quick*: few and short runs; their figures mean nothing.
    """

    folders: tuple[Path, ...] = ()
    seeds: int = 3
    quick: bool = False
    processes: int = 1
    progress: Callable[[int, int], None] = lambda done, total: None

    def run(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the results of *function* for all *items*, in their order."""
        todo = list(items)
        return list(self._count(self._map(function, todo), len(todo)))

    def _map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        if self.processes == 1 or len(items) < 2:
            yield from map(function, items)
            return
        pool = ProcessPoolExecutor(self.processes, get_context("spawn"))
        try:
            yield from pool.map(function, items)
        finally:
            pool.shutdown(cancel_futures=True)  # an interrupted command does not run the rest

    def _count(self, results: Iterator[Result], total: int) -> Iterator[Result]:
        self.progress(0, total)
        for number, result in enumerate(results, 1):
            self.progress(number, total)
            yield result


def bootstrap_interval(values: Sequence[float], seed: int = 0, draws: int = 2000) -> tuple[float, float]:
    """Return the 95 % interval of the mean of *values*."""
    column = np.asarray(values)
    picks = np.random.default_rng(seed).integers(len(column), size=(draws, len(column)))
    low, high = np.percentile(column[picks].mean(axis=1), (2.5, 97.5))
    return float(low), float(high)


def group_samples(pairs: Iterable[tuple[str, tuple[float, ...]]]) -> dict[str, list[Sample]]:
    """Return the samples of each case from pairs of its name and the figures of one seed."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for name, figures in pairs:
        found.setdefault(name, []).append(figures)
    return {name: [Sample(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}

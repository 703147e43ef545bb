"""The trials that have all infusible hyper-parameters in common, and the array in which they are trained."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from wattline.errors import ConfigError, NotFusible
from wattline.fusion.array import FusedArray, fuse
from wattline.fusion.optim import ArrayOptimizer
from wattline.fusion.search.batches import Seeded, of_epoch, side_by_side
from wattline.fusion.search.objective import Objective
from wattline.fusion.search.space import Config
from wattline.fusion.step.train_step import Step, train_step


@dataclass(order=True)
class Run:
    """A trial that has not ended. What it was when it left the array is kept if it may come back."""

    number: int
    config: Config = field(compare=False)
    history: list[float] = field(compare=False, default_factory=list)
    model: nn.Module | None = field(compare=False, default=None)
    optimiser: dict[str, Any] | None = field(compare=False, default=None)


@dataclass
class _Fused:
    """An array and who its rows are; None: nobody's any more."""

    array: FusedArray
    optimiser: ArrayOptimizer
    step: Step
    rows: list[Run | None]
    epoch_s: float = 0.0  # the last one, without compiling

    @property
    def live(self) -> list[Run]:
        return [run for run in self.rows if run is not None]


class Partition:
    """An array of some of its trials at a time, refilled from those who wait.

    The array and its compiled step outlive their members, and rows that nobody takes may stay for a while.
    Members may be *staggered*: of different ages.
    """

    def __init__(
        self,
        shared: Mapping[str, Any],
        make: Callable[[], Objective],
        *,
        seed: int,
        compile: bool,
        staggered: bool,
    ) -> None:
        self.shared = shared
        self.waiting: list[Run] = []
        self._make = make
        self._seed = seed
        self._compile = compile
        self._staggered = staggered
        self._fused: _Fused | None = None
        self._epochs = 0

    @cached_property
    def objective(self) -> Objective:
        """Made when it is needed, because it may hold data."""
        return self._make()

    @property
    def members(self) -> list[Run]:
        """Who is being trained."""
        return [] if self._fused is None else self._fused.live

    @property
    def open(self) -> bool:
        """Whether somebody may join: not while modules keep tensors from one call to the next."""
        return self._fused is None or not self._fused.live or not self._fused.array.carries

    def wait(self, run: Run) -> None:
        """Queue for the array; lower numbers go first."""
        heapq.heappush(self.waiting, run)

    def next(self) -> Run:
        """Who is first in the queue, and leaves it."""
        return heapq.heappop(self.waiting)

    def model(self, run: Run, build: Callable[[Config], nn.Module]) -> nn.Module:
        """The model of a trial: where it was left, or a new one, which depends on the trial only."""
        if run.model is not None:
            return run.model
        before = torch.get_rng_state()
        torch.manual_seed(self._seed + run.number)
        try:
            model = build(dict(run.config))
        finally:
            torch.set_rng_state(before)
        if not isinstance(model, nn.Module):
            raise ConfigError(f"build gave a {type(model).__name__}, expected a torch.nn.Module")
        return model.train()

    def join(self, joining: Sequence[tuple[Run, nn.Module]], epochs: int) -> None:
        """Train these from now on; rows of those who have left make room for them, or go.

        *epochs* is for how long the array will go on at most, if nobody else joins.
        """
        if joining:
            try:
                self._seat([run for run, _ in joining], [model for _, model in joining])
            except NotFusible as error:
                hint = "what changes the architecture may be neither in hyper nor in fusible"
                raise NotFusible(error.message, error.hint or hint) from error
        if self._fused is not None:
            _drop(self._fused, len(joining), epochs)

    def leave(self, run: Run) -> None:
        """A member goes."""
        fused = self._running()
        fused.rows[fused.rows.index(run)] = None

    def pause(self, run: Run) -> None:
        """A member goes, and takes with it what it needs to come back."""
        fused = self._running()
        row = fused.rows.index(run)
        run.model = fused.array.member(row)
        run.optimiser = fused.optimiser.member_state_dict(row)
        fused.rows[row] = None

    def weights(self, run: Run) -> dict[str, Tensor]:
        """The state dict of a member."""
        fused = self._running()
        return fused.array.member_state_dict(fused.rows.index(run))

    def train(self) -> list[tuple[Run, float]]:
        """One epoch of all members, and what each is worth after it: nan if its loss was not finite."""
        fused = self._running()
        oldest = max(len(run.history) for run in fused.live)
        epochs = [oldest if run is None else len(run.history) for run in fused.rows]
        finite: Tensor | None = None
        start_s, compile_s = time.perf_counter(), fused.step.compile_s
        for batch, own in self._batches(epochs):
            good = torch.isfinite(fused.step(*batch, members=own))
            finite = good if finite is None else finite & good
        if finite is None:
            raise ConfigError(f"there were no batches in epoch {epochs[0]}, expected at least one")
        self._epochs += 1
        fused.epoch_s = time.perf_counter() - start_s - (fused.step.compile_s - compile_s)
        values = self._evaluate(fused.array)
        return [
            (run, value if ok else math.nan)
            for run, value, ok in zip(fused.rows, values, finite.tolist(), strict=True)
            if run is not None
        ]

    def _running(self) -> _Fused:
        assert self._fused is not None
        return self._fused

    def _batches(self, epochs: Sequence[int]) -> Iterable[tuple[Any, bool]]:
        """And whether they have a row for each member: each such kind of step is compiled by itself."""
        given = self.objective.batches
        if not callable(given):
            return ((batch, False) for batch in Seeded(lambda: given, self._seed + self._epochs))
        apart = len(epochs) > 1 and (self._staggered or len(set(epochs)) > 1)
        found = side_by_side(given, epochs, self._seed) if apart else of_epoch(given, epochs[0], self._seed)
        return ((batch, apart) for batch in found)

    def _evaluate(self, array: FusedArray) -> list[float]:
        array.eval()
        with torch.no_grad():
            values = torch.as_tensor(self.objective.evaluate(array), dtype=torch.float64)
        array.train()
        if values.shape != (len(array),):
            raise ConfigError(
                f"evaluate gave the shape {tuple(values.shape)}, expected one number for each of {len(array)}"
            )
        found: list[float] = values.tolist()
        return found

    def _seat(self, runs: Sequence[Run], models: Sequence[nn.Module]) -> None:
        hyper = {name: [run.config[name] for run in runs] for name in self.objective.hyper}
        fused = self._fused
        if fused is None or fused.array.carries:
            array = fuse(models)
            optimiser = self.objective.optimiser(array.parameters(), **hyper)
            step = train_step(array, self.objective.loss, optimiser, compile=self._compile)
            fused = self._fused = _Fused(array, optimiser, step, [])
        else:
            fused.array.add(models, **hyper)
        for row, run in enumerate(runs, len(fused.rows)):
            if run.optimiser is not None:
                fused.optimiser.load_member(row, run.optimiser)
            run.model = run.optimiser = None
        fused.rows += runs


def _drop(fused: _Fused, joined: int, epochs: int) -> None:
    """Rows of nobody go: as many as have *joined*, and all if that pays in the *epochs* to come.

    A compiled step of this width is cheaper than another for a while: that would have to be compiled, and
    runs uncompiled until it has cost as much.
    """
    idle = [row for row, run in enumerate(fused.rows) if run is None]
    if len(idle) == len(fused.rows):
        gone = idle[1:]  # one stays, for others to join
    else:
        kept = max(0, len(idle) - joined)
        saved_s = fused.epoch_s * epochs * kept / len(fused.rows)
        pays = not fused.step.way.compiled or saved_s >= 2 * fused.step.compile_s
        gone = idle if pays else idle[:joined]
    if gone:
        fused.array.drop(gone)
        fused.rows = [run for row, run in enumerate(fused.rows) if row not in set(gone)]

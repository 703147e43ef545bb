"""Partition: the trials with the same infusible hyper-parameters, and the array that trains them."""

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
from wattline.fusion.search.batches import SeededBatches, epoch_batches, stack_epochs
from wattline.fusion.search.objective import Objective
from wattline.fusion.search.space import Config
from wattline.fusion.step.train_step import Step, train_step


@dataclass(order=True)
class PartitionRun:
    """A trial that has not ended; its model and optimiser state are kept while it is paused."""

    number: int
    config: Config = field(compare=False)
    history: list[float] = field(compare=False, default_factory=list)
    model: nn.Module | None = field(compare=False, default=None)
    optimiser: dict[str, Any] | None = field(compare=False, default=None)


@dataclass
class _RunningArray:
    """An array and the run of each row; None: the row is idle."""

    array: FusedArray
    optimiser: ArrayOptimizer
    step: Step
    rows: list[PartitionRun | None]
    epoch_s: float = 0.0  # of the last epoch, without compiling

    @property
    def active(self) -> list[PartitionRun]:
        return [run for run in self.rows if run is not None]


class Partition:
    """The array of some of the partition's trials, refilled from those waiting.

    The array and its compiled step are reused for later members, and idle rows may remain for a while. With
    *staggered*, members may be in different epochs.
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
        self.waiting: list[PartitionRun] = []
        self._make = make
        self._seed = seed
        self._compile = compile
        self._staggered = staggered
        self._fused: _RunningArray | None = None
        self._epochs = 0

    @cached_property
    def objective(self) -> Objective:
        """The objective, built on first use because it may hold data."""
        return self._make()

    @property
    def members(self) -> list[PartitionRun]:
        """The runs being trained."""
        return [] if self._fused is None else self._fused.active

    @property
    def accepts_members(self) -> bool:
        """True if runs may join: not while modules keep tensors from one call to the next."""
        return self._fused is None or not self._fused.active or not self._fused.array.carries

    def enqueue(self, run: PartitionRun) -> None:
        """Queue a run for the array; lower numbers go first."""
        heapq.heappush(self.waiting, run)

    def dequeue(self) -> PartitionRun:
        """Remove and return the first run of the queue."""
        return heapq.heappop(self.waiting)

    def model(self, run: PartitionRun, build: Callable[[Config], nn.Module]) -> nn.Module:
        """Return the model of a run: its paused one, or a new one that depends on the trial only."""
        if run.model is not None:
            return run.model
        before = torch.get_rng_state()
        torch.manual_seed(self._seed + run.number)
        try:
            model = build(dict(run.config))
        finally:
            torch.set_rng_state(before)
        if not isinstance(model, nn.Module):
            raise ConfigError(f"build returned a {type(model).__name__}, expected a torch.nn.Module")
        return model.train()

    def join(self, joining: Sequence[tuple[PartitionRun, nn.Module]], epochs: int) -> None:
        """Train these runs from now on; idle rows are reused or dropped.

        *epochs* is the number of epochs that the array will run at most if no further run joins.
        """
        if joining:
            try:
                self._add_members([run for run, _ in joining], [model for _, model in joining])
            except NotFusible as error:
                hint = "remove hyper-parameters that change the architecture from hyper and fusible"
                raise NotFusible(error.message, error.hint or hint) from error
        if self._fused is not None:
            _drop_idle_rows(self._fused, len(joining), epochs)

    def remove(self, run: PartitionRun) -> None:
        """Remove a run from the array."""
        fused = self._require_array()
        fused.rows[fused.rows.index(run)] = None

    def pause(self, run: PartitionRun) -> None:
        """Remove a run from the array and keep its model and optimiser state."""
        fused = self._require_array()
        row = fused.rows.index(run)
        run.model = fused.array.member(row)
        run.optimiser = fused.optimiser.member_state_dict(row)
        fused.rows[row] = None

    def member_weights(self, run: PartitionRun) -> dict[str, Tensor]:
        """Return the state dict of a run's model."""
        fused = self._require_array()
        return fused.array.member_state_dict(fused.rows.index(run))

    def train(self) -> list[tuple[PartitionRun, float]]:
        """Train one epoch and return the value of each run: nan if its loss was not finite."""
        fused = self._require_array()
        oldest = max(len(run.history) for run in fused.active)
        epochs = [oldest if run is None else len(run.history) for run in fused.rows]
        finite: Tensor | None = None
        start_s, compile_s = time.perf_counter(), fused.step.compile_s
        for batch, own in self._batches(epochs):
            good = torch.isfinite(fused.step(*batch, members=own))
            finite = good if finite is None else finite & good
        if finite is None:
            raise ConfigError(f"epoch {epochs[0]} has no batches, expected at least one")
        self._epochs += 1
        fused.epoch_s = time.perf_counter() - start_s - (fused.step.compile_s - compile_s)
        values = self._evaluate(fused.array)
        return [
            (run, value if ok else math.nan)
            for run, value, ok in zip(fused.rows, values, finite.tolist(), strict=True)
            if run is not None
        ]

    def _require_array(self) -> _RunningArray:
        assert self._fused is not None
        return self._fused

    def _batches(self, epochs: Sequence[int]) -> Iterable[tuple[Any, bool]]:
        """Yield batches and whether they have a row for each member; each kind is compiled separately."""
        batches = self.objective.batches
        if not callable(batches):
            return ((batch, False) for batch in SeededBatches(lambda: batches, self._seed + self._epochs))
        per_member = len(epochs) > 1 and (self._staggered or len(set(epochs)) > 1)
        selected = (
            stack_epochs(batches, epochs, self._seed)
            if per_member
            else epoch_batches(batches, epochs[0], self._seed)
        )
        return ((batch, per_member) for batch in selected)

    def _evaluate(self, array: FusedArray) -> list[float]:
        array.eval()
        with torch.no_grad():
            values = torch.as_tensor(self.objective.evaluate(array), dtype=torch.float64)
        array.train()
        if values.shape != (len(array),):
            raise ConfigError(
                f"evaluate returned the shape {tuple(values.shape)}, "
                f"expected one number for each of {len(array)} members"
            )
        numbers: list[float] = values.tolist()
        return numbers

    def _add_members(self, runs: Sequence[PartitionRun], models: Sequence[nn.Module]) -> None:
        hyper = {name: [run.config[name] for run in runs] for name in self.objective.hyper}
        fused = self._fused
        if fused is None or fused.array.carries:
            array = fuse(models)
            optimiser = self.objective.optimiser(array.parameters(), **hyper)
            step = train_step(array, self.objective.loss, optimiser, compile=self._compile)
            fused = self._fused = _RunningArray(array, optimiser, step, [])
        else:
            fused.array.add(models, **hyper)
        for row, run in enumerate(runs, len(fused.rows)):
            if run.optimiser is not None:
                fused.optimiser.load_member(row, run.optimiser)
            run.model = run.optimiser = None
        fused.rows += runs


def _drop_idle_rows(fused: _RunningArray, joined: int, epochs: int) -> None:
    """Drop as many idle rows as have *joined*, and all if that pays off in the remaining *epochs*.

    Keeping the compiled step of this width is cheaper for a while: another width must be compiled, and runs
    uncompiled until that has taken as long as compiling.
    """
    idle = [row for row, run in enumerate(fused.rows) if run is None]
    if len(idle) == len(fused.rows):
        dropped = idle[1:]  # one row stays for others to join
    else:
        unused = max(0, len(idle) - joined)
        saved_s = fused.epoch_s * epochs * unused / len(fused.rows)
        pays = not fused.step.way.compiled or saved_s >= 2 * fused.step.compile_s
        dropped = idle if pays else idle[:joined]
    if dropped:
        fused.array.drop(dropped)
        fused.rows = [run for row, run in enumerate(fused.rows) if row not in set(dropped)]

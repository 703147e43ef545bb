"""The batch size of a job that runs again and again: chosen for this run, and what came of it remembered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wattline.batch_size.bandit import Task, Trial
from wattline.batch_size.history import Memory
from wattline.errors import ConfigError


class Recurrence:
    """One run of *group* on a *kind* of GPU, with one of *batches*."""

    def __init__(self, memory: Memory, group: str, kind: str, max_w: float, eta: float) -> None:
        self._memory, self._group, self._kind, self._max_w, self._eta = memory, group, kind, max_w, eta
        self._trial: Trial | None = None

    def choose(
        self, batches: Sequence[int], default: int, max_epochs: int, tell: Callable[[str], None]
    ) -> int:
        """The batch size of this run, which is under way from now on."""
        import numpy as np

        from wattline.batch_size.bayesian import Recurring  # takes scipy

        if default not in batches:
            raise ConfigError(f"batch_size is {default}, expected one of batch_sizes, {tuple(batches)}")
        self._memory.describe(self._group, Task(tuple(sorted(batches)), default, max_epochs))
        self._tuner = Recurring()
        with self._memory.writing():  # nobody else chooses meanwhile
            self._state = self._memory.state(
                self._group, self._kind, self._tuner, eta=self._eta, max_w=self._max_w
            )
            try:
                self._trial = self._tuner.next(self._state, np.random.default_rng())
            except ConfigError as error:
                tell(f"{self._group}: {error.message} yet; it is tried again")
                self._trial = Trial(default)
            self._memory.begin(self._group, self._kind, self._trial)
        return self._trial.batch

    def given_up(self, batch: int) -> None:
        """The run ended for a reason that says nothing of its batch size."""
        self._memory.forget_trial(self._group, self._kind, batch)

    def most_epochs(self, epoch_j: float) -> int | None:
        """How many epochs this run may take, now that one costs *epoch_j*; None: as many as it wants."""
        if self._trial is None or not epoch_j > 0:
            return None
        return self._tuner.epochs(self._state, self._trial, epoch_j)

    def ended(self, batch: int, *, reached: bool, seconds: float, joules: float | None, epochs: int) -> None:
        """Remember what came of it."""
        self._memory.add(
            self._group,
            self._kind,
            batch=batch,
            reached=reached,
            seconds=seconds,
            joules=joules,
            epochs=epochs,
        )

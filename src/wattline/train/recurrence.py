"""Batch size of a recurring job: chosen for this run, with the outcome recorded for the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wattline.batch_size.bandit import BatchTrial, TuningTask
from wattline.batch_size.history import RunHistory
from wattline.errors import ConfigError


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return True if *error* is that of Python or of PyTorch for memory that cannot be allocated."""
    return any(kind.__name__ in ("MemoryError", "OutOfMemoryError") for kind in type(error).__mro__)


class RecurringRun:
    """One run of the recurring job *group* on a *kind* of GPU."""

    def __init__(self, history: RunHistory, group: str, kind: str, max_w: float, eta: float) -> None:
        self._history, self._group, self._kind, self._max_w, self._eta = history, group, kind, max_w, eta
        self._trial: BatchTrial | None = None

    def choose_batch_size(
        self, batches: Sequence[int], default: int, max_epochs: int, warn: Callable[[str], None]
    ) -> int:
        """Choose the batch size of this run, and record the run as started."""
        import numpy as np

        from wattline.batch_size.bayesian import BayesianTuner  # imports scipy

        if default not in batches:
            raise ConfigError(f"batch_size is {default}, expected one of batch_sizes, {tuple(batches)}")
        self._history.store_task(self._group, TuningTask(tuple(sorted(batches)), default, max_epochs))
        self._tuner = BayesianTuner()
        with self._history.transaction():  # no other run may choose meanwhile
            self._state = self._history.load_state(
                self._group, self._kind, self._tuner, eta=self._eta, max_w=self._max_w
            )
            try:
                self._trial = self._tuner.next(self._state, np.random.default_rng())
            except ConfigError:  # none has
                self._trial = BatchTrial(default)
            if self._state.stopped_runs.any() and not self._state.runs.any():
                failed = [b for b, n in zip(sorted(batches), self._state.stopped_runs, strict=True) if n]
                warn(
                    f"{self._group}: batch size {', '.join(map(str, failed))} did not reach the target yet;"
                    f" {self._trial.batch} is tried"
                )
            self._history.add_trial(self._group, self._kind, self._trial)
        return self._trial.batch

    def discard(self, batch: int) -> None:
        """Forget the run: it ended for a reason unrelated to its batch size."""
        self._history.remove_trial(self._group, self._kind, batch)

    def max_epochs(self, epoch_j: float) -> int | None:
        """Return the number of epochs that this run may take if one costs *epoch_j*; None: no limit."""
        if self._trial is None or not epoch_j > 0:
            return None
        return self._tuner.epoch_limit(self._state, self._trial, epoch_j)

    def record_end(
        self,
        batch: int,
        *,
        reached: bool,
        seconds: float,
        joules: float | None,
        epochs: int,
        method: str = "",
    ) -> None:
        """Record the outcome of the run."""
        self._history.add_run(
            self._group,
            self._kind,
            batch=batch,
            reached=reached,
            seconds=seconds,
            joules=joules,
            epochs=epochs,
            method=method,
        )

"""Results of earlier runs of this job: measured caps, and batch sizes of recurring jobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from wattline.batch_size.history import Memory
from wattline.profiler.cap_window import Tried
from wattline.train.recurrence import Recurrence

_MAX_EPOCHS = 1000  # a run has no bound on epochs of its own; the tuner's bound is on cost


class JobHistory:
    """Access to the database for one run; all methods do nothing until `open` has succeeded.

    An error while writing is reported by *warn* and does not end the training.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._memory: Memory | None = None
        self._recurrence: Recurrence | None = None

    def open(self, path: str | Path | None) -> None:
        """Open the database; None: the default path."""
        self._memory = Memory.open(path)

    def close(self) -> None:
        """Close the database."""
        if self._memory is not None:
            self._memory.close()
        self._memory = self._recurrence = None

    def join_group(self, group: str, kind: str, max_w: float, eta: float) -> None:
        """Make this a run of the recurring job *group*."""
        assert self._memory is not None
        self._recurrence = Recurrence(self._memory, group, kind, max_w, eta)

    def choose_batch_size(self, sizes: Sequence[int], default: int, warn: Callable[[str], None]) -> int:
        """Choose the batch size of this run of a recurring job."""
        assert self._recurrence is not None
        return self._recurrence.choose(sizes, default, _MAX_EPOCHS, warn)

    def read_caps(self, job: str, batch: int, kind: str) -> Sequence[Tried]:
        """Return the caps that an earlier run has measured."""
        return () if self._memory is None else self._memory.profile(job, batch, kind)

    def write_caps(self, job: str, batch: int, kind: str, measurements: Sequence[Tried]) -> None:
        """Record measured caps."""
        if self._memory is not None:
            with self._report_errors():
                self._memory.keep_profile(job, batch, kind, measurements)

    def max_epochs(self, epoch_cost_j: float) -> int | None:
        """Return the number of epochs that this run may take; None: no limit."""
        return None if self._recurrence is None else self._recurrence.max_epochs(epoch_cost_j)

    def record_end(
        self, batch: int, *, failed: bool, reached: bool, seconds: float, joules: float | None, epochs: int
    ) -> None:
        """Record the outcome of this run for the next choice; a failed run is forgotten."""
        if self._recurrence is None or not batch:
            return
        with self._report_errors():
            if failed:  # a failure is no evidence on the batch size
                self._recurrence.discard(batch)
                return
            self._recurrence.record_end(batch, reached=reached, seconds=seconds, joules=joules, epochs=epochs)

    @contextmanager
    def _report_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            self._warn(f"the history of this job cannot be written: {error}")

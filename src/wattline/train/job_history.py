"""Results of earlier runs of this job: measured caps, and batch sizes of recurring jobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from wattline.batch_size.history import OUT_OF_MEMORY, RunHistory
from wattline.profiler.cap_aim import CapMeasurement
from wattline.train.recurrence import RecurringRun

_MAX_EPOCHS = 1000  # a run has no bound on epochs of its own; the tuner's bound is on cost


class JobHistory:
    """Access to the database for one run; all methods do nothing until `open` has succeeded.

    An error while writing is reported by *warn* and does not end the training.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._runs: RunHistory | None = None
        self._run: RecurringRun | None = None
        self._key: tuple[str, str, int, str] | None = None  # of caps: job, kind and number of GPUs, device

    def open(self, path: str | Path | None) -> None:
        """Open the database; None: the default path."""
        self._runs = RunHistory.open(path)

    def close(self) -> None:
        """Close the database."""
        if self._runs is not None:
            self._runs.close()
        self._runs = self._run = None

    def join_group(self, group: str, kind: str, max_w: float, eta: float) -> None:
        """Make this a run of the recurring job *group*."""
        assert self._runs is not None
        self._run = RecurringRun(self._runs, group, kind, max_w, eta)

    def choose_batch_size(self, sizes: Sequence[int], default: int, warn: Callable[[str], None]) -> int:
        """Choose the batch size of this run of a recurring job."""
        assert self._run is not None
        return self._run.choose_batch_size(sizes, default, _MAX_EPOCHS, warn)

    def set_key(self, job: str, kind: str, gpus: int, device: str) -> None:
        """Set the key of measured caps: the job, and the kind, number and description of its GPUs.

        Without a key caps are neither read nor written.
        """
        self._key = job, kind, gpus, device

    def read_caps(self, batch: int) -> Sequence[CapMeasurement]:
        """Return the caps that an earlier run has measured, and that are still valid."""
        if self._runs is None or self._key is None:
            return ()
        job, kind, gpus, device = self._key
        return self._runs.load_sweep(job, batch, kind, gpus=gpus, device=device)

    def write_caps(self, batch: int, aim: str, measurements: Sequence[CapMeasurement]) -> None:
        """Record measured caps."""
        if self._runs is not None and self._key is not None:
            job, kind, gpus, device = self._key
            with self._report_errors():
                self._runs.store_sweep(job, batch, kind, measurements, gpus=gpus, aim=aim, device=device)

    def max_epochs(self, epoch_cost_j: float) -> int | None:
        """Return the number of epochs that this run may take; None: no limit."""
        return None if self._run is None else self._run.max_epochs(epoch_cost_j)

    def record_end(
        self,
        batch: int,
        *,
        failed: bool,
        out_of_memory: bool,
        reached: bool,
        seconds: float,
        joules: float | None,
        epochs: int,
        method: str,
    ) -> None:
        """Record the outcome of this run for the next choice; a failed run is forgotten.

        A run that ran out of memory counts: its batch size is too large.
        """
        if self._run is None or not batch:
            return
        with self._report_errors():
            if failed and not out_of_memory:  # a failure is no evidence on the batch size
                self._run.discard(batch)
                return
            self._run.record_end(
                batch,
                reached=reached and not failed,
                seconds=seconds,
                joules=joules,
                epochs=OUT_OF_MEMORY if out_of_memory else epochs,
                method=method,
            )

    @contextmanager
    def _report_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            self._warn(f"the history of this job cannot be written: {error}")

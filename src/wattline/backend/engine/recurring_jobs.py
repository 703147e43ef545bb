"""Batch size and power limit of recurring jobs: chosen when one starts, learnt from when it ends."""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import replace
from pathlib import Path

from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.job_spec import JobSpec
from wattline.backend.engine.progress import ProgressReader
from wattline.backend.engine.protocol import Engine
from wattline.batch_size.history import OUT_OF_MEMORY, RunHistory
from wattline.errors import WattlineError
from wattline.profiler.cap_aim import Aim, find_best
from wattline.train.recurrence import RecurringRun

_MAX_EPOCHS = 1000
_ETA = 0.5  # weight of energy against time in Zeus' cost
_AIM = f"cost:{_ETA}"

_logger = logging.getLogger(__name__)


class RecurringJobs:
    """The history of recurring jobs on this engine. Errors of its database are logged and ignored."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self._engine = engine
        self._memory = RunHistory.open(path)

    def close(self) -> None:
        """Close the database."""
        self._memory.close()

    def choose(self, spec: JobSpec, attempt: AttemptRecord) -> None:
        """Set the attempt's batch size to one worth trying, and its power limit to the best known.

        Values that the policy has set stay. A batch size that is chosen here is an open trial until `learn`
        or `withdraw`.
        """
        if not spec.group:
            return
        settings = attempt.settings
        batch = settings.batch
        if spec.batch_sizes and not batch:
            try:
                default = spec.batch if spec.batch in spec.batch_sizes else spec.batch_sizes[0]
                recurrence = self._recurrence(spec, attempt)
                batch = recurrence.choose_batch_size(spec.batch_sizes, default, _MAX_EPOCHS, _logger.warning)
                attempt.has_trial = True
            except (WattlineError, sqlite3.Error) as error:
                _logger.warning("%s: no batch size was chosen: %s", spec.group, error)
        cap_w = settings.cap_w or self._find_best_cap(spec, attempt, batch or spec.batch)
        attempt.settings = replace(settings, batch=batch, cap_w=cap_w)

    def _find_best_cap(self, spec: JobSpec, attempt: AttemptRecord, batch: int) -> int:
        """Return the best cap by the sweep that a session has measured; 0: it has to be measured."""
        try:
            kind, max_w = self._engine.gpu_model(attempt.node)
            gpus = sum(count for _, count in attempt.allocation)
            for sweep in self._memory.sweeps(spec.group):
                if (sweep.kind, sweep.gpus, sweep.batch) != (kind, gpus, batch):
                    continue
                if sweep.is_expired or sweep.usable != sweep.measurements:
                    return 0
                aim = Aim.parse(spec.aim or sweep.aim or _AIM)
                return round(find_best(sweep.usable, aim, max_w, gpus).cap_w)
        except (WattlineError, sqlite3.Error) as error:
            _logger.warning("%s: the best power cap is not known: %s", spec.group, error)
        return 0

    def withdraw(self, spec: JobSpec, attempt: AttemptRecord) -> None:
        """Forget the trial of an attempt that never ran."""
        if not attempt.has_trial:
            return
        attempt.has_trial = False
        try:
            kind, _ = self._engine.gpu_model(attempt.node)
            self._memory.remove_trial(spec.group, kind, attempt.settings.batch)
        except (WattlineError, sqlite3.Error) as error:
            _logger.warning("%s: a trial that did not run is still open: %s", spec.group, error)

    def learn(self, spec: JobSpec, progress: ProgressReader, succeeded: bool, state: str = "") -> None:
        """Record what a job that ended in *state* reached and spent, as far as its session reported it.

        A run that exceeded its time limit did not reach the target. One that ran out of memory counts, too:
        its batch size is too large. Other failures are forgotten: they say nothing about the batch size.
        """
        batch = progress.batch or spec.batch
        if not batch or not progress.kind:
            return
        succeeded = succeeded and progress.ended != "failed"
        out_of_memory = state == "OUT_OF_MEMORY" or (not succeeded and progress.out_of_memory)
        memory = self._memory
        try:
            if progress.sweep and spec.group:
                memory.store_sweep(
                    spec.group,
                    batch,
                    progress.kind,
                    progress.sweep,
                    gpus=progress.gpus,
                    aim=progress.aim,
                )
            if not (succeeded or out_of_memory or state == "TIMEOUT"):
                memory.remove_trial(spec.group, progress.kind, batch)
                return
            memory.add_run(
                spec.group,
                progress.kind,
                batch=batch,
                reached=succeeded
                and (progress.ended == "reached" or (progress.ended == "ended" and not spec.target)),
                seconds=progress.seconds,
                joules=progress.joules,
                epochs=OUT_OF_MEMORY if out_of_memory else progress.epochs,
                method=progress.method,
            )
        except (sqlite3.Error, OverflowError) as error:
            _logger.warning("%s: the run of job %s is not in the history: %s", spec.group, spec.id, error)

    def _recurrence(self, spec: JobSpec, attempt: AttemptRecord) -> RecurringRun:
        max_w = 0.0
        for node, gpus in attempt.allocation:
            max_w += gpus * self._engine.gpu_model(node)[1]
        kind, _ = self._engine.gpu_model(attempt.node)
        return RecurringRun(self._memory, spec.group, kind, max_w or 1.0, _ETA)

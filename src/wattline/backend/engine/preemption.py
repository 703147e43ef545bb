"""Checkpoints of running jobs, and until when a job is not stopped for others.

A job is preempted only when little is lost by that. Unless its job file decides (`preemptible`), it must
have saved a checkpoint: its session reported one, a file in its checkpoint folder is new, or it is elastic.
If a stop does not make it save, it must have saved in the present attempt, so that each gets further.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.progress import ProgressReader
from wattline.core.jobs import PREEMPTIBLE_ALWAYS, PREEMPTIBLE_NEVER, PREEMPTIBLE_ONCE_SAVED
from wattline.train.checkpoint import STATE_FILE

STARTUP_FACTOR = 5.0
"""An attempt runs at least this many times its start-up, so that restarts take at most a sixth of it."""
LEAST_RUN_S = 10.0
"""... and at least this long."""

_SCAN_INTERVAL_S, _NEXT_SCAN_INTERVAL_S = 1.0, 10.0  # before and after the first file is found
_MAX_FILES, _MAX_DEPTH = 2000, 3


def least_run_s(record: JobRecord) -> float:
    """Return how long an attempt of a job runs before it may be stopped for others."""
    if record.spec.min_runtime_s is not None:
        return record.spec.min_runtime_s
    return max(LEAST_RUN_S, STARTUP_FACTOR * record.startup_s)


def preemption_columns(record: JobRecord) -> dict[str, Any]:
    """Return the columns of the job table about preemption, as far as it is known before an attempt."""
    word = record.spec.preemptible
    codes = {None: PREEMPTIBLE_ONCE_SAVED, True: PREEMPTIBLE_ALWAYS, False: PREEMPTIBLE_NEVER}
    saves = record.spec.elastic if record.yields is None else record.yields
    return {
        "preemptible": codes[word],
        "checkpoint_s": 0.0 if saves else -1.0,
        "min_runtime_s": least_run_s(record),
    }


@dataclass(frozen=True)
class Protection:
    """The last checkpoint of a running job, and until when it is not stopped for others."""

    fraction: float  # of the job's work that is saved
    saved_s: float  # when it was saved, or since when nothing was; inf: a stop saves all
    until_s: float  # inf: until it has saved, or for good
    reason: str  # for users; empty: it may be stopped

    def describe(self, now_s: float) -> str:
        """Return a sentence about the protection at *now_s*."""
        return self.reason if self.until_s > now_s else ""

    def unsaved_s(self, now_s: float) -> float:
        """Return the running time that a stop at *now_s* would lose."""
        return max(now_s - self.saved_s, 0.0)


class CheckpointWatch:
    """Notices the checkpoints of one job in one attempt: those of its session, or new files."""

    def __init__(self, folder: Path, start_s: float, *, adopted: bool) -> None:
        self._folder, self._start_s = folder, start_s
        # Files of earlier attempts do not count; those of an adopted attempt are newer than its start.
        self._known_s = start_s if adopted else self._find_newest_s()
        self._scanned_s = -math.inf
        self._file_s = -math.inf  # time of the newest file of this attempt
        self.reported: Protection | None = None  # to the policy
        self.reported_s = -math.inf

    def check(self, record: JobRecord, progress: ProgressReader, now_s: float) -> Protection:
        """Return the job's protection now; also update the record by what was found out."""
        if progress.first_s is not None and not progress.first_counted:
            progress.first_counted = True
            record.startup_s = min(max(progress.first_s - self._start_s, 0.0), 86400.0)
            if record.starts > 1:
                record.restart_s = record.startup_s
        every_s = _SCAN_INTERVAL_S if self._file_s == -math.inf else _NEXT_SCAN_INTERVAL_S
        if not progress.saved_count and now_s - self._scanned_s >= every_s:
            self._scanned_s = now_s
            newest_s = self._find_newest_s()
            if newest_s > self._known_s:
                self._file_s = min(max(newest_s, self._start_s), now_s)
        has_saved = progress.saved_count > 0 or self._file_s > -math.inf
        record.saves = record.saves or has_saved
        saved_s = min(progress.saved_s, now_s) if progress.saved_count else max(self._file_s, self._start_s)
        if _saves_at_stop(record, progress):
            saved_s = math.inf
        fraction = max(record.completed_fraction, progress.saved)
        return Protection(fraction, saved_s, *self._protect(record, progress, has_saved))

    def _protect(self, record: JobRecord, progress: ProgressReader, has_saved: bool) -> tuple[float, str]:
        preemptible, least_s = record.spec.preemptible, least_run_s(record)
        until_s = self._start_s + least_s
        reason = f"not in the first {least_s:.3g} s of an attempt"
        if preemptible is False:
            return math.inf, "never (preemptible: false)"
        if preemptible is None and not (record.saves or record.spec.elastic):
            return math.inf, "not before it has saved a checkpoint"
        if preemptible is None and not (has_saved or _saves_at_stop(record, progress)):
            return math.inf, "not before it has saved a checkpoint in this attempt"
        return until_s, reason

    def _find_newest_s(self) -> float:
        """Return the time of the newest file in the checkpoint folder; -inf: there is none."""
        return max(_file_times(self._folder), default=-math.inf)


def _saves_at_stop(record: JobRecord, progress: ProgressReader) -> bool:
    """Return whether a stop makes the job save, as far as that is known."""
    if record.yields is not None:
        return record.yields
    return record.spec.elastic or (progress.has_session and record.saves)


def _file_times(folder: Path) -> Iterator[float]:
    """Yield the times of the files in *folder*; hidden, empty and very many files are left out.

    So is the position that a session saves: alone it is no checkpoint of the job.
    """
    waiting, count = [(str(folder), 0)], 0
    while waiting:
        path, depth = waiting.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    count += 1
                    if count > _MAX_FILES:
                        return
                    # A lock, or a file that is being written, or the position of a session.
                    if entry.name.startswith(".") or entry.name == STATE_FILE:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _MAX_DEPTH:
                            waiting.append((entry.path, depth + 1))
                        continue
                    status = entry.stat(follow_symlinks=False)
                    if status.st_size:
                        yield status.st_mtime
        except OSError:
            continue

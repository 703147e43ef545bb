"""Deletion of old jobs, logs and events, by age and size.

Never deleted are jobs that have not ended, the events that the projection of kept jobs and settings needs,
the current epoch, the latest meter readings, the jobs of a sweep that is not over, jobs that live jobs depend
on, and the newest job, so that no id is used twice. Rows are deleted before folders: a folder that is left
behind by a crash has no row, and the next pruning deletes it.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from wattline.errors import WattlineError
from wattline.service.archive import write_archive
from wattline.service.settings import DAY_S, RetentionSettings
from wattline.service.storage.pruning import EndedJob, StorePruner
from wattline.service.storage.store import Store

_FIRST_S = 60.0  # from the start of the service to its first pruning
_METER_S = 2 * DAY_S  # readings that daily budgets may need
_CHUNK = 500  # jobs deleted in one transaction
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PruneReport:
    """Numbers of what was deleted, or with *dry_run* would be."""

    dry_run: bool
    jobs: int  # with their events and folders
    events: int
    epochs: int
    log_files: int  # of jobs that are kept
    bytes: int  # of folders and log files
    database_bytes: int  # by which the database has shrunk
    kept_jobs: int
    archive: str  # file of deleted jobs; empty: none was written


class Pruner:
    """Prunes the store and the job folders of a service."""

    def __init__(self, store: Store, folder: Path, clock: Callable[[], float]) -> None:
        self._rows, self._root, self._clock = StorePruner(store), folder / "jobs", clock
        self._store = store
        self._lock = threading.Lock()

    def prune(self, settings: RetentionSettings, dry_run: bool = False) -> PruneReport:
        """Delete what is older or larger than the settings allow; see the module for what is kept."""
        with self._lock:
            now_s = self._clock()
            ended = self._rows.ended_jobs()
            jobs, job_bytes = self._select(ended, settings, now_s)
            orphans = self._find_orphans()
            logs = self._find_logs(ended, {job.id for job in jobs}, now_s - settings.logs_s)
            events_s = now_s - settings.events_s
            events = self._rows.count_events([job.id for job in jobs], events_s)
            report = PruneReport(
                dry_run=dry_run,
                jobs=len(jobs),
                events=events,
                epochs=self._rows.count_epochs(events_s),
                log_files=len(logs),
                bytes=job_bytes + _sum_bytes(logs) + sum(map(_folder_bytes, orphans)),
                database_bytes=0,
                kept_jobs=self._rows.count_jobs() - len(jobs),
                archive="",
            )
            if dry_run:
                return report
            archive = ""
            if jobs and settings.archive:
                archive = write_archive(
                    self._store, self._root, [job.id for job in jobs], Path(settings.archive), now_s
                )
            before = self._rows.file_bytes()
            for first in range(0, len(jobs), _CHUNK):
                self._rows.delete_jobs([job.id for job in jobs[first : first + _CHUNK]])
            self._rows.delete_old(events_s, now_s - _METER_S)
            for path in (*(self._root / job.id for job in jobs), *orphans):
                shutil.rmtree(path, ignore_errors=True)
            for path in logs:
                path.unlink(missing_ok=True)
            if jobs or report.events or report.epochs:
                self._rows.vacuum()
            return replace(report, archive=archive, database_bytes=max(before - self._rows.file_bytes(), 0))

    def _select(
        self, ended: Sequence[EndedJob], settings: RetentionSettings, now_s: float
    ) -> tuple[list[EndedJob], int]:
        """Return the jobs to delete, the oldest first, and the bytes of their folders."""
        sizes = {path.name: _folder_bytes(path) for path in self._list_folders()}
        total = sum(sizes.values()) + self._rows.file_bytes()
        selected, freed = list[EndedJob](), 0
        for job in ended:
            old = job.end_s < now_s - settings.jobs_s
            if job.needed or not (old or total - freed > settings.max_bytes):
                continue
            selected.append(job)
            freed += sizes.get(job.id, 0)
        return selected, freed

    def _list_folders(self) -> list[Path]:
        try:
            return [path for path in self._root.iterdir() if path.name.isdecimal()]
        except OSError:
            return []

    def _find_orphans(self) -> list[Path]:
        """Return folders of jobs that were deleted already."""
        known, last = self._rows.job_ids(), self._rows.last_number()
        return [path for path in self._list_folders() if path.name not in known and int(path.name) < last]

    def _find_logs(self, ended: Sequence[EndedJob], deleted: set[str], before_s: float) -> list[Path]:
        """Return the log files of jobs that are kept, but ended before a time."""
        old = [job.id for job in ended if job.id not in deleted and job.end_s < before_s]
        return [
            path
            for job in old
            for path in (self._root / job / "attempts").glob("*/rank*.log*")
            if path.is_file()
        ]


class RetentionThread:
    """Prunes regularly while the service runs."""

    def __init__(self, pruner: Pruner, settings: RetentionSettings, after: Callable[[], object]) -> None:
        self._pruner, self._settings, self._after = pruner, settings, after
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wattline-retention", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after a pruning that is in progress."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        pause_s = min(_FIRST_S, self._settings.every_s)
        while not self._stopping.wait(pause_s):
            pause_s = self._settings.every_s
            try:
                report = self._pruner.prune(self._settings)
            except (WattlineError, OSError) as error:
                _logger.warning("old jobs could not be deleted: %s", error)
                continue
            if report.jobs or report.log_files:
                numbers = {
                    name: value for name, value in asdict(report).items() if value and name != "dry_run"
                }
                _logger.info("retention: deleted %s", numbers)
                self._after()


def _folder_bytes(folder: Path) -> int:
    return _sum_bytes(path for path in folder.rglob("*"))


def _sum_bytes(paths: Iterable[Path]) -> int:
    total = 0
    for path in paths:
        try:
            status = path.lstat()
        except OSError:
            continue
        total += status.st_blocks * 512
    return total

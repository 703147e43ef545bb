"""Run history of recurring jobs in one SQLite file: runs, running trials, and power-limit sweeps.

Any number of processes may use it concurrently. An optimiser's state is not stored but rebuilt from the runs.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wattline.batch_size.bandit import BatchTrial, Outcome, TuningTask
from wattline.batch_size.sweeps import TABLE, CapSweep, read_sweeps, write_sweep
from wattline.errors import ConfigError, NotFound, did_you_mean
from wattline.meter.caps.record import state_folder
from wattline.profiler.cap_aim import CapMeasurement

if TYPE_CHECKING:
    from wattline.batch_size.bayesian import (
        BayesianTuner,  # imports scipy, which a training job does not need
    )
    from wattline.batch_size.tuner_state import TunerState

SCHEMA = 2
_TABLES = """
CREATE TABLE job (
  grp TEXT PRIMARY KEY, batches TEXT NOT NULL, first INTEGER NOT NULL, max_epochs INTEGER NOT NULL);
CREATE TABLE run (
  id INTEGER PRIMARY KEY, grp TEXT NOT NULL, kind TEXT NOT NULL, batch INTEGER NOT NULL,
  reached INTEGER NOT NULL, seconds REAL NOT NULL, joules REAL,
  epochs INTEGER NOT NULL, ended_s REAL NOT NULL);
CREATE INDEX run_of ON run (grp, kind);
CREATE TABLE trial (id INTEGER PRIMARY KEY, grp TEXT NOT NULL, kind TEXT NOT NULL, batch INTEGER NOT NULL,
  began_s REAL NOT NULL);
"""
OUT_OF_MEMORY = -1  # instead of the epochs of a run that ran out of memory
_JOB_TABLES = ("run", "trial", "sweep", "job")
_TRIAL_LIFETIME_S = 7 * 86400.0  # a trial that has not ended after a week is taken for dead
_WAL_TRIES = 100
_NO_LIMIT = 1000  # maximum epochs of a job without a stored task


@dataclass(frozen=True)
class RecordedRun:
    """One ended run of a recurring job; *joules* None: not metered; *method* empty: not recorded.

    *epochs* `OUT_OF_MEMORY`: it failed for good, more epochs would not have helped.
    """

    batch: int
    reached: bool
    seconds: float
    joules: float | None
    epochs: int
    method: str = ""  # of the measurement of *joules*


class RunHistory:
    """SQLite store of runs, trials and sweeps; a context manager that closes the file."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def open(cls, path: str | Path | None = None) -> RunHistory:
        """Open the store at *path*, by default memory.db in the XDG state directory; create it if missing."""
        file = Path(path) if path is not None else state_folder() / "memory.db"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(file, timeout=30.0, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{file}: cannot be opened: {error}") from None
        try:
            _enable_write_ahead(connection)
            connection.execute("PRAGMA synchronous=NORMAL")
            history = cls(file, connection)
            history._create_tables()
        except sqlite3.Error as error:
            connection.close()
            raise ConfigError(f"{file}: is not a run history of wattline: {error}") from None
        except ConfigError:
            connection.close()
            raise
        return history

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> RunHistory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- tasks

    def store_task(self, group: str, task: TuningTask) -> None:
        """Store the batch sizes, the default and the maximum epochs of a job."""
        self._connection.execute(
            "INSERT OR REPLACE INTO job VALUES (?, ?, ?, ?)",
            (group, json.dumps(task.batches), task.default, task.max_epochs),
        )

    def load_task(self, group: str) -> TuningTask:
        """Return the task of a job; without a stored one, the batch sizes it has used, the first as default.

        Raises `NotFound` if the job is unknown.
        """
        row = self._connection.execute(
            "SELECT batches, first, max_epochs FROM job WHERE grp = ?", (group,)
        ).fetchone()
        if row is not None:
            return TuningTask(tuple(json.loads(row[0])), row[1], row[2])
        batches = [
            b
            for (b,) in self._connection.execute("SELECT batch FROM run WHERE grp = ? ORDER BY id", (group,))
        ]
        if not batches:
            raise self._not_found(group)
        return TuningTask(tuple(sorted(set(batches))), batches[0], _NO_LIMIT)

    def has_task(self, group: str) -> bool:
        """Return True if a task of the job is stored."""
        row = self._connection.execute("SELECT 1 FROM job WHERE grp = ?", (group,)).fetchone()
        return row is not None

    def groups(self) -> list[str]:
        """Return the names of all jobs in the store."""
        return [
            g
            for (g,) in self._connection.execute(
                "SELECT grp FROM run UNION SELECT grp FROM job UNION SELECT grp FROM sweep ORDER BY 1"
            )
        ]

    def kinds(self, group: str) -> list[str]:
        """Return the kinds of GPU a job ran on, the latest first."""
        rows = self._connection.execute(
            "SELECT kind FROM run WHERE grp = ? GROUP BY kind ORDER BY max(id) DESC", (group,)
        )
        return [kind for (kind,) in rows]

    # -- runs and trials

    def add_run(
        self,
        group: str,
        kind: str,
        *,
        batch: int,
        reached: bool,
        seconds: float,
        joules: float | None,
        epochs: int,
        method: str = "",
    ) -> None:
        """Store an ended run and remove its trial."""
        with self.transaction():
            self._connection.execute(
                "INSERT INTO run (grp, kind, batch, reached, seconds, joules, epochs, ended_s, method)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (group, kind, batch, int(reached), seconds, joules, epochs, time.time(), method),
            )
            self.remove_trial(group, kind, batch)

    def remove_trial(self, group: str, kind: str, batch: int) -> None:
        """Remove the oldest running trial of a batch size."""
        self._connection.execute(
            "DELETE FROM trial WHERE id ="
            " (SELECT min(id) FROM trial WHERE grp = ? AND kind = ? AND batch = ?)",
            (group, kind, batch),
        )

    def runs(self, group: str, kind: str) -> list[RecordedRun]:
        """Return the runs of a job on one kind of GPU, the oldest first."""
        rows = self._connection.execute(
            "SELECT batch, reached, seconds, joules, epochs, method FROM run"
            " WHERE grp = ? AND kind = ? ORDER BY id",
            (group, kind),
        )
        return [RecordedRun(batch, bool(reached), *more) for batch, reached, *more in rows]

    def energy_methods(self, group: str, kind: str) -> str:
        """Return how the joules of a job on one kind of GPU were measured: `simulated and unmetered`."""
        runs = self.runs(group, kind)
        found = ("unmetered" if run.joules is None else run.method or "method not recorded" for run in runs)
        return " and ".join(dict.fromkeys(found)) or "unmetered"

    def add_trial(self, group: str, kind: str, trial: BatchTrial) -> None:
        """Store a running trial, so that concurrent runs do not repeat it."""
        self._connection.execute(
            "INSERT INTO trial (grp, kind, batch, began_s) VALUES (?, ?, ?, ?)",
            (group, kind, trial.batch, time.time()),
        )

    def pending(self, group: str, kind: str) -> list[int]:
        """Return the batch sizes of running trials."""
        rows = self._connection.execute(
            "SELECT batch FROM trial WHERE grp = ? AND kind = ? AND began_s > ? ORDER BY id",
            (group, kind, time.time() - _TRIAL_LIFETIME_S),
        )
        return [batch for (batch,) in rows]

    # -- sweeps of power caps

    def store_sweep(
        self,
        group: str,
        batch: int,
        kind: str,
        tried: Sequence[CapMeasurement],
        *,
        gpus: int = 1,
        aim: str = "",
        device: str = "",
    ) -> None:
        """Store a sweep, replacing an older one of the same key."""
        with self.transaction():
            sweep = CapSweep(group, kind, gpus, batch, tuple(tried), aim, device, time.time())
            write_sweep(self._connection, sweep)

    def load_sweep(
        self, group: str, batch: int, kind: str, *, gpus: int | None = None, device: str = ""
    ) -> tuple[CapMeasurement, ...]:
        """Return the usable caps of a job at a batch size on a kind of GPU, by ascending watts; empty: none.

        Expired and disturbed ones are left out, and with *device* those of another device or driver. Without
        *gpus* it is the newest sweep on any number of GPUs.
        """
        for sweep in read_sweeps(self._connection, time.time(), group, kind, batch, gpus):
            if not device or device == sweep.device:
                return sweep.usable
        return ()

    def sweeps(self, group: str) -> list[CapSweep]:
        """Return all sweeps of a job, also expired ones, the newest first."""
        return read_sweeps(self._connection, time.time(), group)

    # -- whole jobs

    def reset(self, group: str) -> int:
        """Delete all records of a job and return its number of runs; raises `NotFound` if it is unknown."""
        with self.transaction():
            count = int(
                self._connection.execute("SELECT count(*) FROM run WHERE grp = ?", (group,)).fetchone()[0]
            )
            deleted = [
                self._connection.execute(f"DELETE FROM {table} WHERE grp = ?", (group,)).rowcount
                for table in _JOB_TABLES
            ]
            if not any(deleted):
                raise self._not_found(group)
        return count

    def load_state(
        self, group: str, kind: str, optimizer: BayesianTuner, *, eta: float = 0.5, max_w: float | None = None
    ) -> TunerState:
        """Rebuild the state of *optimizer* from a job's runs on *kind*, and its epochs on other kinds of GPU.

        *max_w* is the largest power limit; by default the largest of the sweeps, else the largest power draw.
        """
        task = self.load_task(group)
        elsewhere = None
        for other in reversed([k for k in self.kinds(group) if k != kind]):
            elsewhere = self._replay_runs(
                group, other, optimizer, optimizer.start(task, elsewhere), eta, None
            )
        state = self._replay_runs(group, kind, optimizer, optimizer.start(task, elsewhere), eta, max_w)
        for batch in self.pending(group, kind):
            if batch in task.batches:
                state = optimizer.start_trial(state, BatchTrial(batch))
        return state

    def _replay_runs(
        self,
        group: str,
        kind: str,
        optimizer: BayesianTuner,
        state: TunerState,
        eta: float,
        max_w: float | None,
    ) -> TunerState:
        runs = [run for run in self.runs(group, kind) if run.batch in state.task.batches]
        runs = [run for run in runs if run.epochs > 0 or run.epochs == OUT_OF_MEMORY]
        sweeps = {batch: self.load_sweep(group, batch, kind) for batch in state.task.batches}
        max_w = max_w or _find_largest_w(runs, read_sweeps(self._connection, time.time(), group, kind))
        for run in runs:
            state = optimizer.observe(state, _build_outcome(run, sweeps[run.batch], eta, max_w))
        return state

    def _create_tables(self) -> None:
        with self.transaction():
            version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
            if version not in range(SCHEMA + 1):
                raise ConfigError(
                    f"{self.path}: has schema {version}, expected {SCHEMA}",
                    "the file was written by another version of wattline: use that version or another file",
                )
            if version == 0:
                for statement in _TABLES.split(";")[:-1]:
                    self._connection.execute(statement)
            if version == 1:  # its sweeps have another key, and windows shorter than the counter's period
                self._connection.execute("DROP TABLE tried")
            if version < SCHEMA:
                self._connection.execute(TABLE)
                self._connection.execute(f"PRAGMA user_version={SCHEMA}")
            columns = {row[1] for row in self._connection.execute("PRAGMA table_info(run)")}
            if "method" not in columns:  # written before runs had it
                self._connection.execute("ALTER TABLE run ADD COLUMN method TEXT NOT NULL DEFAULT ''")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the body in one transaction that excludes other writers; roll back on an exception."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _not_found(self, group: str) -> NotFound:
        return NotFound(f"{self.path} has no job {group!r}", did_you_mean(group, self.groups()))


def _enable_write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging; retry, because SQLite refuses it while another process does the same."""
    for retries in range(_WAL_TRIES - 1, -1, -1):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if not retries:
                raise
            time.sleep(0.1)


def _find_largest_w(runs: Sequence[RecordedRun], sweeps: Sequence[CapSweep]) -> float:
    """Return the largest power cap of the sweeps, else the largest power draw of the runs, else 1."""
    caps = [sweep.gpus * one.cap_w for sweep in sweeps for one in sweep.usable]
    drawn = [run.joules / run.seconds for run in runs if run.joules and run.seconds > 0]
    return max(caps, default=max(drawn, default=1.0))


def _build_outcome(run: RecordedRun, sweep: tuple[CapMeasurement, ...], eta: float, max_w: float) -> Outcome:
    """Return a stored run as an outcome; an unmetered run is assumed to draw *max_w*."""
    joules = max_w * run.seconds if run.joules is None else run.joules
    cost_j = eta * joules + (1 - eta) * max_w * run.seconds
    costs = [(eta * t.joules + (1 - eta) * max_w * t.seconds) / t.steps for t in sweep]
    full_power_ratio = costs[-1] / min(costs) if costs else 1.0
    drawn_w = sweep[-1].joules / sweep[-1].seconds if sweep else joules / max(run.seconds, 1e-9)
    power = drawn_w / max_w
    epochs = max(run.epochs, 0)
    each_j = cost_j / max(epochs, 1)
    return Outcome(
        run.batch, epochs, run.reached, cost_j, each_j, full_power_ratio * each_j, power=min(power, 1.0)
    )

"""What recurring jobs did, in one SQLite file: runs, trials under way, and sweeps of power limits.

Any number of processes may use it at once. An optimiser's state is not stored: it is a fold over the runs.
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

from wattline.batch_size.bandit import Outcome, Task, Trial
from wattline.errors import ConfigError, NotFound, did_you_mean
from wattline.meter.caps.record import state_folder
from wattline.profiler.cap_window import Tried

if TYPE_CHECKING:
    from wattline.batch_size.bayesian import Known, Recurring  # not in jobs: it takes scipy

SCHEMA = 1
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
CREATE TABLE tried (
  grp TEXT NOT NULL, batch INTEGER NOT NULL, kind TEXT NOT NULL, cap_w REAL NOT NULL, steps REAL NOT NULL,
  seconds REAL NOT NULL, joules REAL NOT NULL, PRIMARY KEY (grp, batch, kind, cap_w));
"""
_EACH = ("run", "trial", "tried", "job")
_FORGOTTEN_S = 7 * 86400.0  # a trial that has not ended after a week never will
_TRIES = 100
_NO_LIMIT = 1000  # epochs, of a job that was never described


@dataclass(frozen=True)
class Run:
    """One run of a recurring job, as it ended; *joules* None where nothing was metered."""

    batch: int
    reached: bool
    seconds: float
    joules: float | None
    epochs: int


class Memory:
    """The store; `with` closes it."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def open(cls, path: str | Path | None = None) -> Memory:
        """The store at *path*, made if it is missing; by default under the XDG state directory."""
        file = Path(path) if path is not None else state_folder() / "memory.db"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(file, timeout=30.0, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{file}: cannot be opened: {error}") from None
        try:
            _write_ahead(connection)
            connection.execute("PRAGMA synchronous=NORMAL")
            memory = cls(file, connection)
            memory._prepare()
        except sqlite3.Error as error:
            connection.close()
            raise ConfigError(f"{file}: is not a memory of wattline: {error}") from None
        except ConfigError:
            connection.close()
            raise
        return memory

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what jobs are

    def describe(self, group: str, task: Task) -> None:
        """Remember which batch sizes a job may use, its default, and when it gives up."""
        self._connection.execute(
            "INSERT OR REPLACE INTO job VALUES (?, ?, ?, ?)",
            (group, json.dumps(task.batches), task.default, task.max_epochs),
        )

    def task(self, group: str) -> Task:
        """What a job may use; of one that was never described, what it has used, its default the first."""
        row = self._connection.execute(
            "SELECT batches, first, max_epochs FROM job WHERE grp = ?", (group,)
        ).fetchone()
        if row is not None:
            return Task(tuple(json.loads(row[0])), row[1], row[2])
        used = [
            b
            for (b,) in self._connection.execute("SELECT batch FROM run WHERE grp = ? ORDER BY id", (group,))
        ]
        if not used:
            raise self._unknown(group)
        return Task(tuple(sorted(set(used))), used[0], _NO_LIMIT)

    def groups(self) -> list[str]:
        """The jobs that are known."""
        return [
            g for (g,) in self._connection.execute("SELECT grp FROM run UNION SELECT grp FROM job ORDER BY 1")
        ]

    def kinds(self, group: str) -> list[str]:
        """The kinds of GPU a job ran on, the latest first."""
        rows = self._connection.execute(
            "SELECT kind FROM run WHERE grp = ? GROUP BY kind ORDER BY max(id) DESC", (group,)
        )
        return [kind for (kind,) in rows]

    # -- what they did

    def add(
        self,
        group: str,
        kind: str,
        *,
        batch: int,
        reached: bool,
        seconds: float,
        joules: float | None,
        epochs: int,
    ) -> None:
        """Remember a run that ended, and that its trial is over."""
        with self.writing():
            self._connection.execute(
                "INSERT INTO run (grp, kind, batch, reached, seconds, joules, epochs, ended_s)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (group, kind, batch, int(reached), seconds, joules, epochs, time.time()),
            )
            self.forget_trial(group, kind, batch)

    def forget_trial(self, group: str, kind: str, batch: int) -> None:
        """A trial runs no more."""
        self._connection.execute(
            "DELETE FROM trial WHERE id ="
            " (SELECT min(id) FROM trial WHERE grp = ? AND kind = ? AND batch = ?)",
            (group, kind, batch),
        )

    def runs(self, group: str, kind: str) -> list[Run]:
        """What a job did on one kind of GPU, the oldest first."""
        rows = self._connection.execute(
            "SELECT batch, reached, seconds, joules, epochs FROM run WHERE grp = ? AND kind = ? ORDER BY id",
            (group, kind),
        )
        return [Run(batch, bool(reached), s, j, epochs) for batch, reached, s, j, epochs in rows]

    def begin(self, group: str, kind: str, trial: Trial) -> None:
        """Remember that a trial runs, so that nobody starts it twice."""
        self._connection.execute(
            "INSERT INTO trial (grp, kind, batch, began_s) VALUES (?, ?, ?, ?)",
            (group, kind, trial.batch, time.time()),
        )

    def pending(self, group: str, kind: str) -> list[int]:
        """The batch sizes of trials that run."""
        rows = self._connection.execute(
            "SELECT batch FROM trial WHERE grp = ? AND kind = ? AND began_s > ? ORDER BY id",
            (group, kind, time.time() - _FORGOTTEN_S),
        )
        return [batch for (batch,) in rows]

    # -- sweeps of power limits

    def keep_profile(self, group: str, batch: int, kind: str, tried: Sequence[Tried]) -> None:
        """Remember a sweep instead of an older one."""
        with self.writing():
            self._connection.execute(
                "DELETE FROM tried WHERE grp = ? AND batch = ? AND kind = ?", (group, batch, kind)
            )
            self._connection.executemany(
                "INSERT OR REPLACE INTO tried VALUES (?, ?, ?, ?, ?, ?, ?)",
                [(group, batch, kind, t.cap_w, t.steps, t.seconds, t.joules) for t in tried],
            )

    def profile(self, group: str, batch: int, kind: str) -> tuple[Tried, ...]:
        """The sweep of a job at a batch size on a kind of GPU, by ascending limit; empty: none."""
        rows = self._connection.execute(
            "SELECT cap_w, steps, seconds, joules FROM tried"
            " WHERE grp = ? AND batch = ? AND kind = ? ORDER BY cap_w",
            (group, batch, kind),
        )
        return tuple(Tried(*row) for row in rows)

    # -- all of it

    def reset(self, group: str) -> int:
        """Forget a job; how many runs that were."""
        with self.writing():
            count = int(
                self._connection.execute("SELECT count(*) FROM run WHERE grp = ?", (group,)).fetchone()[0]
            )
            gone = [
                self._connection.execute(f"DELETE FROM {table} WHERE grp = ?", (group,)).rowcount
                for table in _EACH
            ]
            if not any(gone):
                raise self._unknown(group)
        return count

    def state(
        self, group: str, kind: str, optimizer: Recurring, *, eta: float = 0.5, max_w: float | None = None
    ) -> Known:
        """What *optimizer* knows of a job on one kind of GPU: all its runs there, and epochs from elsewhere.

        *max_w*: the largest power limit; by default the largest that was swept, else the most that was drawn.
        """
        task = self.task(group)
        elsewhere = None
        for other in reversed([k for k in self.kinds(group) if k != kind]):
            elsewhere = self._fold(group, other, optimizer, optimizer.start(task, elsewhere), eta, None)
        state = self._fold(group, kind, optimizer, optimizer.start(task, elsewhere), eta, max_w)
        for batch in self.pending(group, kind):
            if batch in task.batches:
                state = optimizer.begin(state, Trial(batch))
        return state

    def _fold(
        self, group: str, kind: str, optimizer: Recurring, state: Known, eta: float, max_w: float | None
    ) -> Known:
        runs = [run for run in self.runs(group, kind) if run.batch in state.task.batches and run.epochs > 0]
        sweeps = {batch: self.profile(group, batch, kind) for batch in state.task.batches}
        max_w = max_w or _largest_w(runs, sweeps)
        for run in runs:
            state = optimizer.observe(state, _outcome(run, sweeps[run.batch], eta, max_w))
        return state

    def _prepare(self) -> None:
        with self.writing():
            version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
            if version == 0:
                for statement in _TABLES.split(";")[:-1]:
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA user_version={SCHEMA}")
            elif version != SCHEMA:
                raise ConfigError(
                    f"{self.path}: has schema {version}, expected {SCHEMA}",
                    "it was written by another version of wattline: use that, or another file",
                )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """All or nothing, and nobody else writes meanwhile."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _unknown(self, group: str) -> NotFound:
        return NotFound(f"{self.path} knows no job {group!r}", did_you_mean(group, self.groups()))


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Readers and a writer at once; while others begin to do the same this is refused at once."""
    for left in range(_TRIES - 1, -1, -1):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if not left:
                raise
            time.sleep(0.1)


def _largest_w(runs: Sequence[Run], sweeps: dict[int, tuple[Tried, ...]]) -> float:
    """The largest power limit, as far as anything tells."""
    caps = [tried.cap_w for sweep in sweeps.values() for tried in sweep]
    drawn = [run.joules / run.seconds for run in runs if run.joules and run.seconds > 0]
    return max(caps, default=max(drawn, default=1.0))


def _outcome(run: Run, sweep: tuple[Tried, ...], eta: float, max_w: float) -> Outcome:
    """A stored run as an optimiser sees it; what was not metered is taken to draw the most."""
    joules = max_w * run.seconds if run.joules is None else run.joules
    cost_j = eta * joules + (1 - eta) * max_w * run.seconds
    costs = [(eta * t.joules + (1 - eta) * max_w * t.seconds) / t.steps for t in sweep]
    more = costs[-1] / min(costs) if costs else 1.0
    drawn_w = sweep[-1].joules / sweep[-1].seconds if sweep else joules / max(run.seconds, 1e-9)
    power = drawn_w / max_w
    each_j = cost_j / run.epochs
    return Outcome(run.batch, run.epochs, run.reached, cost_j, each_j, more * each_j, power=min(power, 1.0))

"""`Member`: one member of an array as a job of its own, with its identity, energy, events and log."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from wattline.errors import ConfigError
from wattline.train.checkpoint import TrainingPosition
from wattline.train.environment import Target
from wattline.train.progress_events import EventWriter

MEMBERS = "WATTLINE_MEMBERS"
CANCEL = "cancel"
_EVENTS, _LOG = "events.jsonl", "rank0.log"

LogFunction = Callable[[str], None]


@dataclass(eq=False)
class Member:
    """A member during training; `log` writes one line to the log of its job."""

    id: str
    config: dict[str, Any]
    events: EventWriter
    log: LogFunction
    folder: Path | None = None  # the member's own; a file `cancel` in it cancels the member
    base: TrainingPosition = field(default_factory=TrainingPosition)  # position when this process started
    joules: float | None = None
    best: float | None = None
    reached: bool = False
    cancelled: bool = False
    nonfinite: set[str] = field(default_factory=set)  # metrics that have been reported as not finite

    def resume(self, position: TrainingPosition) -> None:
        """Continue from a checkpoint."""
        self.base, self.joules = position, position.joules
        self.best, self.reached = position.best, position.reached

    def position(self, now: TrainingPosition, start: TrainingPosition) -> TrainingPosition:
        """Return the member's position, given the process's position *now* and at its *start*."""
        return replace(
            now,
            steps=self.base.steps + now.steps - start.steps,
            samples=self.base.samples + now.samples - start.samples,
            seconds=self.base.seconds + now.seconds - start.seconds,
            joules=self.joules,
            best=self.best,
            reached=self.reached,
            over=self.reached or now.over,
        )

    def write_event(self, event: str, position: TrainingPosition, values: Mapping[str, Any]) -> None:
        """Write a progress event with the member's position."""
        self.events.write(event, {**asdict(position), **values})

    def update_best(self, target: Target | None, metrics: Mapping[str, float]) -> None:
        """Update the best metric and whether the target is reached."""
        value = float("nan") if target is None else metrics[target.metric]
        if target is not None and value == value:
            self.best = target.select_better(self.best, value)
            self.reached = self.reached or target.is_reached(value)


@dataclass(frozen=True)
class MemberJob:
    """The job of one member, as the service describes it."""

    id: str
    folder: Path
    checkpoint: Path

    def member(self, config: dict[str, Any], is_leader: bool, on_error: LogFunction) -> Member:
        """Return the member; the leader's log is the output of the process."""
        log = _print_line if is_leader else _MemberLog(self.folder / _LOG, on_error)
        return Member(
            self.id, config, EventWriter(self.folder / _EVENTS, self.id, on_error), log, self.folder
        )


def read_member_jobs(size: int, environ: Mapping[str, str] = os.environ) -> list[MemberJob]:
    """Return the jobs of the members in the order of the array; empty without a service."""
    if not environ.get(MEMBERS):
        return []
    path = Path(environ[MEMBERS])
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        jobs = [MemberJob(str(row["id"]), Path(row["folder"]), Path(row["checkpoint"])) for row in rows]
    except OSError as error:
        raise ConfigError(f"{MEMBERS}: {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: not a list of members ({error!r}), expected objects with id, folder and checkpoint"
        ) from None
    if len(jobs) != size or len({job.id for job in jobs}) != size:
        raise ConfigError(f"{path}: names {len(jobs)} members, the array has {size}")
    return jobs


def number_members(
    configs: Sequence[dict[str, Any]], events: Path | None, job: str, on_error: LogFunction
) -> list[Member]:
    """Return members for a run without a service.

    They have no files of their own. A single member writes the events of the job.
    """
    is_single = len(configs) == 1
    return [
        Member(
            str(index),
            config,
            EventWriter(events if is_single else None, job, on_error),
            _discard if events is None else _print_line if is_single else _PrefixedPrinter(f"member {index}"),
        )
        for index, config in enumerate(configs)
    ]


def _print_line(text: str) -> None:
    print(text, flush=True)


def _discard(text: str) -> None:
    """Ignore the line."""


class _PrefixedPrinter:
    """Printer that prefixes lines with the member's name, since all members share one log."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, text: str) -> None:
        print(f"{self._name}  {text}", flush=True)


class _MemberLog:
    """Append lines to a log file; a failure to write is reported and does not end the job."""

    def __init__(self, path: Path, on_error: LogFunction) -> None:
        self._path, self._on_error = path, on_error

    def __call__(self, text: str) -> None:
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError as error:
            self._on_error(f"cannot write the log of a member: {self._path}: {error.strerror}")

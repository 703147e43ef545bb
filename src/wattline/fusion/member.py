"""One member of an array as a job of its own: what it is called, what it has used, and whom it tells."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from wattline.errors import ConfigError
from wattline.train.checkpoint import Where
from wattline.train.environment import Target
from wattline.train.progress_events import Events

MEMBERS = "WATTLINE_MEMBERS"
CANCEL = "cancel"
_EVENTS, _LOG = "events.jsonl", "rank0.log"

Tell = Callable[[str], None]


@dataclass(eq=False)
class Member:
    """A member while it is trained; *tell* takes what its owner reads in its log."""

    id: str
    config: dict[str, Any]
    events: Events
    tell: Tell
    folder: Path | None = None  # of its own, in which it may be cancelled
    base: Where = field(default_factory=Where)  # when this process began
    joules: float | None = None
    best: float | None = None
    reached: bool = False
    cancelled: bool = False
    odd: set[str] = field(default_factory=set)  # metrics that were seen not to be finite

    def resume(self, where: Where) -> None:
        """It goes on from a checkpoint."""
        self.base, self.joules, self.best, self.reached = where, where.joules, where.best, where.reached

    def where(self, now: Where, began: Where) -> Where:
        """Where it is when the process is where it is *now*, and was where it *began*."""
        return replace(
            now,
            steps=self.base.steps + now.steps - began.steps,
            samples=self.base.samples + now.samples - began.samples,
            seconds=self.base.seconds + now.seconds - began.seconds,
            joules=self.joules,
            best=self.best,
            reached=self.reached,
            over=self.reached or now.over,
        )

    def say(self, event: str, where: Where, words: Mapping[str, Any]) -> None:
        """Tell who watches it."""
        self.events.say(event, {**asdict(where), **words})

    def judge(self, target: Target | None, metrics: Mapping[str, float]) -> None:
        """See whether it is good enough."""
        value = float("nan") if target is None else metrics[target.metric]
        if target is not None and value == value:
            self.best = target.better(self.best, value)
            self.reached = self.reached or target.reached(value)


@dataclass(frozen=True)
class Served:
    """What the service says of one member."""

    id: str
    folder: Path
    checkpoint: Path

    def member(self, config: dict[str, Any], leads: bool, tell: Tell) -> Member:
        """The member; what the one who *leads* says is the log of the process."""
        log = _say if leads else _Log(self.folder / _LOG, tell)
        return Member(self.id, config, Events(self.folder / _EVENTS, self.id, tell), log, self.folder)


def served(size: int, environ: Mapping[str, str] = os.environ) -> list[Served]:
    """The members that the service names, in the order of the array; nobody: there is no service."""
    if not environ.get(MEMBERS):
        return []
    path = Path(environ[MEMBERS])
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        found = [Served(str(row["id"]), Path(row["folder"]), Path(row["checkpoint"])) for row in rows]
    except OSError as error:
        raise ConfigError(f"{MEMBERS}: {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: is no list of members ({error!r}), expected objects with id, folder and checkpoint"
        ) from None
    if len(found) != size or len({one.id for one in found}) != size:
        raise ConfigError(f"{path}: names {len(found)} members, the array has {size}")
    return found


def numbered(configs: Sequence[dict[str, Any]], events: Path | None, job: str, tell: Tell) -> list[Member]:
    """Members without a service: they have no files, but one that is alone is the job that is watched."""
    alone = len(configs) == 1
    return [
        Member(
            str(index),
            config,
            Events(events if alone else None, job, tell),
            _mute if events is None else _say if alone else _Named(f"member {index}"),
        )
        for index, config in enumerate(configs)
    ]


def _say(text: str) -> None:
    print(text, flush=True)


def _mute(text: str) -> None:
    """Nobody reads that."""


class _Named:
    """Says who it is, because all members have one log."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, text: str) -> None:
        print(f"{self._name}  {text}", flush=True)


class _Log:
    """Lines in a file; a job does not end because they cannot be written."""

    def __init__(self, path: Path, tell: Tell) -> None:
        self._path, self._tell = path, tell

    def __call__(self, text: str) -> None:
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError as error:
            self._tell(f"a member has no log: {self._path}: {error.strerror}")

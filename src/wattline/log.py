"""What happened and what was done about it: kept in memory as columns, on disk as JSON lines.

The first line is the header, then one line per round, in words and with ids, so that `grep` and `jq`
work. The same run writes the same bytes.
"""

from __future__ import annotations

import gzip
import io
import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattline.errors import TraceError
from wattline.messages import (
    ACTION_COLUMNS,
    ACTION_WORDS,
    ARRIVED,
    EVENT_WORDS,
    METERED,
    NODE_BACK,
    NODE_LOST,
    POWER_OFF,
    RAN,
    RETUNE,
    START,
    STOP,
    Actions,
    Event,
    Events,
    each,
    rows,
)
from wattline.table import Floats, Ints, Labels
from wattline.types import REASONS, Jobs, Nodes

FORMAT = 2


class Round(NamedTuple):
    """One turn of the loop."""

    now_s: float
    events: list[Event]
    actions: Actions
    held: Ints  # rows (job, number of the reason)


class Log:
    """The rounds of one run. `append` while it runs, then read the columns."""

    def __init__(self, header: Mapping[str, Any], jobs: Jobs, nodes: Nodes) -> None:
        self.header = dict(header)
        self.jobs = jobs
        self.nodes = nodes
        self._now_s = array("d")
        self._events = array("d")
        self._actions = array("q")
        self._held = array("q")
        self._event_end = array("q")
        self._action_end = array("q")
        self._held_end = array("q")

    def append(self, now_s: float, events: Events, actions: Actions, held: Ints) -> None:
        """Add one round; a round in which nothing happened and nothing was done leaves no trace."""
        if not len(events) and not len(actions) and not len(held):
            return
        self._now_s.append(now_s)
        self._events.frombytes(events.tobytes())
        if len(actions):
            self._actions.frombytes(actions.tobytes())
        if len(held):
            self._held.frombytes(held.tobytes())
        self._event_end.append(len(self._events) // 6)
        self._action_end.append(len(self._actions) // ACTION_COLUMNS)
        self._held_end.append(len(self._held) // 2)

    def __len__(self) -> int:
        return len(self._now_s)

    def __iter__(self) -> Iterator[Round]:
        events, actions, held = self.events, self.actions, self.held
        e = a = h = 0
        ends = zip(self._now_s, self._event_end, self._action_end, self._held_end, strict=True)
        for now_s, e_end, a_end, h_end in ends:
            yield Round(now_s, each(events[e:e_end]), actions[a:a_end], held[h:h_end])
            e, a, h = e_end, a_end, h_end

    # Columns of the finished log. Reading them ends appending.

    @cached_property
    def now_s(self) -> Floats:
        """Time of each round."""
        return np.frombuffer(self._now_s, dtype=np.float64) if len(self) else np.empty(0)

    @property
    def end_s(self) -> float:
        """Time of the last round."""
        return self._now_s[-1] if len(self) else 0.0

    @cached_property
    def events(self) -> Floats:
        """All events: columns verb, job, at_s, steps, rate, energy_j."""
        return _matrix(self._events, np.float64, 6)

    @cached_property
    def actions(self) -> Actions:
        """All actions: columns verb, job, group, node, gpus, cap_w, batch."""
        return _matrix(self._actions, np.int64, ACTION_COLUMNS)

    @cached_property
    def event_round(self) -> Ints:
        """Round of each event."""
        return np.repeat(np.arange(len(self)), np.diff(_column(self._event_end), prepend=0))

    @cached_property
    def action_round(self) -> Ints:
        """Round of each action."""
        return np.repeat(np.arange(len(self)), np.diff(_column(self._action_end), prepend=0))

    @cached_property
    def action_s(self) -> Floats:
        """Time of each action."""
        return self.now_s[self.action_round]

    @cached_property
    def held(self) -> Ints:
        """All changes of the reason why a job waits: columns job, reason."""
        return _matrix(self._held, np.int64, 2)

    @cached_property
    def held_s(self) -> Floats:
        """Time of each change of reason."""
        return np.repeat(self.now_s, np.diff(_column(self._held_end), prepend=0))


def _column(values: array[int]) -> Ints:
    return np.frombuffer(values, dtype=np.int64) if len(values) else np.empty(0, dtype=np.int64)


def _matrix(values: array[Any], dtype: type, width: int) -> NDArray[Any]:
    flat: NDArray[Any] = np.frombuffer(values, dtype=dtype) if len(values) else np.empty(0, dtype=dtype)
    return flat.reshape(-1, width)


def write_log(log: Log, path: str | Path) -> None:
    """Write *log* as JSON lines, compressed when the name ends in `.gz`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as raw:
        if path.suffix == ".gz":
            # No name and no time in the gzip header: the same run gives the same bytes.
            with (
                gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
                io.TextIOWrapper(packed, "utf-8") as text,
            ):
                text.writelines(_lines(log))
        else:
            with io.TextIOWrapper(raw, "utf-8") as text:
                text.writelines(_lines(log))


def _lines(log: Log) -> Iterator[str]:
    nodes = {f.name: _plain(getattr(log.nodes, f.name)) for f in fields(Nodes)}
    yield _json({"wattline_log": FORMAT, **log.header, "nodes": nodes})
    for round_ in log:
        yield _json(
            {
                "t": round_.now_s,
                "events": [_event_words(event, log.jobs) for event in round_.events],
                "actions": _action_words(round_.actions),
                "held": {str(job): REASONS[reason].name.lower() for job, reason in round_.held.tolist()},
            }
        )


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n"


def _plain(column: Any) -> list[Any]:
    return column.words() if isinstance(column, Labels) else list(column.tolist())


# What a job's line leaves out, because most jobs have it so.
_USUAL: dict[str, object] = {
    "step_s": 1.0,
    "whole": False,
    "deadline_s": float("inf"),
    "priority": 0.0,
    **dict.fromkeys(("batch", "min_gpus", "max_gpus", "max_batch"), 0),
    "noise": 0.0,
    **dict.fromkeys(("team", "user", "model", "gpu_kind", "key", "status"), ""),
}


def _event_words(event: Event, jobs: Jobs) -> dict[str, Any]:
    words: dict[str, Any] = {EVENT_WORDS[event.verb]: event.job, "at_s": event.at_s}
    if event.verb == ARRIVED:
        for field in fields(Jobs):
            column = getattr(jobs, field.name)
            value = column.word(event.job) if isinstance(column, Labels) else column[event.job]
            value = value.item() if isinstance(value, np.generic) else value
            if value != _USUAL.get(field.name):
                words[field.name] = value
    elif event.verb not in (NODE_LOST, NODE_BACK):
        drawn = "watts" if event.verb == RAN else "energy_j"
        words.update(steps=event.steps, rate=event.rate, **{drawn: event.energy_j})
    return words


def _action_words(actions: Actions) -> list[dict[str, Any]]:
    words: list[dict[str, Any]] = []
    for verb, job, group, node, gpus, cap_w, batch in actions.tolist():
        if verb >= POWER_OFF:
            words.append({ACTION_WORDS[verb]: node})
        elif verb == STOP:
            words.append({"stop": job, "group": group})
        elif words and words[-1].get("start") == job:
            words[-1]["on"].append([node, gpus])
        else:
            knobs = {"cap_w": cap_w, "batch": batch}
            words.append({ACTION_WORDS[verb]: job, "group": group})
            if verb == START:
                words[-1]["on"] = [[node, gpus]]
            words[-1].update({name: value for name, value in knobs.items() if value or verb == RETUNE})
    return words


def read_log(path: str | Path) -> Log:
    """The log in a file that `write_log` wrote."""
    path = Path(path)
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with (gzip.open if packed else open)(path, "rt", encoding="utf-8") as text:
            return _read(enumerate(text, 1), str(path))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TraceError(str(path), None, f"cannot be read as a run log: {error}") from None


def _read(lines: Iterator[tuple[int, str]], path: str) -> Log:
    log: Log | None = None
    arrived: dict[str, list[Any]] = {field.name: [] for field in fields(Jobs)}
    line = 0
    for line, text in lines:
        try:
            words = json.loads(text)
            if log is None:
                log = _read_header(words, path)
            else:
                _read_round(words, log, arrived)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise TraceError(path, line, f"not a line of a run log: {error!r}") from None
    if log is None:
        raise TraceError(path, None, "is empty, expected a run log")
    if not len(log) or log._events[-6] != METERED:
        raise TraceError(path, line, "the log ends early, expected a last line with what was metered")
    log.jobs = _read_jobs(arrived)
    return log


def _read_header(words: dict[str, Any], path: str) -> Log:
    if words.get("wattline_log") != FORMAT:
        raise TraceError(path, 1, f"wattline_log is {words.get('wattline_log')!r}, expected {FORMAT}")
    for key in ("policy", "seed", "trace"):
        words[key]  # a KeyError names what is missing
    columns = words.pop("nodes")
    del words["wattline_log"]
    made: dict[str, Any] = {
        field.name: Labels.of(columns["kind"])
        if field.name == "kind"
        else np.array(columns[field.name], dtype=_NODE_TYPES.get(field.name, np.float64))
        for field in fields(Nodes)
    }
    return Log(words, _read_jobs({field.name: [] for field in fields(Jobs)}), Nodes(**made))


_NODE_TYPES: dict[str, type] = {"name": np.object_, "gpus": np.int64, "rack": np.int64}
_JOB_TYPES: dict[str, type] = {
    "id": np.object_,
    "whole": np.bool_,
    **dict.fromkeys(("gpus", "batch", "min_gpus", "max_gpus", "max_batch"), np.int64),
}


def _read_round(words: dict[str, Any], log: Log, arrived: dict[str, list[Any]]) -> None:
    events = []
    for happened in words["events"]:
        word = next(iter(happened))
        if word == "arrived":
            for name, column in arrived.items():
                column.append(happened.get(name, _USUAL.get(name)))
            measured = (0.0, 0.0, 0.0)
        else:
            drawn = "watts" if word == "ran" else "energy_j"
            measured = tuple(happened.get(key, 0.0) for key in ("steps", "rate", drawn))
        event = Event(EVENT_WORDS.index(word), happened[word], happened["at_s"], *measured)
        _check_event(event, len(arrived["id"]), len(log.nodes))
        events.append(event)
    actions = []
    for done in words["actions"]:
        word = next(iter(done))
        verb = ACTION_WORDS.index(word)
        if verb >= POWER_OFF:
            _check_number("node", done[word], len(log.nodes))
            actions.append((verb, -1, -1, done[word], 0, 0, 0))
            continue
        spans = done["on"] if verb == START else [[-1, 0]]
        for node, gpus in spans:
            _check_number("job", done[word], len(arrived["id"]))
            _check_number("group", done["group"], len(arrived["id"]))
            if verb == START:
                _check_number("node", node, len(log.nodes))
            knobs = (done.get("cap_w", 0), done.get("batch", 0))
            actions.append((verb, done[word], done["group"], node, gpus, *knobs))
    names = [reason.name.lower() for reason in REASONS]
    held = [(int(job), names.index(name)) for job, name in words["held"].items()]
    log.append(
        words["t"],
        rows(*events),
        np.array(actions, dtype=np.int64).reshape(-1, ACTION_COLUMNS),
        np.array(held, dtype=np.int64).reshape(-1, 2),
    )


def _check_event(event: Event, jobs: int, nodes: int) -> None:
    """Numbers index arrays later on, some of them in compiled code: nothing wrong may get there."""
    if event.verb == ARRIVED:
        if event.job != jobs - 1:
            raise ValueError(f"job {event.job} arrives, expected {jobs - 1}: jobs arrive in order")
    elif event.verb in (NODE_LOST, NODE_BACK):
        _check_number("node", event.job, nodes)
    elif event.verb != METERED:
        _check_number("job", event.job, jobs)


def _check_number(what: str, number: int, count: int) -> None:
    if not isinstance(number, int) or not 0 <= number < count:
        raise ValueError(f"{what} {number!r} does not exist, expected 0 to {count - 1}")


def _read_jobs(columns: dict[str, list[Any]]) -> Jobs:
    labels = {"team", "user", "model", "gpu_kind", "key", "status"}
    made: dict[str, Any] = {
        name: Labels.of(values)
        if name in labels
        else np.array(values, dtype=_JOB_TYPES.get(name, np.float64))
        for name, values in columns.items()
    }
    return Jobs(**made)

"""What happened and what was done about it: kept in memory as columns, on disk as JSON lines.

The first line is the header, then one line per round, in words and with ids, so that `grep` and `jq`
work. The same run writes the same bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattline.core.actions import ACTION_COLUMNS, ACTION_WORDS, POWER_OFF, RETUNE, START, STOP, Actions
from wattline.core.events import (
    ARRIVED,
    EVENT_WORDS,
    METERED,
    NODE_BACK,
    NODE_LOST,
    RAN,
    Event,
    Events,
    each,
    rows,
)
from wattline.core.jobs import Jobs
from wattline.core.leases import LEASE_ROWS, Leases
from wattline.core.nodes import HOST, Nodes
from wattline.core.queue import QUEUE_ROWS, Queue
from wattline.core.reasons import REASONS
from wattline.core.snapshot import Meter, Snapshot
from wattline.core.table import Floats, Ints, Labels
from wattline.energy.prices import Price
from wattline.errors import ConfigError, InputError, TraceError
from wattline.loop.state import resume

FORMAT = 3


_SETTINGS = ("cap_w", "batch", *HOST)
"""The last columns of actions."""


class Round(NamedTuple):
    """One turn of the loop."""

    now_s: float
    events: list[Event]
    actions: Actions
    held: Ints  # rows (job, number of the reason)
    gap: float  # how far from the best the decision may be; inf: nobody knows, nan: nobody looked for it


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
        self._gap = array("d")

    def append(
        self, now_s: float, events: Events, actions: Actions, held: Ints, gap: float = math.nan
    ) -> None:
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
        self._gap.append(gap)

    def __len__(self) -> int:
        return len(self._now_s)

    def __iter__(self) -> Iterator[Round]:
        events, actions, held = self.events, self.actions, self.held
        e = a = h = 0
        ends = zip(self._now_s, self._event_end, self._action_end, self._held_end, self._gap, strict=True)
        for now_s, e_end, a_end, h_end, gap in ends:
            yield Round(now_s, each(events[e:e_end]), actions[a:a_end], held[h:h_end], gap)
            e, a, h = e_end, a_end, h_end

    # Columns of the finished log. Reading them ends appending.

    @cached_property
    def now_s(self) -> Floats:
        """Time of each round."""
        return np.frombuffer(self._now_s, dtype=np.float64) if len(self) else np.empty(0)

    @cached_property
    def gap(self) -> Floats:
        """How far from the best the decision of each round may be, see `Round`."""
        return np.frombuffer(self._gap, dtype=np.float64) if len(self) else np.empty(0)

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
        """All actions: columns as in `wattline.core.actions.Actions`."""
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
    yield header_line(log)
    for now_s, events, actions, held, gap in log:
        yield round_line(log.jobs, now_s, rows(*events), actions, held, gap)


def header_line(log: Log) -> str:
    """The first line of a log."""
    nodes = {f.name: _plain(getattr(log.nodes, f.name)) for f in fields(Nodes)}
    # Readings name teams by number, and which comes first must not depend on who arrives first.
    teams = list(log.jobs.team.names)
    return _json({"wattline_log": FORMAT, **log.header, "teams": teams, "nodes": nodes})


def round_line(jobs: Jobs, now_s: float, events: Events, actions: Actions, held: Ints, gap: float) -> str:
    """The line of one round."""
    return _json(
        {
            "t": now_s,
            "events": [_event_words(event, jobs) for event in each(events)],
            "actions": _action_words(actions),
            "held": {str(job): REASONS[reason].name.lower() for job, reason in held.tolist()},
            **_gap_words(gap),
        }
    )


def begins_words(begins: Snapshot) -> dict[str, Any]:
    """What a header says of a run that went on from where another was; `read_begins` reads it."""
    queue = [[None if math.isnan(v) else v for v in row] for row in begins.queue.block.tolist()]
    meter = [begins.meter.at_s.tolist(), begins.meter.energy_j.tolist()]
    return {"t": begins.now_s, "queue": queue, "leases": begins.leases.block.tolist(), "meter": meter}


def read_begins(log: Log) -> Snapshot | None:
    """With whom a log began; None: with nobody."""
    words = log.header.get("begins")
    if words is None:
        return None
    queue = np.array([[math.nan if v is None else v for v in row] for row in words["queue"]], np.float64)
    leases = np.array(words["leases"], np.int64).reshape(LEASE_ROWS, -1)
    at_s, energy_j = words["meter"]
    return resume(
        log.jobs,
        log.nodes,
        log.header["seed"],
        words["t"],
        Queue(queue.reshape(QUEUE_ROWS, -1)),
        Leases(leases),
        Meter(np.array(at_s), np.array(energy_j)) if at_s else Meter.unread(),
    )


def _gap_words(gap: float) -> dict[str, float | str]:
    return {} if math.isnan(gap) else {"gap": gap if math.isfinite(gap) else "unknown"}


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n"


def _plain(column: Any) -> list[Any]:
    return column.words() if isinstance(column, Labels) else list(column.tolist())


# What a job's line leaves out, because most jobs have it so.
_USUAL: dict[str, object] = {
    "step_s": 1.0,
    "whole": False,
    "deadline_s": float("inf"),
    **dict.fromkeys(("priority", "late_per_h"), 0.0),
    **dict.fromkeys(("batch", "min_gpus", "max_gpus", "max_batch"), 0),
    **dict.fromkeys(("noise", "cpus", "mem_gib"), 0.0),
    **dict.fromkeys(("team", "user", "model", "gpu_kind", "key", "fuse", "status"), ""),
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
    elif event.verb == METERED:
        words["energy_j"] = event.energy_j
    elif event.verb not in (NODE_LOST, NODE_BACK):
        drawn = "watts" if event.verb == RAN else "energy_j"
        words.update(steps=event.steps, rate=event.rate, **{drawn: event.energy_j})
    return words


def _action_words(actions: Actions) -> list[dict[str, Any]]:
    words: list[dict[str, Any]] = []
    for verb, job, group, node, gpus, *knobs in actions.tolist():
        if verb >= POWER_OFF:
            words.append({ACTION_WORDS[verb]: node})
        elif verb == STOP:
            words.append({"stop": job, "group": group})
        elif verb == START and words and words[-1].get("start") == job:
            words[-1]["on"].append([node, gpus])
        else:
            words.append({ACTION_WORDS[verb]: job, "group": group})
            if verb == START:
                words[-1]["on"] = [[node, gpus]]
            set_to = zip(_SETTINGS, knobs, strict=True)
            words[-1].update({name: value for name, value in set_to if value or verb == RETUNE})
    return words


def read_log(path: str | Path) -> Log:
    """The log in a file that `write_log` wrote."""
    path = Path(path)
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with (gzip.open if packed else open)(path, "rt", encoding="utf-8") as text:
            return _read(enumerate(text, 1), str(path))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise TraceError(str(path), None, f"cannot be read as a run log: {error}") from None


def _read(lines: Iterator[tuple[int, str]], path: str) -> Log:
    reader: _Reader | None = None
    line = 0
    for line, text in lines:
        try:
            words = json.loads(text, parse_constant=_refuse)
            if reader is None:
                reader = _Reader(words)
            else:
                reader.round(words, line)
        except (ValueError, InputError, ConfigError) as error:
            raise TraceError(path, line, f"not a line of a run log: {error}") from None
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise TraceError(path, line, f"not a line of a run log: {error!r}") from None
    if reader is None:
        raise TraceError(path, None, "is empty, expected a run log")
    if not len(reader.log) or reader.log._events[-6] != METERED:
        raise TraceError(path, line, "the log ends early, expected a last line with what was metered")
    return reader.finished(path)


class _Reader:
    """A log as its lines come in.

    Numbers index arrays later on, some of them in compiled code: nothing wrong may get there.
    """

    def __init__(self, header: dict[str, Any]) -> None:
        if header.get("wattline_log") != FORMAT:
            raise ValueError(f"wattline_log is {header.get('wattline_log')!r}, expected {FORMAT}")
        _value("policy", header["policy"])  # a KeyError names what is missing
        _value("seed", header["seed"])
        header["trace"]
        if "price" in header:
            Price.of(header["price"])
        del header["wattline_log"]
        teams = header.pop("teams")
        self.teams = {_value("teams", name): number for number, name in enumerate(teams)}
        if len(self.teams) != len(teams):
            raise ValueError(f"teams are {', '.join(teams)}, expected each once")
        self.columns: dict[str, list[Any]] = {field.name: [] for field in fields(Jobs)}
        self.line_of: dict[str, int] = {}  # where each job arrived, by id
        self.log = Log(header, self.jobs(), _read_nodes(header.pop("nodes")))

    def jobs(self) -> Jobs:
        """All that have arrived."""
        made = {name: _array(name, values) for name, values in self.columns.items()}
        team = [self.teams[name] for name in self.columns["team"]]
        return Jobs(**made | {"team": Labels(np.array(team, dtype=np.int64), tuple(self.teams))})

    def finished(self, path: str) -> Log:
        """The log, if no job in it asks for what no job can ask for."""
        self.log.jobs = jobs = self.jobs()
        try:
            jobs._check()
        except InputError:
            for row, line in enumerate(self.line_of.values()):
                try:
                    jobs.take(slice(row, row + 1))._check()
                except InputError as error:
                    raise TraceError(path, line, error.message) from None
        return self.log

    def round(self, words: dict[str, Any], line: int) -> None:
        """One line after the header."""
        now_s = _value("t", words["t"])
        if len(self.log) and now_s < self.log.end_s:
            raise ValueError(f"t is {now_s}, expected at least {self.log.end_s}: time does not go back")
        events = [self._event(happened, line) for happened in words["events"]]
        actions = [row for done in words["actions"] for row in self._rows(done)]
        held = [
            (self._job("job", int(job)), _number_of(reason, _REASONS))
            for job, reason in words["held"].items()
        ]
        self.log.append(
            now_s,
            rows(*events),
            np.array(actions, dtype=np.int64).reshape(-1, ACTION_COLUMNS),
            np.array(held, dtype=np.int64).reshape(-1, 2),
            _gap(words),
        )

    def _event(self, words: dict[str, Any], line: int) -> Event:
        verb, who = _verb(words, _EVENTS)
        at_s = _value("at_s", words["at_s"])
        if verb == ARRIVED:
            self._arrive(words, who, line)
            return Event(verb, who, at_s)
        if verb == METERED:
            _index("team", who, len(self.teams), first=-1)
        elif verb in (NODE_LOST, NODE_BACK):
            _index("node", who, len(self.log.nodes))
        else:
            self._job("job", who)
        names = ("steps", "rate", "watts" if verb == RAN else "energy_j")
        return Event(verb, who, at_s, *(_value(name, words.get(name, 0.0)) for name in names))

    def _arrive(self, words: dict[str, Any], job: Any, line: int) -> None:
        if type(job) is not int or job != len(self.line_of):
            raise ValueError(f"job {job} arrives, expected {len(self.line_of)}: jobs arrive in order")
        for name, column in self.columns.items():
            usual = name not in words and name in _USUAL
            column.append(_USUAL[name] if usual else _value(name, words[name]))
        self.teams.setdefault(self.columns["team"][-1], len(self.teams))  # where not all were known before
        self.line_of.setdefault(words["id"], line)
        if len(self.line_of) == job:
            raise ValueError(f"the id {words['id']!r} appears twice, expected unique ids")

    def _rows(self, words: dict[str, Any]) -> Iterator[tuple[int, ...]]:
        """The rows of one action."""
        verb, who = _verb(words, _ACTIONS)
        if verb >= POWER_OFF:
            yield verb, -1, -1, _index("node", who, len(self.log.nodes)), 0, *(0 for _ in _SETTINGS)
            return
        job, group = self._job("job", who), self._job("group", words["group"])
        knobs = [_value(name, words.get(name, 0)) for name in _SETTINGS]
        if verb != START:
            yield verb, job, group, -1, 0, *knobs
            return
        if not words["on"]:
            raise ValueError(f"job {job} starts on no node")
        for node, gpus in words["on"]:
            _index("node", node, len(self.log.nodes))
            yield verb, job, group, node, _value("gpus", gpus), *knobs

    def _job(self, what: str, number: Any) -> int:
        return _index(what, number, len(self.line_of))


_EVENTS, _ACTIONS, _REASONS = (
    {word: number for number, word in enumerate(words)}
    for words in (EVENT_WORDS, ACTION_WORDS, [reason.name.lower() for reason in REASONS])
)
_LABELS = ("team", "user", "model", "gpu_kind", "key", "fuse", "status", "kind")
_KINDS: dict[str, tuple[type, str]] = {
    **dict.fromkeys(("id", "name", "teams", "policy", *_LABELS), (str, "a word")),
    **dict.fromkeys(("seed", "rack", "cap_w", "batch", *HOST), (int, "a whole number")),
    **dict.fromkeys(("min_gpus", "max_gpus", "max_batch"), (int, "a whole number")),
    "gpus": (int, "a whole number above 0"),
    "whole": (bool, "true or false"),
}
"""What is a word, a whole number or a truth; all else is a number."""
_NUMBER = (float, "a number")
_MOST = np.iinfo(np.int64).max


def _value(name: str, value: Any) -> Any:
    """*value*, if something of that name can have it."""
    kind, expected = _KINDS.get(name, _NUMBER)
    good = type(value) is kind
    if kind is float:
        good = (good or type(value) is int) and math.isfinite(value)
    elif kind is int:
        good = good and (name == "gpus") <= value <= _MOST
    if not good:
        raise ValueError(f"{name} is {value!r}, expected {expected}")
    return value


def _gap(words: dict[str, Any]) -> float:
    """What a round says of its gap."""
    if "gap" not in words:
        return math.nan
    return math.inf if words["gap"] == "unknown" else float(_value("gap", words["gap"]))


def _index(what: str, number: Any, count: int, first: int = 0) -> int:
    """*number*, if there is such a job, node or team."""
    if type(number) is not int or not first <= number < count:
        raise ValueError(f"{what} {number!r} does not exist, expected {first} to {count - 1}")
    return number


def _verb(words: dict[str, Any], known: Mapping[str, int]) -> tuple[int, Any]:
    """Number of the verb of an event or action, and of whom it speaks."""
    for word, who in words.items():
        return _number_of(word, known), who
    raise ValueError("an event or action is empty")


def _number_of(word: Any, known: Mapping[str, int]) -> int:
    if word not in known:
        raise ValueError(f"{word!r} is none of {', '.join(known)}")
    return known[word]


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number")


def _array(name: str, values: list[Any]) -> Any:
    """A column of jobs or nodes."""
    if name in _LABELS:
        return Labels.of(values)
    kind, _ = _KINDS.get(name, _NUMBER)
    return np.array(values, dtype=np.object_ if kind is str else kind)


def _read_nodes(columns: dict[str, list[Any]]) -> Nodes:
    names = [field.name for field in fields(Nodes)]
    nodes = Nodes(**{name: _array(name, [_value(name, v) for v in columns[name]]) for name in names})
    if not len(nodes) or any((getattr(nodes, name) < 0).any() for name in names if name.endswith("_w")):
        raise ValueError("nodes are none, or draw less than nothing")
    return nodes

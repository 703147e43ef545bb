"""Run log as JSON lines: the reader."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from wattline.core.actions import ACTION_COLUMNS, ACTION_WORDS, POWER_OFF, START
from wattline.core.events import (
    ARRIVED,
    CAPACITY,
    EVENT_VERB,
    EVENT_WORDS,
    METERED,
    NODE_BACK,
    NODE_LOST,
    PROTECTED,
    RAN,
    READY,
    Event,
    build_events,
)
from wattline.core.jobs import Jobs
from wattline.core.leases import LEASE_ROWS, Leases
from wattline.core.nodes import HOST_RESOURCES, Nodes
from wattline.core.queue import QUEUE_PROTECTED_UNTIL_S, QUEUE_RESTART_S, QUEUE_ROWS, QUEUE_STARTUP_S, Queue
from wattline.core.quotas import Quotas
from wattline.core.reasons import REASONS
from wattline.core.resource_prices import ResourcePrices
from wattline.core.snapshot import MeterReadings, Snapshot
from wattline.core.table import Floats, Labels
from wattline.core.usage import Usage
from wattline.energy.prices import Price
from wattline.errors import ConfigError, InputError, TraceError
from wattline.loop.log_writer import ACTION_SETTINGS, DEFAULT_JOB_VALUES, FORMAT
from wattline.loop.runlog import Log
from wattline.loop.state import restore_state


def read_log(path: str | Path) -> Log:
    """Read a log that `write_log` wrote, compressed or not.

    Raise `TraceError` with the path and line where the file is not a complete run log.
    """
    path = Path(path)
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with (gzip.open if packed else open)(path, "rt", encoding="utf-8") as text:
            return _read_lines(enumerate(text, 1), str(path))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        cause = getattr(error, "strerror", None) or error
        raise TraceError(str(path), None, f"cannot be read as a run log: {cause}") from None


def read_initial_state(log: Log) -> Snapshot | None:
    """Return the state that the run of *log* started from; None: an empty cluster."""
    data = log.header.get("initial_state", log.header.get("begins"))  # 0.1.0 wrote "begins"
    if data is None:
        return None
    queue = np.array(
        [[math.nan if v is None else float(v) for v in row] for row in data["queue"]], np.float64
    )
    leases = np.array(data["leases"], np.int64).reshape(LEASE_ROWS, -1)
    at_s, energy_j = data["meter"]
    return restore_state(
        log.jobs,
        log.nodes,
        log.header["seed"],
        data["t"],
        Queue(_add_missing_rows(queue.reshape(len(data["queue"]), -1))),
        Leases(leases),
        MeterReadings(np.array(at_s), np.array(energy_j)) if at_s else MeterReadings.empty(),
        Usage.from_rows([tuple(row) for row in data["usage"]], data["t"]) if "usage" in data else None,
        read_quotas(log),
    )


def _add_missing_rows(queue: Floats) -> Floats:
    """Return the block of a queue; older logs have no rows about checkpoints, protection and start-ups."""
    if len(queue) == QUEUE_ROWS:
        return queue
    block = np.zeros((QUEUE_ROWS, queue.shape[1]))
    block[QUEUE_PROTECTED_UNTIL_S] = -math.inf
    block[[QUEUE_STARTUP_S, QUEUE_RESTART_S]] = math.nan
    block[: len(queue)] = queue
    return block


def read_quotas(log: Log) -> Quotas:
    """Return the quotas that were in force in the run of *log*."""
    return Quotas.from_list(log.header.get("quotas", []))


def _read_lines(lines: Iterator[tuple[int, str]], path: str) -> Log:
    """Build the log from numbered *lines*."""
    builder: _LogBuilder | None = None
    line = 0
    for line, text in lines:
        try:
            data = json.loads(text, parse_constant=_reject_constant)
            if builder is None:
                builder = _LogBuilder(data)
            else:
                builder.add_round(data, line)
        except (ValueError, InputError, ConfigError) as error:
            raise TraceError(path, line, f"not a line of a run log: {error}") from None
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise TraceError(path, line, f"not a line of a run log: {error!r}") from None
    if builder is None:
        raise TraceError(path, None, "is empty, expected a run log")
    events = builder.log.events
    if not len(events) or events[-1, EVENT_VERB] != METERED:
        raise TraceError(path, line, "the log ends early, expected a last line with the meter readings")
    return builder.finish(path)


class _LogBuilder:
    """A log under construction, fed line by line.

    Every number is checked here, because it later indexes arrays in compiled code without bounds checks.
    """

    def __init__(self, header: dict[str, Any]) -> None:
        if header.get("wattline_log") != FORMAT:
            raise ValueError(f"wattline_log is {header.get('wattline_log')!r}, expected {FORMAT}")
        _check_value("policy", header["policy"])  # a KeyError names the missing key
        _check_value("seed", header["seed"])
        header["trace"]
        if "price" in header:
            Price.from_dict(header["price"])
        del header["wattline_log"]
        teams = header.pop("teams")
        self.teams = {_check_value("teams", name): number for number, name in enumerate(teams)}
        if len(self.teams) != len(teams):
            raise ValueError(f"teams are {', '.join(teams)}, expected each once")
        self.columns: dict[str, list[Any]] = {field.name: [] for field in fields(Jobs)}
        self.arrival_line: dict[str, int] = {}  # line of each job's arrival, by id
        self.log = Log(header, self.build_jobs(), _read_nodes(header.pop("nodes")))

    def build_jobs(self) -> Jobs:
        """Build the table of the jobs that have arrived so far."""
        made = {name: _build_column(name, values) for name, values in self.columns.items()}
        team = [self.teams[name] for name in self.columns["team"]]
        return Jobs(**made | {"team": Labels(np.array(team, dtype=np.int64), tuple(self.teams))})

    def finish(self, path: str) -> Log:
        """Return the log, or raise `TraceError` with the line of the first job with an impossible request."""
        self.log.jobs = jobs = self.build_jobs()
        try:
            jobs.validate()
        except InputError:
            for row, line in enumerate(self.arrival_line.values()):
                try:
                    jobs.take(slice(row, row + 1)).validate()
                except InputError as error:
                    raise TraceError(path, line, error.message) from None
        return self.log

    def add_round(self, data: dict[str, Any], line: int) -> None:
        """Add the round of one line after the header."""
        now_s = _check_value("t", data["t"])
        if len(self.log) and now_s < self.log.end_s:
            raise ValueError(f"t is {now_s}, expected at least {self.log.end_s}: time does not go back")
        events = [self._read_event(entry, line) for entry in data["events"]]
        actions = [row for entry in data["actions"] for row in self._read_action(entry)]
        held = [
            (self._check_job("job", int(job)), _find_word(reason, _REASONS))
            for job, reason in data["held"].items()
        ]
        self.log.append(
            now_s,
            build_events(*events),
            np.array(actions, dtype=np.int64).reshape(-1, ACTION_COLUMNS),
            np.array(held, dtype=np.int64).reshape(-1, 2),
            _read_gap(data),
            always=True,
            prices=_read_prices(data),
        )

    def _read_event(self, data: dict[str, Any], line: int) -> Event:
        """Decode one event; an arrival also adds its job."""
        verb, subject = _split_verb(data, _EVENTS)
        at_s = _check_value("at_s", data["at_s"])
        if verb == ARRIVED:
            self._add_job(data, subject, line)
            return Event(verb, subject, at_s)
        if verb == METERED:
            _check_index("team", subject, len(self.teams), first=-1)
        elif verb in (NODE_LOST, NODE_BACK, CAPACITY):
            _check_index("node", subject, len(self.log.nodes))
        else:
            self._check_job("job", subject)
        if verb == PROTECTED:
            until_s, saved_s = (
                math.inf if data[name] is None else _check_value(name, data[name])
                for name in ("until_s", "saved_s")
            )
            return Event(verb, subject, at_s, _check_value("steps", data["steps"]), until_s, saved_s)
        if verb == READY:
            return Event(verb, subject, at_s, rate=_check_value("startup_s", data["startup_s"]))
        if verb == CAPACITY:
            return Event(verb, subject, at_s, *(_check_value(name, data[name]) for name in _CAPACITY))
        names = ("steps", "rate", "watts" if verb == RAN else "energy_j")
        return Event(verb, subject, at_s, *(_check_value(name, data.get(name, 0.0)) for name in names))

    def _add_job(self, data: dict[str, Any], job: Any, line: int) -> None:
        if type(job) is not int or job != len(self.arrival_line):
            raise ValueError(f"job {job} arrives, expected {len(self.arrival_line)}: jobs arrive in order")
        for name, column in self.columns.items():
            usual = name not in data and name in DEFAULT_JOB_VALUES
            column.append(DEFAULT_JOB_VALUES[name] if usual else _check_value(name, data[name]))
        self.teams.setdefault(
            self.columns["team"][-1], len(self.teams)
        )  # logs of a service: a team may be new
        self.arrival_line.setdefault(data["id"], line)
        if len(self.arrival_line) == job:
            raise ValueError(f"the id {data['id']!r} appears twice, expected unique ids")

    def _read_action(self, data: dict[str, Any]) -> Iterator[tuple[int, ...]]:
        """Yield the rows of one action, several for a start on several nodes."""
        verb, subject = _split_verb(data, _ACTIONS)
        if verb >= POWER_OFF:
            yield (
                verb,
                -1,
                -1,
                _check_index("node", subject, len(self.log.nodes)),
                0,
                *(0 for _ in ACTION_SETTINGS),
            )
            return
        job, group = self._check_job("job", subject), self._check_job("group", data["group"])
        knobs = [_check_value(name, data.get(name, 0)) for name in ACTION_SETTINGS]
        if verb != START:
            yield verb, job, group, -1, 0, *knobs
            return
        if not data["on"]:
            raise ValueError(f"job {job} starts on no node")
        for node, gpus in data["on"]:
            _check_index("node", node, len(self.log.nodes))
            yield verb, job, group, node, _check_value("gpus", gpus), *knobs

    def _check_job(self, what: str, number: Any) -> int:
        return _check_index(what, number, len(self.arrival_line))


_EVENTS, _ACTIONS, _REASONS = (
    {word: number for number, word in enumerate(words)}
    for words in (EVENT_WORDS, ACTION_WORDS, [reason.name.lower() for reason in REASONS])
)
_CAPACITY = ("gpus", "cpus", "mem_gib")
_LABELS = ("team", "user", "model", "gpu_kind", "key", "fuse", "status", "kind")
_TYPES: dict[str, tuple[type, str]] = {
    **dict.fromkeys(("id", "name", "teams", "policy", *_LABELS), (str, "a word")),
    **dict.fromkeys(("seed", "rack", "cap_w", "batch", *HOST_RESOURCES), (int, "a whole number")),
    **dict.fromkeys(("min_gpus", "max_gpus", "max_batch", "preemptible"), (int, "a whole number")),
    "gpus": (int, "a whole number above 0"),
    **dict.fromkeys(("whole", "always_fuse"), (bool, "true or false")),
}
"""Type of each key and its name in messages; all other keys are numbers."""
_NUMBER = (float, "a number")
_MAX_INT = np.iinfo(np.int64).max


def _check_value(name: str, value: Any) -> Any:
    """Return *value*, or raise `ValueError` if the key *name* cannot have it."""
    kind, expected = _TYPES.get(name, _NUMBER)
    good = type(value) is kind
    if kind is float:
        good = (good or type(value) is int) and math.isfinite(value)
    elif kind is int:
        good = good and (name == "gpus") <= value <= _MAX_INT
    if not good:
        raise ValueError(f"{name} is {value!r}, expected {expected}")
    return value


def _read_gap(data: dict[str, Any]) -> float:
    """Return the optimality gap of a round; nan: not given, inf: unknown."""
    if "gap" not in data:
        return math.nan
    return math.inf if data["gap"] == "unknown" else float(_check_value("gap", data["gap"]))


def _read_prices(data: dict[str, Any]) -> ResourcePrices | None:
    """Return the prices of a round; None: not given."""
    if "prices" not in data:
        return None
    if not isinstance(data["prices"], dict):
        raise ValueError(f"prices are {data['prices']!r}, expected a price for each resource")
    bound = float(_check_value("bound", data["bound"])) if "bound" in data else math.nan
    prices = {name: float(_check_price(name, price)) for name, price in data["prices"].items()}
    return ResourcePrices(tuple(prices), tuple(prices.values()), bound)


def _check_price(name: str, value: Any) -> Any:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"the price of {name} is {value!r}, expected a number")
    return value


def _check_index(what: str, number: Any, count: int, first: int = 0) -> int:
    """Return *number*, or raise `ValueError` if there is no such job, node or team."""
    if type(number) is not int or not first <= number < count:
        raise ValueError(f"{what} {number!r} does not exist, expected {first} to {count - 1}")
    return number


def _split_verb(data: dict[str, Any], known: Mapping[str, int]) -> tuple[int, Any]:
    """Return the number of the verb of an event or action, and its job, node or team."""
    for word, subject in data.items():
        return _find_word(word, known), subject
    raise ValueError("an event or action is empty")


def _find_word(word: Any, known: Mapping[str, int]) -> int:
    if word not in known:
        raise ValueError(f"{word!r} is none of {', '.join(known)}")
    return known[word]


def _reject_constant(word: str) -> None:
    raise ValueError(f"{word} is not a number")


def _build_column(name: str, values: list[Any]) -> Any:
    """Build a column of `Jobs` or `Nodes`."""
    if name in _LABELS:
        return Labels.of(values)
    kind, _ = _TYPES.get(name, _NUMBER)
    return np.array(values, dtype=np.object_ if kind is str else kind)


def _read_nodes(columns: dict[str, list[Any]]) -> Nodes:
    names = [field.name for field in fields(Nodes)]
    nodes = Nodes(
        **{name: _build_column(name, [_check_value(name, v) for v in columns[name]]) for name in names}
    )
    if not len(nodes) or any((getattr(nodes, name) < 0).any() for name in names if name.endswith("_w")):
        raise ValueError(
            "nodes are empty or have negative watts, expected at least one node, watts at least 0"
        )
    return nodes

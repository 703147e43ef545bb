"""Parse the fields of a chunk of rows, whole columns at a time: words, numbers and times.

Every conversion returns a full column. Invalid rows are recorded with the field, its value and what was
expected, and are dropped (or raised) once the chunk is complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime

import numpy as np

from wattline.core.table import Bools, Floats, Ints, Labels
from wattline.errors import TraceError
from wattline.measurement.gpu_names import resolve_gpu_kinds
from wattline.trace.clock_parser import parse_clock, parse_limit

GPUS = "a whole number of GPUs, at least 1"
SECONDS = "a number of seconds, at least 0"
CLOCK = "seconds or [D-]HH:MM:SS"
MOMENT = "a time such as 2024-05-31 13:45:00"
WITHOUT_GPUS = "without GPUs"
NEVER_STARTED = "never started"
NOT_ENDED = "not ended"
SHARED_GPU = "with a share of a GPU, counted as a whole one"
_MOST_S = 1e11  # a date in seconds is below, one in milliseconds above: 1973 to the year 5138
_LARGEST = 1e12  # largest count; products of two counts still fit into 64 bits
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STAMP = len("2024-05-31 13:45:00")


class Chunk:
    """Consecutive rows of one text as columns of strings, with the problems found in them.

    Problems are added while a format converts the columns; a row both ignored and bad counts as ignored.
    """

    def __init__(
        self,
        label: str,
        first: int,
        line: Ints,
        texts: dict[str, Sequence[str]],
        problems: dict[int, str] | None = None,
    ) -> None:
        self.label = label
        self.first = first  # number of rows of the text before this chunk
        self.line = line  # 1-based; 0: unknown
        self.texts = texts
        self.problems = {} if problems is None else problems
        self._unsplit = list(self.problems)  # rows that could not be split: always bad
        self.ignored: Bools = np.zeros(len(line), dtype=np.bool_)
        self.ignored_by: dict[str, Bools] = {}  # reason -> rows; a row has one reason
        self.repaired_by: dict[str, Bools] = {}  # what was repaired -> rows

    def __len__(self) -> int:
        return len(self.line)

    def has(self, *names: str) -> bool:
        """Return whether all these columns exist."""
        return all(name in self.texts for name in names)

    def words(self, name: str) -> Sequence[str]:
        """Return a column of unparsed words."""
        if name not in self.texts:
            found = ", ".join(self.texts)
            raise TraceError(self.label, 1, f"the column {name} is missing", f"the columns are: {found}")
        return self.texts[name]

    def labels(self, name: str) -> Labels | None:
        """Return a column of repeated words; None if the column does not exist."""
        return Labels.of(self.texts[name]) if name in self.texts else None

    def kinds(
        self,
        name: str,
        missing: Collection[str] = ("",),
        resolve: Callable[[str], str] = resolve_gpu_kinds,
    ) -> Labels | None:
        """Return a column of GPU kinds as *resolve* names them; None if the column does not exist.

        Several kinds are separated by |. *missing* words stand for any kind.
        """
        if name not in self.texts:
            return None
        words = Labels.of(self.texts[name])
        kinds = ["" if word in missing else resolve(word) for word in words.names]
        return Labels.of(kinds[code] for code in words.codes.tolist())

    def numbers(
        self,
        name: str,
        expected: str,
        low: float = -math.inf,
        high: float = math.inf,
        missing: dict[str, float] | None = None,
    ) -> Floats:
        """Return a column of finite numbers from *low* to *high*; *missing* maps words to numbers."""
        words = self.words(name)
        absent = missing or {}
        try:
            values = np.array([absent.get(w, w) for w in words] if absent else words, dtype=np.float64)
        except ValueError:
            values = np.array([_number(absent.get(word, word)) for word in words])
        good = np.isfinite(values) & (values >= low) & (values <= high)
        if absent and not good.all():
            good |= np.array([word in absent for word in words])
        return self._reject_invalid(name, values, good, expected)

    def seconds(self, name: str) -> Floats:
        """Return a column of durations or relative times, none negative."""
        return self.numbers(name, SECONDS, low=0.0)

    def whole(self, name: str, expected: str, low: float, missing: dict[str, float] | None = None) -> Ints:
        """Return a column of whole numbers, at least *low*."""
        values = self.numbers(name, expected, low, _LARGEST, missing)
        whole = values == np.floor(values)
        return self._reject_invalid(name, values, whole, expected).astype(np.int64)

    def gpus(self, name: str) -> Ints:
        """Return a column of GPU counts, at least one each."""
        return self.whole(name, GPUS, low=1)

    def gpus_or_none(self, name: str) -> Ints:
        """Return a column of GPU counts, where 0 means that the job needs none: such rows are ignored."""
        values = self.whole(name, "a whole number of GPUs, at least 0", low=0, missing={"": 0.0})
        self.ignore(values == 0, WITHOUT_GPUS)
        return np.maximum(values, 1)

    def moments(self, name: str, missing: Sequence[str] = ("",), epoch: bool = False) -> Floats:
        """Return a column of wall-clock times as seconds since 1970 (UTC unless it says otherwise).

        *missing* words become nan and are no error. With *epoch*, numbers are seconds since 1970, or
        milliseconds if they are too many for seconds.
        """
        words = ["NaT" if word in missing else word for word in self.words(name)]
        if all(map(_plain, words)):
            try:
                stamps = np.array(words, dtype="datetime64[s]")
                return np.where(np.isnat(stamps), np.nan, stamps.astype(np.int64).astype(np.float64))
            except ValueError:  # the slow way finds out which
                pass
        values = np.array([_epoch_or_moment(word) for word in words] if epoch else [*map(moment, words)])
        good = np.isfinite(values) | np.array([word == "NaT" for word in words], dtype=np.bool_)
        return self._reject_invalid(name, values, good, MOMENT)

    def durations(self, name: str, missing: Sequence[str] = (), unit_s: float = 1.0) -> Floats:
        """Return a column of durations, numbers in *unit_s* or [D-]HH:MM:SS; *missing* words become nan."""
        words = Labels.of(self.words(name))
        by_word = np.array([math.nan if w in missing else parse_clock(w) for w in words.names])
        plain = np.array([":" not in w and "-" not in w for w in words.names], np.bool_)
        by_word = np.where(plain, unit_s * by_word, by_word)
        good = np.isfinite(by_word) | np.array([w in missing for w in words.names], dtype=np.bool_)
        return self._reject_invalid(name, by_word[words.codes], good[words.codes], CLOCK)

    def limits(self, name: str, unit_s: float = 1.0) -> Floats:
        """Return a column of time limits, those without colon in *unit_s*; inf: unlimited, nan: unknown."""
        words = Labels.of(self.words(name))
        by_word = np.array([parse_limit(word) for word in words.names])
        plain = np.array([word.strip().replace(".", "", 1).isdecimal() for word in words.names], np.bool_)
        values = np.where(plain, unit_s * by_word, by_word)[words.codes]
        return self._reject_invalid(name, values, values != -1.0, f"{CLOCK}, or UNLIMITED")

    def ids(self, name: str) -> list[str]:
        """Return a column of job ids, none empty."""
        words = list(self.words(name))
        if not all(words):
            self.reject(np.array([not word for word in words]), lambda row: f"{name} is empty")
        return words

    def numbered(self) -> list[str]:
        """Names for jobs that have none: their row, counted from 0."""
        return [str(self.first + row) for row in range(len(self))]

    def not_before(self, late_name: str, late: Floats, early_name: str, early: Floats) -> None:
        """Reject rows in which one time is before another."""
        self.reject(
            late < early,
            lambda row: (
                f"{late_name} is {self.words(late_name)[row]!r}, expected not before "
                f"{early_name}, {self.words(early_name)[row]!r}"
            ),
        )

    def reject(self, bad: Bools, problem: Callable[[int], str]) -> None:
        """Note that rows are bad and why; the first problem of a row stands."""
        for row in np.flatnonzero(bad).tolist():
            if row not in self.problems:
                self.problems[row] = problem(row)

    def ignore(self, rows: Bools, reason: str) -> None:
        """Note that rows are right but no GPU jobs, and why; the first reason of a row stands."""
        new = rows & ~self.ignored
        new[self._unsplit] = False
        if new.any():
            self.ignored = self.ignored | new
            self.ignored_by[reason] = self.ignored_by.get(reason, new) | new

    def repair(self, rows: Bools, what: str) -> None:
        """Note that something of these rows was completed or approximated."""
        if rows.any():
            self.repaired_by[what] = self.repaired_by.get(what, rows) | rows

    def _reject_invalid(self, name: str, values: Floats, good: Bools, expected: str) -> Floats:
        if good.all():
            return values
        words = self.words(name)
        self.reject(~good, lambda row: f"{name} is {words[row]!r}, expected {expected}")
        return np.where(good, values, 1.0)


def _plain(word: str) -> bool:
    """Return whether numpy may parse *word*: it warns of time zones and accepts words such as "now"."""
    return word == "NaT" or (len(word) == _STAMP and word[13] == word[16] == ":")


def _number(word: str | float) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan


def parse_moment(word: str) -> float:
    """Return the seconds of a number, or since 1970 of a date; nan if it is neither."""
    value = _number(word)
    return value if math.isfinite(value) else moment(word)


def _epoch_or_moment(word: str) -> float:
    if not word.replace(".", "", 1).isdecimal():
        return moment(word)
    value = float(word)
    return value / 1000 if value > _MOST_S else value


def moment(word: str) -> float:
    """Seconds since 1970 of one time in ISO form; nan if it is none."""
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

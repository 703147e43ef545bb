"""Reads recorded trainings: epochs to a target by batch size, and time and power of an epoch by power limit.

A directory holds `summary_train.csv`, one row for each run and target level, and `summary_power_<gpu>.csv`,
one row for each batch size and power limit: the format of the tables published by the authors of Zeus.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wattline.core.table import Floats, Ints, Labels, Table
from wattline.errors import NotFound, ProfileError, did_you_mean

_POWER = "summary_power_"


@dataclass(frozen=True, eq=False)
class TrainingRuns(Table):
    """Rows of summary_train.csv: the epoch at which a run reached a target level; nan: not reached."""

    dataset: Labels
    network: Labels
    batch: Ints
    optimizer: Labels
    target: Floats
    epochs: Floats
    line: Ints


@dataclass(frozen=True, eq=False)
class EpochMeasurements(Table):
    """Rows of summary_power_<gpu>.csv: time and power of an epoch by batch size and power limit.

    nan: not measured.
    """

    dataset: Labels
    network: Labels
    batch: Ints
    optimizer: Labels
    cap_w: Floats
    seconds: Floats
    watts: Floats
    line: Ints


@dataclass(frozen=True, eq=False)
class RecordedTraining:
    """One training on one kind of GPU, with the batch sizes that were both trained and measured, ascending.

    `epochs[i]` are the runs at `batches[i]`, nan if a run did not reach the target; *seconds* and
    *watts* of an epoch have a row for each batch size and a column for each of *caps_w*, ascending, and are
    nan where a batch size was not measured at a limit.
    """

    gpu: str
    dataset: str
    network: str
    optimizer: str
    target: float
    batches: tuple[int, ...]
    caps_w: Floats
    max_w: float
    epochs: tuple[Floats, ...]
    seconds: Floats
    watts: Floats


@dataclass(frozen=True, eq=False)
class RecordedTables:
    """All tables of a directory."""

    path: Path
    runs: TrainingRuns
    power: dict[str, EpochMeasurements]

    @property
    def gpus(self) -> tuple[str, ...]:
        """Kinds of GPU, sorted by name."""
        return tuple(self.power)

    @property
    def datasets(self) -> tuple[str, ...]:
        """Data sets, in the order of the file."""
        return self.runs.dataset.names

    def targets_of(self, dataset: str) -> tuple[float, ...]:
        """Target levels of a data set, ascending."""
        return tuple(np.unique(self.runs.target[_rows_of(self.runs, dataset)]).tolist())

    def measurements_on(self, gpu: str) -> EpochMeasurements:
        """Return the measurements on this kind of GPU; raises `NotFound` if there are none."""
        if gpu not in self.power:
            raise NotFound(
                f"{self.path} has no {_POWER}{gpu}.csv, only of {', '.join(self.gpus)}",
                did_you_mean(gpu, self.gpus),
            )
        return self.power[gpu]

    def select_training(self, dataset: str, gpu: str, target: float) -> RecordedTraining | None:
        """Return the training on *dataset* to *target*, or None if it was not measured on this kind of GPU.

        Rows of both tables are joined by network, optimiser and batch size.
        """
        power = self.measurements_on(gpu)
        levels = _rows_of(self.runs, dataset)
        if not levels.size:
            raise NotFound(f"{self.path} has no data set {dataset}", did_you_mean(dataset, self.datasets))
        runs = levels[np.isclose(self.runs.target[levels], target, rtol=1e-9, atol=0)]
        if not runs.size:
            available = ", ".join(f"{level:g}" for level in np.unique(self.runs.target[levels]))
            raise NotFound(f"{dataset} has no target {target:g}, only {available}")
        first = int(runs[0])
        network, optimizer = self.runs.network.word(first), self.runs.optimizer.word(first)
        for row in runs.tolist():
            if (self.runs.network.word(row), self.runs.optimizer.word(row)) != (network, optimizer):
                raise ProfileError(
                    str(self.path / "summary_train.csv"), int(self.runs.line[row]),
                    f"{dataset} is trained with {self.runs.network.word(row)} and"
                    f" {self.runs.optimizer.word(row)}, expected {network} and {optimizer} as above",
                )  # fmt: skip
        epochs = [
            row
            for row in _rows_of(power, dataset).tolist()
            if (power.network.word(row), power.optimizer.word(row)) == (network, optimizer)
            and not math.isnan(power.seconds[row] * power.watts[row])
        ]
        both = sorted(set(self.runs.batch[runs].tolist()) & set(power.batch[epochs].tolist()))
        if not both:
            return None
        epochs = [row for row in epochs if int(power.batch[row]) in both]
        caps_w = np.unique(power.cap_w[epochs])
        seconds, watts = self._tabulate(gpu, power, epochs, both, caps_w)
        return RecordedTraining(
            gpu=gpu, dataset=dataset, network=network, optimizer=optimizer, target=target,
            batches=tuple(both), caps_w=caps_w, max_w=float(power.cap_w.max()),
            epochs=tuple(self.runs.epochs[runs[self.runs.batch[runs] == batch]] for batch in both),
            seconds=seconds, watts=watts,
        )  # fmt: skip

    def _tabulate(
        self, gpu: str, power: EpochMeasurements, rows: Sequence[int], batches: Sequence[int], caps_w: Floats
    ) -> tuple[Floats, Floats]:
        seconds, watts = np.full((2, len(batches), len(caps_w)), np.nan)
        path = str(self.path / f"{_POWER}{gpu}.csv")
        for row in rows:
            cell = batches.index(int(power.batch[row])), int(np.searchsorted(caps_w, power.cap_w[row]))
            if not math.isnan(seconds[cell]):
                raise ProfileError(
                    path, int(power.line[row]),
                    f"batch_size {power.batch[row]} at power_limit {power.cap_w[row]:g} appears twice,"
                    " expected once",
                )  # fmt: skip
            seconds[cell], watts[cell] = power.seconds[row], power.watts[row]
        return seconds, watts


def read_tables(directory: str | Path) -> RecordedTables:
    """Read the tables of *directory*; raises `ProfileError` at the first invalid field."""
    path = Path(directory)
    found = sorted(path.glob(f"{_POWER}*.csv"))
    if not found:
        raise ProfileError(
            str(path),
            None,
            f"has no {_POWER}<gpu>.csv, expected one for each kind of GPU and summary_train.csv",
        )
    power = {file.stem.removeprefix(_POWER).casefold(): _read_epochs(file) for file in found}
    return RecordedTables(path, _read_runs(path / "summary_train.csv"), power)


def _rows_of(table: TrainingRuns | EpochMeasurements, dataset: str) -> Ints:
    names = table.dataset.names
    return np.flatnonzero(table.dataset.codes == (names.index(dataset) if dataset in names else -1))


def _read_runs(path: Path) -> TrainingRuns:
    readers: dict[str, Callable[[str], Any]] = {
        "dataset": _parse_name, "network": _parse_name, "batch_size": _parse_count, "optimizer": _parse_name,
        "target_metric": _parse_number, "target_epoch": _parse_epoch,
    }  # fmt: skip
    c, line = _read_columns(path, readers)
    return TrainingRuns(
        Labels.of(c["dataset"]), Labels.of(c["network"]), np.array(c["batch_size"], np.int64),
        Labels.of(c["optimizer"]), np.array(c["target_metric"], np.float64),
        np.array(c["target_epoch"], np.float64), line,
    )  # fmt: skip


def _read_epochs(path: Path) -> EpochMeasurements:
    readers: dict[str, Callable[[str], Any]] = {
        "dataset": _parse_name, "network": _parse_name, "batch_size": _parse_count, "optimizer": _parse_name,
        "power_limit": _parse_positive, "time_per_epoch": _parse_measured, "average_power": _parse_measured,
    }  # fmt: skip
    c, line = _read_columns(path, readers)
    return EpochMeasurements(
        Labels.of(c["dataset"]), Labels.of(c["network"]), np.array(c["batch_size"], np.int64),
        Labels.of(c["optimizer"]), np.array(c["power_limit"], np.float64),
        np.array(c["time_per_epoch"], np.float64), np.array(c["average_power"], np.float64), line,
    )  # fmt: skip


def _read_columns(path: Path, readers: dict[str, Callable[[str], Any]]) -> tuple[dict[str, list[Any]], Ints]:
    """Return the named columns of a CSV file, parsed by their readers, and the line numbers of its rows."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "not UTF-8 text"
        raise ProfileError(str(path), None, f"cannot be read: {reason}") from None
    lines = csv.reader(io.StringIO(text, newline=""))
    header = [word.strip() for word in next(lines, [])]
    for name in readers:
        if name not in header:
            raise ProfileError(
                str(path),
                1,
                f"has no column {name}, expected {', '.join(readers)}",
                did_you_mean(name, header),
            )
    columns: dict[str, list[Any]] = {name: [] for name in readers}
    row_lines: list[int] = []
    where = {name: header.index(name) for name in readers}
    for fields in lines:
        if not any(fields):
            continue
        if len(fields) != len(header):
            raise ProfileError(
                str(path),
                lines.line_num,
                f"has {len(fields)} fields, expected {len(header)} as in the header",
            )
        for name, read in readers.items():
            field = fields[where[name]].strip()
            try:
                columns[name].append(read(field))
            except ValueError as expected:
                raise ProfileError(
                    str(path), lines.line_num, f"{name} is {field!r}, expected {expected}"
                ) from None
        row_lines.append(lines.line_num)
    if not row_lines:
        raise ProfileError(str(path), None, "has no rows, expected at least one")
    return columns, np.array(row_lines, np.int64)


def _parse_name(field: str) -> str:
    if not field:
        raise ValueError("a name")
    return field


def _parse_number(field: str, expected: str = "a number") -> float:
    try:
        value = float(field)
    except ValueError:
        raise ValueError(expected) from None
    if not math.isfinite(value):
        raise ValueError(expected)
    return value


def _parse_positive(field: str) -> float:
    value = _parse_number(field, "a number above 0")
    if value <= 0:
        raise ValueError("a number above 0")
    return value


def _parse_measured(field: str) -> float:
    return math.nan if not field or field.casefold() == "nan" else _parse_positive(field)


def _parse_count(field: str) -> int:
    value = _parse_number(field, "a whole number of at least 1")
    if value < 1 or value != int(value):
        raise ValueError("a whole number of at least 1")
    return int(value)


def _parse_epoch(field: str) -> float:
    if not field or field.casefold() == "nan":
        return math.nan
    value = _parse_number(field, "a whole number of at least 1, or nothing")
    if value < 1 or value != int(value):
        raise ValueError("a whole number of at least 1, or nothing")
    return value

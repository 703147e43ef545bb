"""Profiles: tables with one row per measurement, read from and written to CSV."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wattline.core.table import Floats, Ints, Labels, Table
from wattline.errors import ProfileError, did_you_mean
from wattline.measurement.settings import KNOBS, UNSET, Settings, fewest_nodes

MEASURED = ("samples_s", "watts", "peak_gib", "n", "stderr")
COLUMNS = ("model", "gpu", *KNOBS, *MEASURED)
"""The columns of the CSV, units in their names; columns that were not measured may be left out."""

_ALSO = {"gpu_kind": "gpu", "gpu kind": "gpu"}
_WHOLE = frozenset(("gpus", "nodes", "fuse", "n"))
_LARGEST = 1e15
_MAY_BE_0 = frozenset(("stderr", "mem_gib"))


@dataclass(frozen=True, eq=False)
class Profile(Table):
    """Measurements, one row each: how a job was run, and what it then did.

    *samples_s* and *watts* are of the whole job: all its GPUs together, all its members together
    where jobs were fused. *peak_gib* is memory of one GPU. *n* measurements make the row, with
    *stderr* the standard error of *samples_s*. nan: not measured.
    """

    model: Labels
    gpu: Labels
    gpus: Floats
    nodes: Floats
    batch: Floats
    cap_w: Floats
    clock_mhz: Floats
    cpus: Floats
    mem_gib: Floats
    read_mib_s: Floats
    fuse: Floats
    samples_s: Floats
    watts: Floats
    peak_gib: Floats
    n: Floats
    stderr: Floats
    path: Labels  # where the row came from
    line: Ints

    @classmethod
    def of(cls, *, model: str | Sequence[str], gpu: str | Sequence[str], **columns: Any) -> Profile:
        """Build a profile from columns and numbers, which are stretched to one length.

        Values that no measurement can have raise `ProfileError`; rows count from 1.
        """
        for name in columns:
            if name not in COLUMNS:
                raise ProfileError(
                    "profile", None, f"{name} is not a column, expected some of {', '.join(COLUMNS)}"
                )
        try:
            arrays = {name: np.atleast_1d(np.asarray(column, np.float64)) for name, column in columns.items()}
        except (TypeError, ValueError) as problem:
            raise ProfileError("profile", None, f"columns must be numbers: {problem}") from None
        words = {"model": model, "gpu": gpu}
        if any(a.ndim != 1 for a in arrays.values()) or not all(
            isinstance(word, str | Sequence | np.ndarray) for word in words.values()
        ):
            raise ProfileError("profile", None, "columns must be numbers or sequences of them, names texts")
        lengths = {name: 1 if isinstance(word, str) else len(word) for name, word in words.items()}
        lengths |= {name: len(array) for name, array in arrays.items()}
        length = max(lengths.values())
        for name, count in lengths.items():
            if count not in (1, length) or not count:
                raise ProfileError("profile", None, f"{name} has {count} rows, expected 1 or {length}")
        rows = []
        for row in range(length):
            text = {k: w if isinstance(w, str) else w[row if len(w) > 1 else 0] for k, w in words.items()}
            numbers = {k: float(a[row if len(a) > 1 else 0]) for k, a in arrays.items()}
            rows.append(_checked("profile", row + 1, {**text, **numbers}))
        return _table("profile", rows, np.arange(1, length + 1))

    @property
    def settings(self) -> Settings:
        """Settings of each row."""
        return Settings(**{name: getattr(self, name) for name in KNOBS})

    def error(self, row: int, problem: str) -> ProfileError:
        """Return the error for one row, with its file and line."""
        return ProfileError(self.path.word(row), int(self.line[row]), problem)


def read_profile(path: str | Path) -> Profile:
    """Read a CSV of measurements, plain or gzipped; see `COLUMNS`, any order, unneeded ones left out.

    A row needs a model, a GPU kind, and samples_s or watts. An empty field is "not set" or "not
    measured", of nodes "as few as it takes"; a line that starts with # and is not a full row is a
    remark. The first row that no measurement can have raises `ProfileError`.
    """
    name = str(path)
    lines = csv.reader(io.StringIO(_text(name), newline=""), strict=True)
    rows: list[dict[str, Any]] = []
    at: list[int] = []
    header: list[str] = []
    try:
        for fields in lines:
            remark = fields[:1] and fields[0].lstrip().startswith("#") and len(fields) != len(header)
            if remark or not any(field.strip() for field in fields):
                continue
            if not header:
                header = _header(name, lines.line_num, fields)
                continue
            if len(fields) != len(header):
                raise ProfileError(
                    name, lines.line_num, f"has {len(fields)} fields, expected {len(header)} as in the header"
                )
            rows.append(_parsed(name, lines.line_num, dict(zip(header, fields, strict=True))))
            at.append(lines.line_num)
    except csv.Error as problem:
        raise ProfileError(name, lines.line_num, f"is not CSV: {problem}") from None
    if not rows:
        raise ProfileError(name, None, "has no measurements, expected a header and at least one row")
    return _table(name, rows, np.array(at, dtype=np.int64))


def write_profile(profile: Profile, path: str | Path) -> None:
    """Write *profile* as CSV that `read_profile` reads back as it is; columns without values are left out."""
    columns: dict[str, list[str]] = {"model": profile.model.words(), "gpu": profile.gpu.words()}
    for name in (*KNOBS, *MEASURED):
        values = getattr(profile, name)
        if not np.isnan(values).all():
            columns[name] = ["" if math.isnan(v) else repr(v).removesuffix(".0") for v in values.tolist()]
    text = io.StringIO(newline="")
    out = csv.writer(text, lineterminator="\n")
    out.writerow(columns)
    out.writerows(zip(*columns.values(), strict=True))
    Path(path).write_text(text.getvalue(), encoding="utf-8")


def _text(path: str) -> str:
    try:
        data = Path(path).read_bytes()
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise ProfileError(
            path, None, f"is not UTF-8 text: {problem.reason} at byte {problem.start}"
        ) from None
    except (OSError, ValueError, EOFError, zlib.error) as problem:
        why = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
        raise ProfileError(path, None, f"cannot be read: {why}") from None


def _header(path: str, line: int, fields: Sequence[str]) -> list[str]:
    header = [_ALSO.get(word, word) for word in (field.strip().casefold() for field in fields)]
    if len(header) == 1 and any(mark in header[0] for mark in ";\t|"):
        raise ProfileError(path, line, "has one column, expected commas between the columns")
    for column in header:
        if column not in COLUMNS:
            raise ProfileError(
                path, line, f"unknown column {column!r}, expected some of {', '.join(COLUMNS)}",
                did_you_mean(column, COLUMNS),
            )  # fmt: skip
        if header.count(column) > 1:
            raise ProfileError(path, line, f"column {column} appears twice, expected each column once")
    for column in ("model", "gpu"):
        if column not in header:
            raise ProfileError(path, line, f"has no column {column}, expected one")
    if not {"samples_s", "watts"} & set(header):
        raise ProfileError(path, line, "has neither samples_s nor watts, expected at least one of them")
    return header


def _parsed(path: str, line: int, texts: Mapping[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column, text in texts.items():
        text = text.strip()
        if column in ("model", "gpu"):
            row[column] = text
        elif text:
            try:
                row[column] = float(text if "_" not in text else "")
            except ValueError:
                raise ProfileError(path, line, f"{column} is {text!r}, expected a number") from None
            if math.isnan(row[column]):
                raise ProfileError(
                    path, line, f"{column} is {text!r}, expected a number, or nothing if not measured"
                )
    return _checked(path, line, row)


def _checked(path: str, line: int, row: dict[str, Any]) -> dict[str, Any]:
    """*row* completed, if a measurement can have such values."""
    for column in ("model", "gpu"):
        if not row.get(column):
            raise ProfileError(path, line, f"{column} is empty, expected a name")
    for column, value in row.items():
        if column in ("model", "gpu") or math.isnan(value):
            continue
        if math.isinf(value):
            raise ProfileError(path, line, f"{column} is {value}, expected a finite number")
        if value > _LARGEST or (0 < value < 1 / _LARGEST and column not in _MAY_BE_0):
            raise ProfileError(path, line, f"{column} is {value:g}, expected a number that can be measured")
        if column in _WHOLE and (value < 1 or value != int(value)):
            raise ProfileError(path, line, f"{column} is {value:g}, expected a whole number of at least 1")
        if value < 0 or (value == 0 and column not in _MAY_BE_0):
            least = "of at least 0" if column in _MAY_BE_0 else "above 0"
            raise ProfileError(path, line, f"{column} is {value:g}, expected a number {least}")
    for column, missing in {**UNSET, "n": 1.0}.items():
        if math.isnan(row.get(column, math.nan)):
            row[column] = missing
    if math.isnan(row.get("nodes", math.nan)):
        row["nodes"] = float(fewest_nodes(row["gpus"]))
    if math.isnan(row.get("samples_s", math.nan)) and math.isnan(row.get("watts", math.nan)):
        raise ProfileError(path, line, "has neither samples_s nor watts, expected at least one number")
    if row["nodes"] > row["gpus"]:
        raise ProfileError(
            path, line, f"nodes is {row['nodes']:g}, expected at most the number of GPUs, {row['gpus']:g}"
        )
    return row


def _table(path: str, rows: Sequence[Mapping[str, Any]], line: Ints) -> Profile:
    return Profile(
        model=Labels.of(str(row["model"]) for row in rows),
        gpu=Labels.of(str(row["gpu"]).casefold() for row in rows),
        path=Labels.repeat(path, len(rows)),
        line=line.astype(np.int64),
        **{name: np.array([row.get(name, np.nan) for row in rows]) for name in (*KNOBS, *MEASURED)},
    )

"""Build `Jobs` from parsed columns: drop bad rows, join parts, check ids, start the clock at zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from wattline.core.jobs import PREEMPTIBLE_ALWAYS, Jobs
from wattline.core.table import Bools, Floats, Ints, Labels
from wattline.errors import TraceError
from wattline.trace.field_parser import Chunk
from wattline.trace.read_counts import ReadCounts
from wattline.trace.recorded import MISSING, RECORDED_COLUMNS, RecordedSchedule
from wattline.trace.row_reader import Report


@dataclass(frozen=True, eq=False)
class Draft:
    """Parsed columns before they become `Jobs` and their `RecordedSchedule`.

    Work is *duration_s*, or *steps* of *step_s*; None: unknown.
    """

    id: list[str]
    submit_s: Floats
    gpus: Ints
    duration_s: Floats | None = None
    steps: Floats | None = None
    step_s: Floats | None = None
    deadline_s: Floats | None = None
    late_per_h: Floats | None = None
    priority: Floats | None = None
    batch: Ints | None = None
    min_gpus: Ints | None = None
    max_gpus: Ints | None = None
    max_batch: Ints | None = None
    noise: Floats | None = None
    cpus: Floats | None = None
    mem_gib: Floats | None = None
    team: Labels | None = None
    user: Labels | None = None
    model: Labels | None = None
    gpu_kind: Labels | None = None
    key: Labels | None = None
    fuse: Labels | None = None
    always_fuse: Bools | None = None
    status: Labels | None = None
    preemptible: Ints | None = None
    checkpoint_s: Floats | None = None
    min_runtime_s: Floats | None = None
    start_s: Floats | None = None
    end_s: Floats | None = None
    time_limit_s: Floats | None = None
    partition: Labels | None = None
    qos: Labels | None = None
    name: Labels | None = None
    array: Labels | None = None
    nodes: Labels | None = None
    requeues: Ints | None = None
    dependency: Labels | None = None
    reservation: Labels | None = None
    energy_j: Floats | None = None

    def __len__(self) -> int:
        return len(self.id)


def seconds_per_step(chunk: Chunk, steps: Floats, duration_s: Floats, field: str) -> Floats:
    """Return the seconds per step of jobs that did *steps* in *duration_s*, read from the column *field*."""
    chunk.reject(duration_s <= 0, lambda row: f"{field} is {chunk.words(field)[row]!r}, expected above 0")
    return np.maximum(duration_s, 1e-9) / np.maximum(steps, 1.0)


def drop_bad_rows(chunk: Chunk, draft: Draft, report: Report) -> tuple[Draft, Ints, ReadCounts]:
    """Return the rows of *draft* that are jobs, their lines, and counts; report the bad rows in order."""
    keep = ~chunk.ignored
    for row in sorted(chunk.problems):
        if not chunk.ignored[row]:
            keep[row] = False
            report(TraceError(chunk.label, int(chunk.line[row]) or None, chunk.problems[row]))
    dropped = {reason: int(rows.sum()) for reason, rows in chunk.ignored_by.items()}
    repaired = {what: int((rows & keep).sum()) for what, rows in chunk.repaired_by.items()}
    counts = ReadCounts(repaired={what: count for what, count in repaired.items() if count}, dropped=dropped)
    return (draft, chunk.line, counts) if keep.all() else (select_rows(draft, keep), chunk.line[keep], counts)


def drop_duplicate_ids(label: str, draft: Draft, line: Ints, report: Report) -> Draft:
    """Return *draft* without rows that repeat the id of an earlier row; report each of them."""
    if len(set(draft.id)) == len(draft):
        return draft
    seen: dict[str, int] = {}
    keep = np.ones(len(draft), dtype=np.bool_)
    for row, name in enumerate(draft.id):
        if name in seen:
            keep[row] = False
            problem = f"id {name!r} is already used in line {seen[name]}, expected unique ids"
            report(TraceError(label, int(line[row]) or None, problem))
        seen.setdefault(name, int(line[row]))
    return select_rows(draft, keep)


def concatenate_drafts(parts: list[Draft]) -> Draft:
    """Return all rows of *parts* in order; fill a column that only some parts have. Empties *parts*.

    The columns of the parts are freed one by one, so that not all rows exist twice.
    """
    sizes = [len(part) for part in parts]
    pieces: dict[str, list[Any]] = {f.name: [getattr(part, f.name) for part in parts] for f in fields(Draft)}
    parts.clear()
    return Draft(**{f.name: _concatenate_column(f.name, pieces.pop(f.name), sizes) for f in fields(Draft)})


def qualify_ids(draft: Draft, stem: str) -> Draft:
    """Prefix the ids of *draft* with the name of its tar member, which is also the team if unknown."""
    team = Labels.repeat(stem, len(draft)) if draft.team is None else draft.team
    return replace(draft, id=[f"{stem}/{name}" for name in draft.id], team=team)


def shift_to_first_submission(draft: Draft) -> Draft:
    """Return *draft* with its clock at zero at the first submission."""
    first_s = draft.submit_s.min()
    times = {name: getattr(draft, name) for name in ("submit_s", "deadline_s", "start_s", "end_s")}
    return replace(draft, **{name: time - first_s for name, time in times.items() if time is not None})


def build_jobs(draft: Draft) -> Jobs:
    """Return the jobs in order of submission."""
    names = (field.name for field in fields(Draft) if field.name not in RECORDED_COLUMNS)
    return Jobs.of(**{name: getattr(draft, name) for name in names})


def build_recorded(draft: Draft) -> RecordedSchedule | None:
    """Return the recorded schedule, row by row that of `build_jobs`; None if nothing of it is known."""
    columns = {name: getattr(draft, name) for name in RECORDED_COLUMNS}
    if all(column is None for column in columns.values()):
        return None
    order = np.argsort(draft.submit_s, kind="stable")  # as `Jobs.of` sorts
    return RecordedSchedule.of(len(draft), columns).take(order)


def select_rows(draft: Draft, keep: Bools) -> Draft:
    """Return the rows of *draft* where *keep* is true."""

    def select(column: Any) -> Any:
        if isinstance(column, list):
            return [value for value, stays in zip(column, keep.tolist(), strict=True) if stays]
        return None if column is None else column[keep]

    return Draft(**{field.name: select(getattr(draft, field.name)) for field in fields(Draft)})


def compact_labels(draft: Draft, words: dict[str, str]) -> Draft:
    """Return *draft* with smaller columns of words, to be kept until `concatenate_drafts`.

    Each word exists once in *words*, which all parts share; codes have two bytes.
    """
    compact: dict[str, Any] = {}
    for field in fields(Draft):
        column = getattr(draft, field.name)
        if isinstance(column, Labels) and len(column.names) <= np.iinfo(np.int16).max:
            names = tuple(words.setdefault(name, name) for name in column.names)
            compact[field.name] = Labels(column.codes.astype(np.int16), names)
    return replace(draft, **compact)


def _concatenate_column(name: str, columns: Sequence[Any], sizes: Sequence[int]) -> Any:
    known = [column for column in columns if column is not None]
    if not known:
        return None
    if isinstance(known[0], list):
        return [value for column in columns for value in column]
    if isinstance(known[0], Labels):
        filled = [Labels.repeat("", n) if c is None else c for c, n in zip(columns, sizes, strict=True)]
        return _concatenate_labels(filled)
    missing = {"deadline_s": np.inf, "preemptible": PREEMPTIBLE_ALWAYS, **MISSING}.get(name, 0)
    blank = known[0].dtype
    return np.concatenate(
        [np.full(n, missing, blank) if c is None else c for c, n in zip(columns, sizes, strict=True)]
    )


def _concatenate_labels(parts: Sequence[Labels]) -> Labels:
    seen: dict[str, int] = {}
    codes = []
    for part in parts:
        renumbered = [seen.setdefault(name, len(seen)) for name in part.names]
        codes.append(np.array(renumbered, dtype=np.int64)[part.codes])
    return Labels(np.concatenate(codes), tuple(seen))

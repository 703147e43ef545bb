"""Write jobs as Wattline's own CSV, byte for byte the same for the same jobs."""

from __future__ import annotations

import csv
import gzip
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from wattline.core.jobs import PREEMPTIBLE_ALWAYS, Jobs
from wattline.core.table import Floats
from wattline.errors import InputError
from wattline.trace.formats.plain_csv import PREEMPTIBLE_WORDS, RECORDED_WORDS, WORDS
from wattline.trace.recorded import RecordedSchedule


def write_trace(jobs: Jobs, path: str | os.PathLike[str], recorded: RecordedSchedule | None = None) -> None:
    """Write *jobs* as the format `csv`, compressed if *path* ends in .gz; reading gives equal jobs.

    *recorded* is their recorded schedule. Columns with default values only are left out.
    """
    columns = _columns(jobs) | ({} if recorded is None else _recorded_columns(recorded))
    text = _text(columns, csv.QUOTE_MINIMAL)
    if "\r" in text:  # which Python before 3.13 leaves unquoted, so that it would end the row
        text = _text(columns, csv.QUOTE_ALL)
    data = text.encode("utf-8")
    if os.fspath(path).endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    Path(path).write_bytes(data)


def _text(columns: Mapping[str, Iterable[Any]], quoting: Literal[0, 1]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n", quoting=quoting)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def _columns(jobs: Jobs) -> dict[str, Iterable[Any]]:
    columns: dict[str, Iterable[Any]] = {"id": jobs.id.tolist(), "submit_s": _format_exactly(jobs.submit_s)}
    columns["gpus"] = jobs.gpus.tolist()
    if jobs.whole.any():
        if not jobs.whole.all():
            raise InputError(
                "some jobs count steps and others seconds, expected the same for all jobs of a trace"
            )
        columns |= {"steps": _format_exactly(jobs.steps), "step_s": _format_exactly(jobs.step_s)}
    else:
        columns["duration_s"] = _format_exactly(jobs.duration_s)
    if np.isfinite(jobs.deadline_s).any():
        columns["deadline_s"] = _format_exactly(jobs.deadline_s)
    if jobs.late_per_h.any():
        columns["late_per_h"] = _format_exactly(jobs.late_per_h)
    if jobs.priority.any():
        columns["priority"] = _format_exactly(jobs.priority)
    for name in ("batch", "min_gpus", "max_gpus", "max_batch"):
        if getattr(jobs, name).any():
            columns[name] = getattr(jobs, name).tolist()
    for name in ("noise", "cpus", "mem_gib"):
        if getattr(jobs, name).any():
            columns[name] = _format_exactly(getattr(jobs, name))
    if jobs.always_fuse.any():
        columns["always_fuse"] = jobs.always_fuse.astype(int).tolist()
    for name in WORDS:
        words = getattr(jobs, name).words()
        if any(words):
            columns[name] = words
    if (jobs.preemptible != PREEMPTIBLE_ALWAYS).any():
        columns["preemptible"] = [PREEMPTIBLE_WORDS[code] for code in jobs.preemptible.tolist()]
    if jobs.checkpoint_s.any():
        words = zip(jobs.checkpoint_s.tolist(), _format_exactly(jobs.checkpoint_s), strict=True)
        columns["checkpoint_s"] = ["never" if v < 0 else "stop" if v == 0 else word for v, word in words]
    if jobs.min_runtime_s.any():
        columns["min_runtime_s"] = _format_exactly(jobs.min_runtime_s)
    return columns


def _recorded_columns(recorded: RecordedSchedule) -> dict[str, Iterable[Any]]:
    columns: dict[str, Iterable[Any]] = {}
    for name in ("start_s", "end_s"):
        if np.isfinite(times := getattr(recorded, name)).any():
            columns[name] = _format_exactly(np.where(np.isnan(times), np.inf, times))
    if not np.isnan(limit_s := recorded.time_limit_s).all():
        words = _format_exactly(np.where(np.isnan(limit_s), np.inf, limit_s))
        unlimited = np.isposinf(limit_s).tolist()
        columns["time_limit_s"] = ["inf" if u else word for u, word in zip(unlimited, words, strict=True)]
    for name in RECORDED_WORDS:
        words = getattr(recorded, name).words()
        if any(words):
            columns[name] = words
    if recorded.requeues.any():
        columns["requeues"] = recorded.requeues.tolist()
    if np.isfinite(energy_j := recorded.energy_j).any():
        columns["energy_j"] = _format_exactly(np.where(np.isnan(energy_j), np.inf, energy_j))
    return columns


def _format_exactly(values: Floats) -> list[str]:
    """Return the shortest text that reads back as the same number; "" for infinity."""
    return ["" if v == np.inf else repr(int(v)) if v == int(v) else repr(v) for v in values.tolist()]

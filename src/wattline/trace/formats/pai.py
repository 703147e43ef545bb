"""Alibaba's PAI 2020 trace: the task table, or a sample of it with seconds and GPUs.

The table has no submission time, so a task counts as submitted when it started. GPUs are planned in
hundredths per instance; a share of a GPU counts as a whole one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wattline.core.table import Ints
from wattline.trace.builder import Draft
from wattline.trace.field_parser import NEVER_STARTED, NOT_ENDED, SHARED_GPU, WITHOUT_GPUS, Chunk
from wattline.trace.file_source import ArchiveMember
from wattline.trace.format import Format, Head
from wattline.trace.row_reader import Report, delimited

_TABLE = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
_SAMPLE = {"task", "start_s", "gpus", "duration_s"}
_STATES = {"Terminated", "Failed", "Running", "Waiting", "Interrupted"}


def _recognises(head: Head) -> bool:
    fields = head.fields(",")
    bare = len(fields) == len(_TABLE) and fields[3] in _STATES
    return bare or _has_header(fields) or set(fields) >= _SAMPLE


def _has_header(fields: tuple[str, ...]) -> bool:
    return {"job_name", "task_name", "inst_num", "plan_gpu", "start_time", "end_time"} <= set(fields)


def _chunks(member: ArchiveMember, report: Report) -> Iterator[Chunk]:
    fields = Head.of(member.data).fields(",")
    headed = _has_header(fields) or "start_s" in fields
    return delimited(member, report, names=None if headed else _TABLE)


def _draft(chunk: Chunk) -> Draft:
    return _of_sample(chunk) if chunk.has("start_s") else _of_table(chunk)


def _of_sample(chunk: Chunk) -> Draft:
    start_s, duration_s = chunk.seconds("start_s"), chunk.seconds("duration_s")
    return Draft(
        id=chunk.ids("task"),
        submit_s=start_s,
        gpus=chunk.gpus("gpus"),
        duration_s=duration_s,
        start_s=start_s,
        end_s=start_s + duration_s,
    )


def _of_table(chunk: Chunk) -> Draft:
    missing = {"": np.nan}
    start_s = chunk.numbers("start_time", "a number of seconds", 0.0, missing=missing)
    end_s = chunk.numbers("end_time", "a number of seconds", 0.0, missing=missing)
    chunk.ignore(np.isnan(start_s), NEVER_STARTED)
    chunk.ignore(np.isnan(end_s), NOT_ENDED)
    chunk.not_before("end_time", end_s, "start_time", start_s)
    names = zip(chunk.ids("job_name"), chunk.ids("task_name"), strict=True)
    return Draft(
        id=[f"{job}/{task}" for job, task in names],
        submit_s=start_s,
        gpus=_gpus(chunk),
        duration_s=end_s - start_s,
        user=chunk.labels("user"),
        gpu_kind=chunk.kinds("gpu_type", missing=("", "MISC")),  # MISC: too rare to name
        key=chunk.labels("group"),
        status=chunk.labels("status"),
        start_s=start_s,
        end_s=end_s,
    )


def _gpus(chunk: Chunk) -> Ints:
    instances = chunk.whole("inst_num", "a whole number of instances, at least 1", 1, {"": 1.0})
    percent = chunk.numbers("plan_gpu", "hundredths of a GPU, at least 0", 0.0, 1e8, {"": 0.0})
    chunk.ignore(percent == 0, WITHOUT_GPUS)
    chunk.repair(percent % 100 != 0, SHARED_GPU)
    return instances * np.maximum(1, np.ceil(percent / 100.0)).astype(np.int64)


PAI = Format(
    name="pai",
    says="Alibaba PAI 2020: pai_task_table with or without header, or task, start_s, gpus, duration_s",
    recognises=_recognises,
    chunks=_chunks,
    draft=_draft,
)

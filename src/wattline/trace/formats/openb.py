"""Alibaba's openb 2023 trace: pods with GPUs, GPU kinds and seconds.

A share of a GPU (gpu_milli below 1000) counts as a whole one. A pod runs from when it was scheduled
to when it was deleted; pods without GPUs or that were never scheduled are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wattline.errors import TraceError
from wattline.trace.builder import Draft
from wattline.trace.field_parser import NEVER_STARTED, NOT_ENDED, SHARED_GPU, Chunk
from wattline.trace.file_source import ArchiveMember
from wattline.trace.format import Format, Head, header_has
from wattline.trace.row_reader import Report, delimited

_TIMES = ("creation_time", "scheduled_time", "deletion_time")


def _chunks(member: ArchiveMember, report: Report) -> Iterator[Chunk]:
    header = Head.of(member.data).fields(",")
    absent = [name for name in _TIMES if name not in header]
    if absent:
        hint = "take one of the pod lists with 11 columns, such as openb_pod_list_default"
        raise TraceError(member.label, 1, f"this list of pods has no times ({', '.join(absent)})", hint)
    return delimited(member, report)


def _draft(chunk: Chunk) -> Draft:
    created_s, started_s, deleted_s = (
        chunk.numbers(name, "a number of seconds, at least 0", 0.0, missing={"": np.nan}) for name in _TIMES
    )
    chunk.ignore(np.isnan(created_s) | np.isnan(started_s), NEVER_STARTED)
    chunk.ignore(np.isnan(deleted_s), NOT_ENDED)
    chunk.not_before("scheduled_time", started_s, "creation_time", created_s)
    chunk.not_before("deletion_time", deleted_s, "scheduled_time", started_s)
    milli = chunk.numbers("gpu_milli", "thousandths of a GPU, at least 0", 0.0, missing={"": 0.0})
    chunk.repair((milli > 0) & (milli < 1000), SHARED_GPU)
    return Draft(
        id=chunk.ids("name"),
        submit_s=created_s,
        gpus=chunk.gpus_or_none("num_gpu"),
        duration_s=deleted_s - started_s,
        gpu_kind=chunk.kinds("gpu_spec"),
        status=chunk.labels("pod_phase"),
        start_s=started_s,
        end_s=deleted_s,
        qos=chunk.labels("qos"),
    )


OPENB = Format(
    name="openb",
    says="Alibaba openb 2023 pods: name, …, num_gpu, gpu_milli, gpu_spec, …, creation_time, …",
    recognises=header_has("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"),
    chunks=_chunks,
    draft=_draft,
)

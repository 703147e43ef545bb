"""Synergy workloads: job, model, arrival, iterations and GPUs, without a header."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wattline.core.table import Labels
from wattline.trace.builder import Draft
from wattline.trace.field_parser import Chunk
from wattline.trace.file_source import ArchiveMember
from wattline.trace.format import Format, Head
from wattline.trace.row_reader import Report, delimited

STEP_S = {
    "alexnet": 0.60,
    "shufflenet": 0.615,
    "res18": 0.64,
    "mobilenet": 0.71,
    "res50": 0.78,
    "m5": 0.60,
    "deepspeech": 0.757,
    "gnmt": 0.12,
    "transformer": 0.67,
    "lstm": 0.011,
}
"""Seconds per iteration on V100s with a proportional share of the host, 3 cores and 62.5 GB per GPU.

Measured by the authors of Synergy (OSDI'22, MIT); their workloads name the model and count iterations.
"""

_FULL = {"res18": "synergy/resnet18", "res50": "synergy/resnet50"}  # others measured them too
_SHARE_CPUS, _SHARE_GIB = 3.0, 62.5  # taken as GiB
_NAMES = ("job_id", "model", "arrival_s", "iterations", "gpus")


def _recognises(head: Head) -> bool:
    rows = [line.split(",") for line in head.lines]
    return 2 * sum(len(row) == len(_NAMES) and _fits(row) for row in rows) > len(rows)


def _fits(row: list[str]) -> bool:
    number = [field.strip().replace(".", "", 1).isdigit() for field in row]
    return number == [True, False, True, True, True] and row[1].strip() != ""


def _chunks(member: ArchiveMember, report: Report) -> Iterator[Chunk]:
    return delimited(member, report, names=_NAMES)


def _draft(chunk: Chunk) -> Draft:
    name = Labels.of(word.strip() for word in chunk.words("model"))
    by_name = np.array([STEP_S.get(word, np.nan) for word in name.names])
    step_s = by_name[name.codes]
    known = ", ".join(sorted(STEP_S))
    chunk.reject(np.isnan(step_s), lambda row: f"model is {name.word(row)!r}, expected one of {known}")
    return Draft(
        id=chunk.ids("job_id"),
        submit_s=chunk.seconds("arrival_s"),
        gpus=chunk.gpus("gpus"),
        steps=chunk.whole("iterations", "a whole number of iterations, at least 0", low=0).astype(np.float64),
        step_s=np.nan_to_num(step_s, nan=1.0),
        model=Labels(name.codes, tuple(_FULL.get(word, word) for word in name.names)),
        cpus=np.asarray(_SHARE_CPUS * chunk.gpus("gpus"), np.float64),
        mem_gib=np.asarray(_SHARE_GIB * chunk.gpus("gpus"), np.float64),
    )


SYNERGY = Format(
    name="synergy",
    says="Synergy: job_id, model, arrival_s, iterations, gpus, without a header",
    recognises=_recognises,
    chunks=_chunks,
    draft=_draft,
)

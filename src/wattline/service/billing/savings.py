"""Savings by power caps, fusion and batch-size tuning, each against a named baseline, with its uncertainty.

A saving is estimated only where a baseline was measured: by the models of the workload for caps, by members
of the same sweep that ran alone for fusion, and by earlier runs with the default batch size for tuning. The
joules of all other jobs are listed as not estimated, with the reason. The three overlap, so they have no sum.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wattline.core.protocols import Models
from wattline.errors import ModelError
from wattline.measurement.settings import Settings
from wattline.models.workload import Workload
from wattline.service.billing.attempts import AttemptUse
from wattline.service.storage.projection import JobRow

_ENOUGH = 2  # runs of a baseline, so that their spread is known


@dataclass
class Saving:
    """Joules saved by one mechanism; negative: it cost more than its baseline."""

    name: str  # caps, fusion or tuning
    baseline: str
    saved_j: float | None = None  # None: nothing could be estimated
    error_j: float | None = None  # standard error; None: unknown
    extra_s: float | None = None  # seconds that jobs ran longer for it; None: unknown
    jobs: int = 0
    energy_j: float = 0.0  # of the attempts that were estimated
    not_estimated_j: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)  # attempts that were not estimated, by reason

    def add(self, saved_j: float, error_j: float | None, energy_j: float) -> None:
        """Add an estimate; errors of one baseline are taken to be dependent, so they are added."""
        first = self.saved_j is None
        self.saved_j = (self.saved_j or 0.0) + saved_j
        known = error_j is not None and (first or self.error_j is not None)
        self.error_j = (self.error_j or 0.0) + error_j if known and error_j is not None else None
        self.energy_j += energy_j

    def skip(self, reason: str, energy_j: float) -> None:
        """Count an attempt that is not estimated."""
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        self.not_estimated_j += energy_j


def estimate_cap_savings(
    attempts: Sequence[AttemptUse], jobs: Mapping[str, JobRow], models: Models
) -> Saving:
    """Estimate what power caps saved, by the measured models of the workloads.

    The joules of an attempt under a cap are multiplied by the predicted ratio of energy per sample without
    and with the cap. The error is that of both predictions, held out, taken to be independent.
    """
    saving = Saving("caps", "the same samples without a power cap, by the measured model of the workload")
    seen: set[str] = set()
    for attempt in attempts:
        if attempt.energy_j is None:
            continue
        if not any(period.cap_w for period in attempt.caps):
            if attempt.found_cap_w:
                saving.skip("the cap was found by the job's session while it ran", attempt.energy_j)
            continue
        workload, reason = _find_workload(models, jobs[attempt.job], attempt.kind)
        if workload is None:
            saving.skip(reason, attempt.energy_j)
            continue
        try:
            ratios = _predict_ratios(workload, jobs[attempt.job], attempt)
        except ModelError:
            saving.skip("the cap is outside of what was measured", attempt.energy_j)
            continue
        error = math.hypot(workload.source.samples_error, workload.source.watts_error)
        for share, energy_ratio, time_ratio, lasts_s in ratios:
            used_j = share * attempt.energy_j
            wrong_j = used_j * energy_ratio * math.sqrt(2) * error
            saving.add(used_j * (energy_ratio - 1), wrong_j if math.isfinite(error) else None, used_j)
            saving.extra_s = (saving.extra_s or 0.0) + lasts_s * (1 - time_ratio)
        seen.add(attempt.job)
    saving.jobs = len(seen)
    return saving


def _find_workload(models: Models, job: JobRow, kind: str) -> tuple[Workload | None, str]:
    """Return the measured workload of a job, or None and the reason."""
    model = str(job.submission["columns"]["model"])
    find: Any = getattr(models, "find", None)
    if not model:
        return None, "the job names no model"
    try:
        workload: Workload | None = None if find is None else find(model.partition("(")[0].strip(), kind)
    except ModelError:
        workload = None
    if workload is None:
        return None, f"its model was not measured on {kind or 'these GPUs'}"
    if not workload.metered:
        return None, f"watts of its model were not measured on {kind}"
    return workload, ""


def _predict_ratios(
    workload: Workload, job: JobRow, attempt: AttemptUse
) -> list[tuple[float, float, float, float]]:
    """Return for each cap: its share of the joules, the ratios of energy and time without it, its seconds."""
    batch = attempt.batch or job.submission["columns"].get("batch") or None
    fuse = 1 + len(attempt.fused_with)
    caps_w = [period.cap_w or math.nan for period in attempt.caps]
    capped = workload.predict(Settings.of(gpus=attempt.gpus, batch=batch, cap_w=np.array(caps_w), fuse=fuse))
    free = workload.predict(Settings.of(gpus=attempt.gpus, batch=batch, fuse=fuse))
    lasts_s = np.array([period.end_s - period.start_s for period in attempt.caps])
    weight = lasts_s * capped.watts
    share = weight / weight.sum() if weight.sum() > 0 else np.full(len(weight), 1 / len(weight))
    scale = (attempt.end_s - attempt.start_s) / lasts_s.sum() if lasts_s.sum() > 0 else 1.0
    energy_ratio = (free.watts / free.samples_s) / (capped.watts / capped.samples_s)
    time_ratio = capped.samples_s / free.samples_s
    rows = zip(share, energy_ratio, time_ratio, lasts_s * scale, strict=True)
    return [(float(a), float(b), float(c), float(d)) for a, b, c, d in rows]


def estimate_fusion_savings(
    attempts: Sequence[AttemptUse], jobs: Mapping[str, JobRow], alone_j: Mapping[str, Sequence[float]]
) -> Saving:
    """Estimate what training jobs as one array saved.

    *alone_j* are the joules of the members of each sweep that succeeded alone. Failed members count as a
    loss, as their joules bought nothing.
    """
    saving = Saving("fusion", "mean of the members of the same sweep that succeeded alone")
    used_j: dict[str, float] = defaultdict(float)
    outcome: dict[str, str] = {}
    for attempt in attempts:
        if attempt.fused_with and attempt.energy_j is not None:
            used_j[attempt.job] += attempt.energy_j
            outcome[attempt.job] = attempt.outcome
    for job, energy_j in used_j.items():
        baseline = alone_j.get(jobs[job].sweep, ())
        if outcome[job] == "RUNNING":
            saving.skip("it has not ended", energy_j)
        elif len(baseline) < _ENOUGH:
            saving.skip("fewer than two members of its sweep succeeded alone", energy_j)
        else:
            mean_j = statistics.fmean(baseline) if outcome[job] == "SUCCEEDED" else 0.0
            error_j = statistics.stdev(baseline) / math.sqrt(len(baseline)) if mean_j else 0.0
            saving.add(mean_j - energy_j, error_j, energy_j)
            saving.jobs += 1
    return saving


def estimate_tuning_savings(
    attempts: Sequence[AttemptUse],
    jobs: Mapping[str, JobRow],
    runs_j: Mapping[tuple[str, str, int], Sequence[float]],
) -> Saving:
    """Estimate what other batch sizes than the default saved in recurring jobs.

    *runs_j* are the joules of the runs that succeeded, by group, kind of GPU and batch size. Trials that
    failed, or cost more, are part of the result.
    """
    saving = Saving("tuning", "mean of the runs of the same group that succeeded with its default batch size")
    used_j: dict[str, float] = defaultdict(float)
    last: dict[str, AttemptUse] = {}
    for attempt in attempts:
        spec = jobs[attempt.job].submission["spec"]
        if spec.get("group") and spec.get("batch_sizes") and attempt.energy_j is not None:
            used_j[attempt.job] += attempt.energy_j
            last[attempt.job] = attempt
    for job, energy_j in used_j.items():
        attempt, spec = last[job], jobs[job].submission["spec"]
        default = find_default_batch(spec)
        if attempt.outcome == "RUNNING":
            saving.skip("it has not ended", energy_j)
            continue
        if attempt.batch is None or attempt.batch == default:
            continue
        baseline = runs_j.get((spec["group"], attempt.kind, default), ())
        if len(baseline) < _ENOUGH:
            saving.skip("fewer than two runs with the default batch size succeeded", energy_j)
            continue
        mean_j = statistics.fmean(baseline) if attempt.outcome == "SUCCEEDED" else 0.0
        error_j = statistics.stdev(baseline) / math.sqrt(len(baseline)) if mean_j else 0.0
        saving.add(mean_j - energy_j, error_j, energy_j)
        saving.jobs += 1
    return saving


def find_default_batch(spec: Mapping[str, Any]) -> int:
    """Return the batch size of a recurring job that is not tuned: its own, else the first to try."""
    sizes = list(spec["batch_sizes"])
    return int(spec["batch"] if spec.get("batch") in sizes else sizes[0])

"""Status of an unfinished job for other threads: its energy, and the progress of the attempt that runs."""

from __future__ import annotations

from typing import Any

from wattline.backend.engine.attempt_record import AttemptRecord


def describe_attempt(attempt: AttemptRecord | None, job: str, now_s: float) -> dict[str, Any]:
    """Return progress and allocation of a job in an attempt; empty: it has not started."""
    progress = None if attempt is None else attempt.progress.get(job)
    if attempt is None or progress is None:
        return {}
    watch = attempt.checkpoints.get(job)
    protection = None if watch is None else watch.reported
    return {
        "fraction": progress.fraction,
        "saved_fraction": None if protection is None else protection.fraction,
        "protection": "" if protection is None else protection.describe(now_s),
        "metrics": dict(progress.metrics),
        "power_w": None if attempt.power_w is None else attempt.power_w / max(len(attempt.jobs), 1),
        "gpus": list(attempt.gpus),
        "cap_w": attempt.effective_cap_w or progress.cap_w,
        "batch": attempt.settings.batch or progress.batch,
        "fused_with": [other for other in attempt.jobs if other != job],
    }

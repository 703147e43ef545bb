"""The WATTLINE_* variables of a job, equal for all its ranks and all engines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from wattline.backend.engine.folder_layout import EVENTS, checkpoint_folder
from wattline.backend.engine.job_spec import AttemptSettings, JobSpec


def build_job_environment(
    root: Path,
    folder: Path,
    spec: JobSpec,
    settings: AttemptSettings,
    *,
    gpus: int,
    restarts: int,
    meter: str,
    members: int = 1,
    basis: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Return *basis* without its WATTLINE_* variables, the job's own variables, and those of this attempt.

    *meter* is how the session opens the meter; empty: as any program does. Engines add CUDA_VISIBLE_DEVICES
    and the variables of each rank.
    """
    inherited = {k: v for k, v in basis.items() if not k.startswith("WATTLINE_") or k == "WATTLINE_STATE"}
    power_w = min((w for w in (settings.cap_w, spec.power_w) if w), default=None)
    batch = settings.batch or spec.batch
    variables = {
        "JOB_ID": spec.id,
        "GPUS": str(gpus),
        "BATCH_SIZE": str(batch) if batch else "",
        "POWER_LIMIT_W": "" if power_w is None else f"{power_w:g}",
        "FUSED_INDEX": "0",
        "FUSED_COUNT": str(members),
        "RESTART_COUNT": str(restarts),
        "CHECKPOINT_DIR": str(checkpoint_folder(root, spec)),
        "DEADLINE": "" if spec.deadline_s is None else f"{spec.deadline_s:.0f}",
        "EVENTS": str(folder / EVENTS),
        "SIGNAL": spec.signal,
        "GRACE_S": f"{spec.grace_s:g}" if spec.grace_s > 0 else "",
        "GROUP": spec.group,
        "TARGET": spec.target,
        "AIM": spec.aim,
        "METER": meter,
        "ATTEMPT": str(folder),
    }
    return {
        **inherited,
        **spec.env,
        **{f"WATTLINE_{name}": value for name, value in variables.items() if value},
        "PYTHONUNBUFFERED": spec.env.get("PYTHONUNBUFFERED", "1"),
    }

"""Request of a job for one GPU and one minute."""

from __future__ import annotations

import math
from typing import Any

JOB_REQUEST: dict[str, Any] = {
    "gpus": 1,
    "duration_s": 60.0,
    "deadline_s": math.inf,
    "late_per_h": 0.0,
    "priority": 0.0,
    "batch": 0,
    "min_gpus": 0,
    "max_gpus": 0,
    "cpus": 0.0,
    "mem_gib": 0.0,
    "team": "",
    "user": "",
    "model": "",
    "gpu_kind": "",
    "key": "",
}

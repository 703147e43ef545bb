"""The backend of a service: this machine, or a Slurm partition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wattline.backend.engine.backend import EngineBackend
from wattline.backend.engine.local.backend import Local
from wattline.backend.engine.slurm.backend import Slurm
from wattline.backend.engine.slurm.submission import SlurmOptions


def open_backend(folder: Path, gpus: str, slurm: SlurmOptions | None, **options: Any) -> EngineBackend:
    """Open the GPUs of this machine, as *gpus* describes them, or those of Slurm.

    *options* are those of `EngineBackend`.
    """
    if slurm is not None:
        return Slurm(folder, slurm, stay_open=True, **options)
    return Local(folder, gpus, stay_open=True, **options)

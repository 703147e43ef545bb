"""`wattline.Local`: the backend for the GPUs of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from wattline.backend.engine.backend import EngineBackend
from wattline.backend.engine.job_exits import OnEvent
from wattline.backend.engine.local.cgroups import ResourceLimits
from wattline.backend.engine.local.engine import LocalEngine
from wattline.backend.engine.power_samples import OnPower


class Local(EngineBackend):
    """Runs jobs as processes on the GPUs of this machine. *root* is the folder of all its files.

    *gpus* is "auto" for those that NVML finds, or simulated GPUs such as "simulated:4xa100".
    """

    engine: LocalEngine

    def __init__(
        self,
        root: str | Path,
        gpus: str = "auto",
        *,
        clock: Callable[[], float] = time.time,
        on_event: OnEvent = lambda kind, job, data: None,
        on_power: OnPower | None = None,
        event_batch: Callable[[], AbstractContextManager[None]] = nullcontext,
        stay_open: bool = False,
        limits: ResourceLimits | None = None,
    ) -> None:
        root = Path(root).resolve()
        root.mkdir(parents=True, exist_ok=True)
        engine = LocalEngine(root, gpus, limits)
        super().__init__(
            root,
            engine,
            clock=clock,
            on_event=on_event,
            on_power=on_power,
            event_batch=event_batch,
            stay_open=stay_open,
        )

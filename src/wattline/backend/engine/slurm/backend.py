"""`wattline.Slurm`: the backend for the nodes of a Slurm partition."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from wattline.backend.engine.backend import EngineBackend
from wattline.backend.engine.job_exits import OnEvent
from wattline.backend.engine.power_samples import OnPower
from wattline.backend.engine.slurm.engine import SlurmEngine
from wattline.backend.engine.slurm.submission import SlurmOptions


class Slurm(EngineBackend):
    """Lets Slurm run jobs in a partition. *root* is a folder on a file system that all nodes share."""

    engine: SlurmEngine

    def __init__(
        self,
        root: str | Path,
        options: SlurmOptions,
        *,
        clock: Callable[[], float] = time.time,
        on_event: OnEvent = lambda kind, job, data: None,
        on_power: OnPower | None = None,
        event_batch: Callable[[], AbstractContextManager[None]] = nullcontext,
        stay_open: bool = False,
    ) -> None:
        root = Path(root).resolve()
        root.mkdir(parents=True, exist_ok=True)
        engine = SlurmEngine(root, options)
        super().__init__(
            root,
            engine,
            clock=clock,
            on_event=on_event,
            on_power=on_power,
            event_batch=event_batch,
            stay_open=stay_open,
        )

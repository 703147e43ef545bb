"""Hydra launcher: `python train.py -m hydra/launcher=wattline lr=1e-4,1e-3` runs a sweep as Wattline jobs.

Hydra finds plugins in the namespace package `hydra_plugins`; `integrations.hydra_sweep` does the work.
Hydra runs this file before it is in `sys.modules`, where dataclasses would look up annotations given as text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class WattlineLauncherConf:
    """Settings below `hydra.launcher`; those without a note are fields of a job file."""

    _target_: str = "hydra_plugins.wattline_launcher.WattlineLauncher"
    url: str | None = None  # address of the service
    dir: str | None = None  # or its folder
    script: str | None = None  # a script that calls wattline.fusion.main: members of the sweep may be fused
    metric: str | None = None  # with `script`: the metric that a sweeper gets as the result
    fuse: Any = "auto"  # with `script`
    gpus: Any = 1
    gpu_type: Any = None
    time: Any = None
    team: str | None = None
    priority: float | None = None
    model: str | None = None
    max_parallel: int | None = None
    energy: dict[str, Any] = field(default_factory=dict)
    env: dict[str, Any] = field(default_factory=dict)


ConfigStore.instance().store(
    group="hydra/launcher", name="wattline", node=WattlineLauncherConf, provider="wattline"
)


class WattlineLauncher(Launcher):
    """Submits all jobs of a sweep by one request, and waits for their results."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.config: DictConfig | None = None
        self.task_function: TaskFunction | None = None
        self.hydra_context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Store what Hydra passes before the first launch."""
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run a job for each list of overrides, and return their results in the same order."""
        from wattline.integrations.hydra_sweep import launch_sweep

        return launch_sweep(self, job_overrides, initial_job_idx)

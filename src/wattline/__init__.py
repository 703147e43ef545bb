"""Wattline: energy-aware scheduling of deep-learning training jobs on GPU clusters.

Public names are imported on first use, so that `import wattline` and `wattline --help` are fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "Buddy": "wattline.placement.buddy.placer",
    "Budget": "wattline.energy.budgets",
    "Executor": "wattline.integrations.executor",
    "Faults": "wattline.backend.sim.faults",
    "Jobs": "wattline.core.jobs",
    "Local": "wattline.backend.engine.local.backend",
    "Log": "wattline.loop.runlog",
    "Nodes": "wattline.core.nodes",
    "Overheads": "wattline.backend.sim.faults",
    "Pack": "wattline.placement.pack",
    "Power": "wattline.placement.power",
    "PowerTimeline": "wattline.meter.timeline",
    "Price": "wattline.energy.prices",
    "Profile": "wattline.measurement.points",
    "Replay": "wattline.backend.replay",
    "Report": "wattline.reports",
    "Session": "wattline.train.session",
    "Settings": "wattline.measurement.settings",
    "Sim": "wattline.backend.sim.simulator",
    "TraceModels": "wattline.models.trace_model",
    "WattlineError": "wattline.errors",
    "WorkloadModels": "wattline.models.workload_models",
    "begin_window": "wattline.meter.window",
    "compare": "wattline.reports",
    "end_window": "wattline.meter.window",
    "fit": "wattline.models.fit",
    "fuse": "wattline.fusion",
    "join_nodes": "wattline.cluster",
    "library": "wattline.models.library",
    "nodes": "wattline.cluster",
    "parse_budget": "wattline.energy.budgets",
    "parse_cluster": "wattline.cluster",
    "parse_placer": "wattline.placement.parser",
    "parse_policy": "wattline.policy.parser",
    "read_cluster": "wattline.cluster",
    "read_log": "wattline.loop.log_reader",
    "read_prices": "wattline.energy.time_series",
    "read_profile": "wattline.measurement.points",
    "read_series": "wattline.energy.time_series",
    "read_trace": "wattline.trace",
    "report": "wattline.reports",
    "run": "wattline.loop.run",
    "scaled_lr": "wattline.batch_size.bandit",
    "steps": "wattline.profiler.step_counter",
    "synth": "wattline.trace",
    "timeline": "wattline.meter.timeline",
    "window": "wattline.meter.window",
    "write_html": "wattline.reports",
    "write_log": "wattline.loop.log_writer",
    "write_profile": "wattline.measurement.points",
    "write_trace": "wattline.trace",
}

_PACKAGES = frozenset(("fusion", "policy", "testing"))

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name in _PACKAGES:
        return import_module(f"wattline.{name}")
    raise AttributeError(f"module 'wattline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

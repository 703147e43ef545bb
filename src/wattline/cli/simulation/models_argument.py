"""Models of jobs from `--models`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wattline.core.jobs import Jobs
from wattline.errors import ConfigError
from wattline.models.library import library, load_models
from wattline.models.model_assignment import assign_models
from wattline.models.scaling import REQUEST, Scaling
from wattline.models.throughput_table import ThroughputTable, read_throughput_table
from wattline.models.trace_model import TraceModels
from wattline.models.workload_models import WorkloadModels
from wattline.papers.synergy_speedups import SynergyModels
from wattline.trace.reader import find_timed_on

AnyModels = TraceModels | WorkloadModels | SynergyModels | ThroughputTable
"""Models that `--models` can name."""

_TABLE = "gavel:"


def read_models(
    text: str | None, span_penalty: float, scaling: Scaling = REQUEST, trace_format: str = ""
) -> AnyModels:
    """Return the models that *text* names: `library`, `synergy`, `gavel:FILE`, or a file of `fit --out`.

    None: only the durations of the trace, which also serve jobs of unknown models. *scaling* is assumed of
    these. *trace_format* tells on which GPU kind the durations of the trace hold, so that other kinds are
    faster or slower.
    """
    from_trace = TraceModels(span_penalty=span_penalty, scaling=scaling)
    if text is None:
        return from_trace
    if text == "synergy":
        return SynergyModels(from_trace)
    if text.startswith(_TABLE):
        return read_throughput_table(text.removeprefix(_TABLE), from_trace)
    models = library() if text == "library" else load_models(text)
    return replace(models, fallback=from_trace, timed_on=find_timed_on(trace_format))


def assign_drawn_models(jobs: Jobs, models: AnyModels, kinds: Sequence[str], seed: int) -> Jobs:
    """Return *jobs* in which each job of unknown model has one drawn at random."""
    if not isinstance(models, WorkloadModels):
        raise ConfigError("--draw-models needs models to draw from", hint="--models library")
    return assign_models(jobs, models, kinds, seed)

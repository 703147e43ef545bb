"""Assumptions of the command line: `--assume scaling=linear`, `--assume watts=limit`, `--durations`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wattline.core.jobs import Jobs
from wattline.errors import ConfigError, did_you_mean
from wattline.models.durations.estimates import DurationEstimates, EstimateBuilder, EstimateSource
from wattline.models.durations.history import FIRST_ESTIMATE_S, History
from wattline.models.durations.limits import LoggedEstimates, TimeLimits
from wattline.models.scaling import REQUEST, Scaling, parse_scaling
from wattline.reports.assumptions import CLAIRVOYANT
from wattline.trace import Trace

WATTS = ("kind", "limit")


@dataclass(frozen=True)
class Assumed:
    """Assumptions named by `--assume`, and the defaults of the others."""

    scaling: Scaling = REQUEST
    watts: str = "kind"


def parse_assumed(texts: Sequence[str]) -> Assumed:
    """Parse `scaling=request|linear|amdahl:P` and `watts=kind|limit`."""
    assumed = Assumed()
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in ("scaling", "watts"):
            raise ConfigError(
                f"--assume {text}: expected scaling=request|linear|amdahl:P or watts=kind|limit",
                hint=did_you_mean(name, ("scaling", "watts")) or "--assume scaling=linear",
            )
        if name == "scaling":
            assumed = replace(assumed, scaling=parse_scaling(value))
        elif value in WATTS:
            assumed = replace(assumed, watts=value)
        else:
            raise ConfigError(f"--assume {text}: expected watts={' or watts='.join(WATTS)}")
    return assumed


def build_estimates(durations: str, trace: Trace) -> EstimateBuilder | None:
    """Return the builder of the estimates that `--durations` names; None: policies know the truth."""
    if durations == CLAIRVOYANT:
        return None
    recorded = trace.recorded
    limit_s = np.full(len(trace.jobs), np.nan) if recorded is None else recorded.time_limit_s
    if durations == "limit" and not has_limits(trace):
        raise ConfigError(
            f"--durations limit: {trace.name} records no time limits",
            hint="--durations history estimates durations from the jobs that ended before",
        )
    name = None if recorded is None else recorded.name

    def build(jobs: Jobs) -> DurationEstimates:
        history = History(jobs, name)
        sources: dict[str, EstimateSource] = {
            "history": history,
            "limit": TimeLimits(limit_s, history),
            "unknown": LoggedEstimates("unknown", [FIRST_ESTIMATE_S] * len(jobs)),
        }
        return DurationEstimates(jobs, sources[durations])

    return build


def has_limits(trace: Trace) -> bool:
    """Return whether *trace* records the time limit of at least one job."""
    return trace.recorded is not None and bool(np.isfinite(trace.recorded.time_limit_s).any())


def read_logged_estimates(header: Mapping[str, Any]) -> EstimateBuilder | None:
    """Return the builder of the estimates in the *header* of a log; None: its policy knew the durations."""
    logged = header.get("durations")
    if logged is None:
        return None
    return lambda jobs: DurationEstimates(jobs, LoggedEstimates(logged["name"], logged["estimate_s"]))

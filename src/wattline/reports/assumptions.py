"""Assumptions of a simulation: what its result depends on and its inputs do not say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.protocols import Models
from wattline.measurement.devices import DEVICES
from wattline.models.scaling import Scaling
from wattline.models.throughput_table import ThroughputTable
from wattline.models.workload_models import WorkloadModels, find_workload_indices
from wattline.units import format_seconds

CLAIRVOYANT = "clairvoyant"
DURATIONS = (CLAIRVOYANT, "limit", "history")
"""Values of `--durations`."""

_DURATIONS = {
    CLAIRVOYANT: "policies know how long each job will run",
    "limit": "policies take a job to run for its time limit",
    "history": "policies estimate a job from the last jobs of its user that ended before",
    "unknown": "policies take every job to run for an hour",
}


@dataclass(frozen=True)
class Assumption:
    """One assumption: its name and value as they can be typed, and what they mean.

    *pessimistic* is the value against which it is checked; "": it is the pessimistic one. *effect* is the
    change that this other value makes, see `wattline.whatif.sensitivity`; None: not computed.
    """

    name: str
    value: str
    says: str
    pessimistic: str = ""
    effect: Mapping[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the assumption for JSON and for the header of a log."""
        return {"name": self.name, "value": self.value, "says": self.says, "effect": self.effect}


def list_assumptions(
    jobs: Jobs,
    nodes: Nodes,
    models: Models,
    *,
    scaling: Scaling,
    watts: str,
    restart_s: float,
    checkpoint_s: float | None,
    span_penalty: float,
    durations: str,
) -> tuple[Assumption, ...]:
    """Return every assumption in force, in the order in which pages list them.

    *watts* is `kind` or `limit`, *checkpoint_s* None if jobs save at every stop and -1 if they never save.
    """
    unknown = len(jobs) - count_known_jobs(jobs, nodes, models)
    has_table = isinstance(models, ThroughputTable)  # of speeds; it has no watts
    found = [_assume_scaling(scaling, unknown)] if unknown and not has_table else []
    found += [_assume_kinds(nodes, models, unknown, len(jobs))] if len(nodes.kind.names) > 1 else []
    found += [_assume_watts(watts, nodes, unknown)] if unknown else []
    restart = f"{restart_s:g}s"
    says = f"a job loses {format_seconds(restart_s)} at each restart"
    found.append(Assumption("restart", restart, says, "300s" if restart_s < 300 else ""))
    found.append(_assume_checkpoints(checkpoint_s))
    if (nodes.gpus > 0).sum() > 1 and (jobs.gpus > nodes.gpus.max(initial=0)).any():
        slower = "as fast as on one node" if span_penalty == 1 else f"{span_penalty:g} times slower"
        says = f"a job that spans nodes runs {slower}"
        found.append(Assumption("span", f"{span_penalty:g}", says, "1.2" if span_penalty < 1.2 else ""))
    other = {CLAIRVOYANT: "history", "limit": "unknown", "history": "unknown"}.get(durations, "")
    found.append(Assumption("durations", durations, _DURATIONS[durations], other))
    return tuple(found)


def count_known_jobs(jobs: Jobs, nodes: Nodes, models: Models) -> int:
    """Return how many jobs have a measured model on at least one kind of GPU of *nodes*."""
    if not isinstance(models, WorkloadModels) or not len(jobs):
        return 0
    return int((find_workload_indices(models, jobs, nodes.kind.names) >= 0).any(axis=1).sum())


def _assume_scaling(scaling: Scaling, unknown: int) -> Assumption:
    jobs = f"{unknown:,} job{'' if unknown == 1 else 's'} of unknown model"
    says = {
        "request": f"{jobs} are no faster on more GPUs than they ask for, and on fewer proportionally slower",
        "linear": f"{jobs} are as much faster as they have GPUs, without limit",
        "amdahl": f"{jobs} scale by Amdahl's law, {100 * scaling.parallel:g} % of their work being parallel",
    }[scaling.kind]
    return Assumption("scaling", str(scaling), says, "" if scaling.kind == "request" else "request")


def _assume_kinds(nodes: Nodes, models: Models, unknown: int, count: int) -> Assumption:
    """Say how many jobs are equally fast on all kinds of GPUs, because nothing is known of their speeds."""
    equal = count
    if isinstance(models, ThroughputTable):
        equal = 0
    elif isinstance(models, WorkloadModels) and models.timed_on:
        equal = unknown
    kinds = ", ".join(nodes.kind.names)
    if not equal:
        return Assumption("kinds", "measured", f"speeds on {kinds} are those of {models}")
    jobs = f"{equal:,} of {count:,} job{'' if count == 1 else 's'}"
    return Assumption(
        "kinds", "equal", f"{jobs} run equally fast on {kinds}: comparisons of kinds mean nothing"
    )


def _assume_watts(watts: str, nodes: Nodes, unknown: int) -> Assumption:
    known = []
    for kind in nodes.kind.names:
        device = DEVICES.get(kind)
        source = "" if device is None else f", {device.measured}" if device.measured else ", a guess"
        busy_w = float(nodes.busy_w[[word == kind for word in nodes.kind.words()]].max())
        known.append(f"{kind} {busy_w:g} W{source}")
    says = f"a GPU that trains a job of unknown model draws what its kind does: {'; '.join(known)}"
    if watts == "limit":
        says = f"a GPU that trains a job of unknown model draws its limit: {'; '.join(known)}"
    return Assumption("watts", watts, says, "" if watts == "limit" else "limit")


def _assume_checkpoints(checkpoint_s: float | None) -> Assumption:
    if checkpoint_s is None:
        return Assumption("checkpoints", "always", "a job that is stopped loses no work", "1h")
    if checkpoint_s < 0:
        return Assumption("checkpoints", "never", "a job that is stopped begins anew")
    says = f"a job saves every {format_seconds(checkpoint_s)} and loses what follows when it is stopped"
    return Assumption("checkpoints", f"{checkpoint_s:g}s", says)


def with_limit_watts(nodes: Nodes) -> Nodes:
    """Return *nodes* with GPUs that draw their limit when they train, where that is known."""
    limit_w = [DEVICES[word].max_w if word in DEVICES else 0.0 for word in nodes.kind.words()]
    busy_w = [max(limit, now) for limit, now in zip(limit_w, nodes.busy_w.tolist(), strict=True)]
    return replace(nodes, busy_w=np.array(busy_w))


def format_assumptions(assumptions: Sequence[Mapping[str, Any]]) -> str:
    """Return the assumptions as one short text: `scaling request, restart 30s, durations clairvoyant`."""
    return ", ".join(f"{assumption['name']} {assumption['value']}" for assumption in assumptions)

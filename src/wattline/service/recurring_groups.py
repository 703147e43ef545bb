"""Groups of recurring jobs: batch sizes tried, what they cost, and the belief about them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wattline.batch_size.bayesian import BayesianTuner
from wattline.batch_size.group_summary import summarize_runs
from wattline.batch_size.history import RecordedRun, RunHistory
from wattline.batch_size.posterior import compute_posterior
from wattline.batch_size.tuner_state import TunerState
from wattline.errors import ConfigError, NotFound

ETA = 0.5
"""Weight of energy in the cost of a run, against time."""
_MOST_RUNS = 200


@dataclass(frozen=True)
class GroupOnKind:
    """A recurring job on one kind of GPU."""

    summary: dict[str, Any]  # gpu, batches, best, next, why, pending
    runs: list[RecordedRun]  # the latest, the oldest first
    run_count: int
    method: str
    belief: dict[int, tuple[float, float, float]]  # cost by batch size: 10th percentile, mean, 90th


@dataclass(frozen=True)
class RecurringGroup:
    """A recurring job."""

    name: str
    batches: tuple[int, ...]
    default: int | None
    kinds: list[GroupOnKind]


def list_groups(folder: Path) -> list[tuple[str, int]]:
    """Return the names of all groups, with the number of their runs."""
    path = folder / "memory.db"
    if not path.exists():
        return []
    with RunHistory.open(path) as history:
        return [
            (name, sum(len(history.runs(name, kind)) for kind in history.kinds(name)))
            for name in history.groups()
        ]


def read_group(folder: Path, name: str) -> RecurringGroup:
    """Return a group; raise `NotFound` if there is none of that name."""
    path = folder / "memory.db"
    if not path.exists():
        raise NotFound(f"there is no group {name!r}", "no recurring job has run yet")
    with RunHistory.open(path) as history:
        if name not in history.groups():
            raise NotFound(f"there is no group {name!r}")
        try:
            task = history.load_task(name)
        except NotFound:  # only caps were measured
            return RecurringGroup(name, (), None, [])
        return RecurringGroup(
            name,
            task.batches,
            task.default,
            [_read_kind(history, name, kind) for kind in history.kinds(name)],
        )


def _read_kind(history: RunHistory, name: str, kind: str) -> GroupOnKind:
    state = history.load_state(name, kind, BayesianTuner(), eta=ETA)
    runs = history.runs(name, kind)
    return GroupOnKind(
        summary=summarize_runs(kind, state),
        runs=runs[-_MOST_RUNS:],
        run_count=len(runs),
        method=history.energy_methods(name, kind),
        belief=_describe_belief(state),
    )


def _describe_belief(state: TunerState) -> dict[int, tuple[float, float, float]]:
    """Return the posterior of the cost of a recurrence by batch size; empty: nothing is known."""
    if not state.runs.any() or np.isnan(state.epoch_j).all():
        return {}
    try:
        posterior = compute_posterior(state)
    except ConfigError:
        return {}
    belief = {}
    for at, batch in enumerate(state.task.batches):
        draws = posterior.cost_j[:, at]
        order = np.argsort(draws)
        share = np.cumsum(posterior.weight[order]) / posterior.weight.sum()
        low, high = (float(draws[order][np.searchsorted(share, q)]) for q in (0.1, 0.9))
        if np.isfinite([low, high, posterior.mean_j[at]]).all():
            belief[batch] = low, float(posterior.mean_j[at]), high
    return belief

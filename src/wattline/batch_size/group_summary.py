"""Summary of a recurring job on one kind of GPU: batch sizes tried, their cost, and the belief about them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wattline.batch_size.bayesian import BayesianTuner
from wattline.batch_size.posterior import compute_posterior
from wattline.batch_size.tuner_state import TunerState
from wattline.errors import ConfigError


def summarize_runs(kind: str, state: TunerState) -> dict[str, Any]:
    """Return the runs of a job on one kind of GPU, the best batch size and the next one."""
    optimizer = BayesianTuner()
    best = None
    try:
        following = optimizer.next(state, np.random.default_rng(0)).batch
        if state.runs.any() and not np.isnan(state.epoch_j).all():
            best = state.task.batches[compute_posterior(state).best]
        why = optimizer.explain(state)
    except ConfigError as error:  # no run has reached the target
        following, why = state.task.default, error.message
    return {
        "gpu": kind,
        "batches": [_summarize_batch(state, at, batch) for at, batch in enumerate(state.task.batches)],
        "best": best,
        "next": following,
        "why": why,
        "pending": list(state.pending),
    }


def _summarize_batch(state: TunerState, at: int, batch: int) -> dict[str, Any]:
    epochs = math.exp(state.log_epochs_sum[at] / state.runs[at]) if state.runs[at] else None
    epoch_j = float(state.epoch_j[at])
    return {
        "batch": batch,
        "runs": int(state.local_runs[at]),
        "stopped": int(state.stopped_runs[at]),
        "epochs": epochs,
        "cost_j": None if epochs is None or math.isnan(epoch_j) else epochs * epoch_j,
    }

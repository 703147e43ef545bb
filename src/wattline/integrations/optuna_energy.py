"""Optuna with joules as the last objective: trials measured in this process, or run as jobs.

    study = optuna.create_study(directions=["minimize", "minimize"])
    study.optimize(add_energy(objective), n_trials=20)                         # here, one after the other
    optimize_jobs(study, train, space, wattline.Executor(), n_trials=20)       # as jobs, several at a time

`study.best_trials` is then the front of values that no other trial beats both in loss and in joules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wattline.errors import ConfigError, MeterError
from wattline.integrations.executor import Executor
from wattline.integrations.submitted_call import SubmittedCall

_UNMETERED = "energy cannot be measured here, so it cannot be an objective"


def add_energy(objective: Callable[[Any], float | Sequence[float]]) -> Callable[[Any], tuple[float, ...]]:
    """Return an objective that has the joules measured during a trial as its last value."""
    from wattline.meter.window import window

    def measure(trial: Any) -> tuple[float, ...]:
        with window(f"trial {trial.number}") as measured:
            values = objective(trial)
        if measured.energy_j is None:
            raise MeterError(_UNMETERED, "wattline doctor")
        return (*_as_tuple(values), float(measured.energy_j))

    return measure


def optimize_jobs(
    study: Any,
    function: Callable[[dict[str, Any]], float | Sequence[float]],
    space: Mapping[str, Any],
    executor: Executor,
    *,
    n_trials: int,
    at_once: int = 4,
) -> None:
    """Run *function* on the parameters of each trial as a job, and record its values and its joules.

    *space* is the `fixed_distributions` of `study.ask`. The joules of a job are those that the service
    measured, the last objective of the study. A job that fails is a failed trial.
    """
    objectives = len(study.directions)
    if objectives < 2:
        raise ConfigError(
            "the study has one objective, expected at least two: the last one is energy in joules",
            'optuna.create_study(directions=["minimize", "minimize"])',
        )
    if n_trials < 1 or at_once < 1:
        raise ConfigError(f"n_trials is {n_trials} and at_once is {at_once}, expected at least 1 of both")
    left, running = n_trials, list[tuple[Any, SubmittedCall[Any]]]()
    while left or running:
        while left and len(running) < at_once:
            trial = study.ask(dict(space))
            running.append((trial, executor.submit(function, dict(trial.params))))
            left -= 1
        trial, job = running.pop(0)
        _record(study, trial, job, objectives)


def _record(study: Any, trial: Any, job: SubmittedCall[Any], objectives: int) -> None:
    from optuna.trial import TrialState

    trial.set_user_attr("wattline_job_id", job.job_id)
    error = job.exception()
    if error is not None:
        trial.set_user_attr("why", str(error))
        study.tell(trial, state=TrialState.FAIL)
        return
    values, energy_j = _as_tuple(job.result()), job.energy_j
    if energy_j is None:
        study.tell(trial, state=TrialState.FAIL)
        raise MeterError(f"job {job.job_id}: {_UNMETERED}", "wattline doctor")
    if len(values) + 1 != objectives:
        study.tell(trial, state=TrialState.FAIL)
        raise ConfigError(
            f"the function returned {len(values)} values for a study of {objectives} objectives, "
            f"expected {objectives - 1}: energy is the last objective"
        )
    study.tell(trial, [*values, energy_j])


def _as_tuple(values: float | Sequence[float]) -> tuple[float, ...]:
    return tuple(map(float, values)) if isinstance(values, Sequence) else (float(values),)

"""Optuna studies with joules as the second objective."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattline import Executor
from wattline.errors import ConfigError, MeterError
from wattline.integrations.optuna_energy import add_energy, optimize_jobs

optuna = pytest.importorskip("optuna")


def create_study() -> object:
    return optuna.create_study(directions=["minimize", "minimize"])


@pytest.mark.slow
def test_trials_run_as_jobs_with_the_joules_of_the_service(here: Path) -> None:
    study = create_study()
    space = {"x": optuna.distributions.FloatDistribution(-1, 1)}
    function = eval("lambda parameters: (parameters['x'] - 0.5) ** 2")
    optimize_jobs(study, function, space, Executor(here / "calls"), n_trials=3, at_once=2)
    assert [len(trial.values) for trial in study.trials] == [2, 2, 2]
    for trial in study.trials:
        assert trial.values[0] == (trial.params["x"] - 0.5) ** 2
        assert trial.values[1] > 0
        assert trial.user_attrs["wattline_job_id"].isdecimal()
    assert study.best_trials


@pytest.mark.slow
def test_a_job_that_fails_is_a_failed_trial(here: Path) -> None:
    study = create_study()
    space = {"x": optuna.distributions.IntDistribution(0, 0)}
    optimize_jobs(study, eval("lambda p: 1 / p['x']"), space, Executor(here / "calls"), n_trials=1)
    assert study.trials[0].state == optuna.trial.TrialState.FAIL
    assert "ZeroDivisionError" in study.trials[0].user_attrs["why"]


def test_a_study_of_one_objective_is_refused(here: Path) -> None:
    study = optuna.create_study()
    with pytest.raises(ConfigError, match="the last one is energy in joules"):
        optimize_jobs(study, abs, {}, Executor(here), n_trials=1)  # type: ignore[arg-type]


def test_an_objective_in_this_process_gets_its_joules(monkeypatch: pytest.MonkeyPatch) -> None:
    from wattline.meter import open_meter
    from wattline.meter.sources import use_meter

    study = create_study()
    meter = open_meter("simulated:a100")
    try:
        with use_meter(meter):

            def objective(trial: object) -> float:
                meter.stepped(1)
                return 1.0

            study.optimize(add_energy(objective), n_trials=1)  # type: ignore[attr-defined]
    finally:
        meter.close()
    assert study.trials[0].values[0] == 1.0  # type: ignore[attr-defined]
    assert study.trials[0].values[1] >= 0  # type: ignore[attr-defined]


def test_an_unmetered_objective_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTLINE_METER", "none")
    with pytest.raises(MeterError, match="cannot be an objective"):
        add_energy(lambda trial: 1.0)(optuna.trial.FixedTrial({}))

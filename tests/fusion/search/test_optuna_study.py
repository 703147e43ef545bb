"""Searches by Optuna: it proposes and prunes, and its study records all trials."""

from __future__ import annotations

import builtins
import logging
import sys
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
optuna = pytest.importorskip("optuna")

from optuna.trial import TrialState  # noqa: E402
from torch import nn  # noqa: E402

from wattline import fusion  # noqa: E402
from wattline.errors import ConfigError  # noqa: E402

SPACE = {"lr": fusion.Float(1e-3, 1e-1, log=True), "weight_decay": fusion.Float(0, 0.1)}
tune = partial(fusion.tune, compile=False, space=SPACE)


@pytest.fixture(autouse=True)
def quiet() -> Any:
    optuna.logging.disable_default_handler()
    yield
    optuna.logging.enable_default_handler()


def study_of(**given: Any) -> Any:
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), **given)


@pytest.mark.slow
def test_a_study_gets_ordinary_trials(problem: Any) -> None:
    study = study_of(pruner=optuna.pruners.NopPruner())
    space = {**SPACE, "hidden": fusion.Choice([3, 4]), "batch_size": fusion.Int(16, 17), "note": "fixed"}
    found = tune(problem(), space=space, sampler=study, trials=9, epochs=2, width=4)
    assert [t.state for t in study.trials] == [TrialState.COMPLETE] * 9
    for mine, theirs in zip(found.trials, study.trials, strict=True):
        assert mine.config == {**theirs.params, "note": "fixed"}
        assert theirs.intermediate_values == dict(enumerate(mine.history, 1))
        assert theirs.value == mine.value
    assert study.best_trial.number == found.best.number
    again = tune(problem(), space=space, sampler=study, trials=2, epochs=1)
    assert [t.number for t in again.trials] == [9, 10]


@pytest.mark.slow
def test_values_are_those_of_any_width(problem: Any) -> None:
    wide, alone = (tune(problem(), sampler=study_of(), trials=6, epochs=2, width=w) for w in (4, 1))
    for mine, yours in zip(wide.trials, alone.trials, strict=True):
        assert mine.config == yours.config
        shorter = min(mine.epochs, yours.epochs)
        assert mine.history[:shorter] == pytest.approx(yours.history[:shorter], abs=1e-10)


@pytest.mark.slow
def test_the_pruner_of_a_study_is_honoured(problem: Any) -> None:
    study = study_of(pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3))
    seen: list[Any] = []
    found = tune(problem(), sampler=study, trials=12, epochs=9, width=3, report=seen.append)
    pruned = [t for t in study.trials if t.state is TrialState.PRUNED]
    assert len(pruned) >= 4
    assert {t.number for t in pruned} == {t.number for t in found.trials if t.state == "pruned"}
    for trial in pruned:
        assert len(trial.intermediate_values) == found.trials[trial.number].epochs < 9
    assert all(progress.width == 3 for progress in seen if progress.ended < 9)


def test_the_direction_of_a_study_is_honoured(problem: Any) -> None:
    study = study_of(direction="maximize")
    found = tune(problem(), sampler=study, trials=5, epochs=1)
    assert found.best.value == max(t.value for t in found.trials) == study.best_value
    with pytest.raises(ConfigError, match="direction is 'minimize', but the study's is 'maximize'"):
        tune(problem(), sampler=study, trials=5, epochs=1, direction="minimize")
    both = optuna.create_study(directions=["minimize", "maximize"])
    with pytest.raises(ConfigError, match="2 objectives, expected one"):
        tune(problem(), sampler=both, trials=5, epochs=1)


@pytest.mark.slow
def test_trials_are_requested_only_when_the_array_has_room(problem: Any) -> None:
    study = study_of(pruner=optuna.pruners.NopPruner())
    asked: list[int] = []
    tune(
        problem(),
        sampler=study,
        trials=9,
        epochs=2,
        width=4,
        report=lambda _: asked.append(len(study.trials)),
    )
    assert asked == [4, 4, 8, 8, 9, 9]
    space = {**SPACE, "hidden": fusion.Int(3, 30)}
    study, asked = study_of(), []
    tune(
        problem(),
        space=space,
        sampler=study,
        trials=30,
        epochs=1,
        width=2,
        report=lambda p: asked.append(p.waiting),
    )
    assert max(asked) <= 3


@pytest.mark.slow
def test_samplers_and_tpe_by_name_find_the_same_for_a_seed(problem: Any, capfd: Any) -> None:
    first, again = (tune(problem(), sampler="tpe", trials=12, epochs=1, width=4, seed=3) for _ in range(2))
    other = tune(problem(), sampler=optuna.samplers.TPESampler(seed=3), trials=12, epochs=1, width=4, seed=3)
    assert first == again == other
    assert capfd.readouterr().out == ""
    assert optuna.logging.get_verbosity() == logging.INFO


def test_values_that_optuna_cannot_store_are_stored_as_their_repr(problem: Any) -> None:
    study = study_of()
    space = {**SPACE, "betas": fusion.Choice([(0.9, 0.99), (0.8, 0.9)])}
    make = problem(hyper=("lr", "weight_decay", "betas"))
    found = tune(make, space=space, sampler=study, trials=6, epochs=1, width=2)
    assert {trial.config["betas"] for trial in found.trials} == {(0.9, 0.99), (0.8, 0.9)}
    assert study.trials[0].params["betas"] in {"(0.9, 0.99)", "(0.8, 0.9)"}


def test_failures_are_recorded_in_the_study(problem: Any) -> None:
    def build(config: dict[str, Any]) -> nn.Module:
        if config["weight_decay"] > 0.05:
            raise ValueError("too much of it")
        return nn.Linear(2, 2)

    study = study_of()
    found = tune(problem(build=build), sampler=study, trials=8, epochs=1, width=3)
    failed = {t.number for t in study.trials if t.state is TrialState.FAIL}
    assert failed == {t.number for t in found.trials if t.config["weight_decay"] > 0.05}
    assert 0 < len(failed) < 8
    assert study.trials[min(failed)].user_attrs["why"] == "ValueError: too much of it"


def test_values_that_are_not_finite_are_failures(problem: Any) -> None:
    study = study_of()
    tune(
        problem(evaluate=lambda array: [float("nan")] + [1.0] * (len(array) - 1)),
        sampler=study,
        trials=3,
        epochs=1,
        width=3,
    )
    assert [t.state for t in study.trials] == [TrialState.FAIL, TrialState.COMPLETE, TrialState.COMPLETE]


def test_an_error_leaves_no_trial_running(problem: Any) -> None:
    def batches(epoch: int) -> Any:
        raise OSError("the disk is gone")

    study = study_of()
    with pytest.raises(OSError, match="the disk is gone"):
        tune(problem(batches=batches), sampler=study, trials=8, epochs=1, width=3)
    assert [t.state for t in study.trials] == [TrialState.FAIL] * 3


def test_without_optuna_the_extra_is_named(problem: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "optuna":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.split(".")[0] == "optuna"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", missing)
    assert tune(problem(), trials=1, epochs=1).best.number == 0
    with pytest.raises(ConfigError, match="needs Optuna") as error:
        tune(problem(), sampler="tpe", trials=1, epochs=1)
    assert "wattline[optuna]" in error.value.hint

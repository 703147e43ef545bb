"""Search by an Optuna study, which records all trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from wattline.errors import ConfigError
from wattline.fusion.search.result import Trial, TrialState
from wattline.fusion.search.space import Choice, Domain, Float, Int, Space
from wattline.fusion.search.strategy import EpochResult, ProposedTrial, Search, TrialDecision, TrialTask

_PLAIN = (bool, int, float, str, type(None))


class OptunaSearch:
    """Trials of an Optuna study, requested when the array has room for them."""

    def __init__(self, study: Any, task: TrialTask) -> None:
        from optuna.pruners import NopPruner

        self.study = study
        self.staggered = not isinstance(study.pruner, NopPruner)
        self._left = task.require_trials("an Optuna study")
        self._epochs = task.epochs
        self._space = task.space
        self._distributions = _distributions(task.space)
        self._running: dict[int, Any] = {}

    def ask(self, count: int) -> Sequence[ProposedTrial]:
        """Return the next *count* trials, or fewer at the end."""
        count = min(count, self._left)
        self._left -= count
        proposed = []
        for _ in range(count):
            trial = self.study.ask(self._distributions)
            self._running[trial.number] = trial
            proposed.append(ProposedTrial(trial.number, _config(self._space, trial.params)))
        return proposed

    def decide(self, results: Sequence[EpochResult]) -> Mapping[int, TrialDecision]:
        """Report all values, then prune as the study decides; trials at their last epoch are not pruned."""
        for item in results:
            if not math.isnan(item.value):
                self._running[item.number].report(item.value, item.epochs)
        running = (item for item in results if not item.failed and item.epochs < self._epochs)
        return {
            item.number: TrialDecision.STOP for item in running if self._running[item.number].should_prune()
        }

    def on_trial_end(self, trial: Trial) -> None:
        """Record the end of a trial in the study."""
        from optuna.trial import TrialState as OptunaState

        states = {
            TrialState.COMPLETE: OptunaState.COMPLETE,
            TrialState.PRUNED: OptunaState.PRUNED,
            TrialState.FAILED: OptunaState.FAIL,
        }
        open_trial = self._running.pop(trial.number)
        if trial.why:
            open_trial.set_user_attr("why", trial.why)
        value = trial.value if trial.state is TrialState.COMPLETE else None
        self.study.tell(open_trial, value, state=states[trial.state])

    def abandon(self) -> None:
        """Record all unfinished trials as failed."""
        from optuna.trial import TrialState as OptunaState

        while self._running:
            _, trial = self._running.popitem()
            self.study.tell(trial, state=OptunaState.FAIL)


def study_direction(sampler: Any) -> str | None:
    """Return the direction of an Optuna study; None for anything else."""
    if not hasattr(sampler, "directions"):
        return None
    if len(sampler.directions) != 1:
        raise ConfigError(f"the study has {len(sampler.directions)} objectives, expected one")
    name: str = sampler.direction.name
    return name.lower()


def build_optuna_search(sampler: Any, task: TrialTask) -> Search:
    """Return a search by a sampler or study of Optuna, or by its TPE sampler if *sampler* is "tpe"."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(
            f"sampler is {sampler!r}, which needs Optuna", "pip install 'wattline[optuna]'"
        ) from None
    if sampler == "tpe":
        sampler = optuna.samplers.TPESampler(seed=task.seed)
    if isinstance(sampler, optuna.Study):
        return OptunaSearch(sampler, task)
    if not isinstance(sampler, optuna.samplers.BaseSampler):
        raise ConfigError(
            f"sampler is {sampler!r}, expected 'random', 'hyperband', 'asha', 'tpe', Hyperband(), ASHA(), "
            "or a sampler or study of Optuna"
        )
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(verbosity, optuna.logging.WARNING))
    try:
        study = optuna.create_study(
            sampler=sampler,
            pruner=optuna.pruners.NopPruner(),
            direction="minimize" if task.sign == 1 else "maximize",
        )
    finally:
        optuna.logging.set_verbosity(verbosity)
    return OptunaSearch(study, task)


def _distributions(space: Space) -> dict[str, Any]:
    from optuna import distributions

    def to_distribution(domain: Domain) -> Any:
        if isinstance(domain, Choice):
            return distributions.CategoricalDistribution(_names(domain))
        if isinstance(domain, Int):
            return distributions.IntDistribution(domain.low, domain.high, log=domain.log)
        return distributions.FloatDistribution(domain.low, domain.high, log=domain.log)

    return {name: to_distribution(d) for name, d in space.items() if isinstance(d, Float | Int | Choice)}


def _names(domain: Choice) -> list[Any]:
    """Return the values as Optuna can store them: unchanged, or their `repr` if not plain."""
    if all(isinstance(value, _PLAIN) for value in domain.values):
        return list(domain.values)
    return [repr(value) for value in domain.values]


def _config(space: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name, domain in space.items():
        if isinstance(domain, Choice):
            config[name] = domain.values[_names(domain).index(params[name])]
        else:
            config[name] = params[name] if isinstance(domain, Float | Int) else domain
    return config

"""Optuna proposes and prunes; its study has all trials in the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from wattline.errors import ConfigError
from wattline.fusion.search.result import State, Trial
from wattline.fusion.search.space import Choice, Domain, Float, Int, Space
from wattline.fusion.search.strategy import Asked, News, Search, Task, Verdict

_PLAIN = (bool, int, float, str, type(None))


class Study:
    """Trials of an Optuna study, asked for when there is room for them."""

    def __init__(self, study: Any, task: Task) -> None:
        from optuna.pruners import NopPruner

        self.study = study
        self.staggered = not isinstance(study.pruner, NopPruner)
        self._left = task.count("an Optuna study")
        self._epochs = task.epochs
        self._space = task.space
        self._distributions = _distributions(task.space)
        self._open: dict[int, Any] = {}

    def ask(self, count: int) -> Sequence[Asked]:
        """The next *count*, as long as there are any."""
        count = min(count, self._left)
        self._left -= count
        asked = []
        for _ in range(count):
            trial = self.study.ask(self._distributions)
            self._open[trial.number] = trial
            asked.append(Asked(trial.number, _config(self._space, trial.params)))
        return asked

    def judge(self, news: Sequence[News]) -> Mapping[int, Verdict]:
        """All values are reported before the study's pruner is asked; who is at the end is not pruned."""
        for item in news:
            if not math.isnan(item.value):
                self._open[item.number].report(item.value, item.epochs)
        running = (item for item in news if not item.failed and item.epochs < self._epochs)
        return {item.number: Verdict.STOP for item in running if self._open[item.number].should_prune()}

    def ended(self, trial: Trial) -> None:
        """Tell the study."""
        from optuna.trial import TrialState

        states = {
            State.COMPLETE: TrialState.COMPLETE,
            State.PRUNED: TrialState.PRUNED,
            State.FAILED: TrialState.FAIL,
        }
        open_trial = self._open.pop(trial.number)
        if trial.why:
            open_trial.set_user_attr("why", trial.why)
        value = trial.value if trial.state is State.COMPLETE else None
        self.study.tell(open_trial, value, state=states[trial.state])

    def abandon(self) -> None:
        """Trials that have not ended have failed."""
        from optuna.trial import TrialState

        while self._open:
            _, trial = self._open.popitem()
            self.study.tell(trial, state=TrialState.FAIL)


def direction_of(sampler: Any) -> str | None:
    """What an Optuna study is after; None for anything else."""
    if not hasattr(sampler, "directions"):
        return None
    if len(sampler.directions) != 1:
        raise ConfigError(f"the study has {len(sampler.directions)} objectives, expected one")
    name: str = sampler.direction.name
    return name.lower()


def of_optuna(sampler: Any, task: Task) -> Search:
    """A search by a sampler or a study of Optuna, or by its TPE sampler if *sampler* is "tpe"."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(
            f"sampler is {sampler!r}, which needs Optuna", "pip install 'wattline[optuna]'"
        ) from None
    if sampler == "tpe":
        sampler = optuna.samplers.TPESampler(seed=task.seed)
    if isinstance(sampler, optuna.Study):
        return Study(sampler, task)
    if not isinstance(sampler, optuna.samplers.BaseSampler):
        raise ConfigError(
            f"sampler is {sampler!r}, expected 'random', 'hyperband', 'asha', 'tpe', one of this package's, "
            "or a sampler or study of Optuna"
        )
    loud = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(loud, optuna.logging.WARNING))
    try:
        study = optuna.create_study(
            sampler=sampler,
            pruner=optuna.pruners.NopPruner(),
            direction="minimize" if task.sign == 1 else "maximize",
        )
    finally:
        optuna.logging.set_verbosity(loud)
    return Study(study, task)


def _distributions(space: Space) -> dict[str, Any]:
    from optuna import distributions

    def of(domain: Domain) -> Any:
        if isinstance(domain, Choice):
            return distributions.CategoricalDistribution(_names(domain))
        if isinstance(domain, Int):
            return distributions.IntDistribution(domain.low, domain.high, log=domain.log)
        return distributions.FloatDistribution(domain.low, domain.high, log=domain.log)

    return {name: of(d) for name, d in space.items() if isinstance(d, Float | Int | Choice)}


def _names(domain: Choice) -> list[Any]:
    """What Optuna may store: the values, or what they print if they are more than numbers and words."""
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

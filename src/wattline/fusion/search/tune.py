"""`tune`: the loop of a hyper-parameter search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from wattline.errors import ConfigError, WattlineError, did_you_mean
from wattline.fusion.search.halving import ASHA, Hyperband
from wattline.fusion.search.objective import Objective, SharedConfig
from wattline.fusion.search.optuna_study import build_optuna_search, study_direction
from wattline.fusion.search.partition import Partition, PartitionRun
from wattline.fusion.search.result import Progress, Result, Trial, TrialState
from wattline.fusion.search.space import Space, check_space
from wattline.fusion.search.strategy import EpochResult, RandomSearch, Search, TrialDecision, TrialTask

_SAMPLERS = {"random": RandomSearch, "hyperband": Hyperband, "asha": ASHA}
_SIGNS = {"minimize": 1, "maximize": -1}


def tune(
    objective: Callable[[Mapping[str, Any]], Objective],
    space: Space,
    *,
    epochs: int,
    sampler: Any = "random",
    trials: int | None = None,
    width: int = 8,
    direction: str | None = None,
    seed: int = 0,
    compile: bool = True,
    report: Callable[[Progress], object] | None = None,
) -> Result:
    """Train *trials* configurations of *space* for up to *epochs*, *width* at a time as one array.

    *objective* is called once for each setting of the infusible hyper-parameters and returns how such trials
    are built, trained and evaluated. *sampler* is "random", "hyperband", "asha", "tpe", a `Hyperband` or
    `ASHA`, or a sampler or study of Optuna. *direction* is "minimize" (default) or "maximize"; a study has
    its own. *report* is called after each epoch.

    The value of a trial depends on *seed*, its number and its configuration, not on the other trials of its
    array.
    """
    check_space(space)
    for name, value in (("width", width), ("trials", trials), ("epochs", epochs)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name} is {value!r}, expected a whole number of at least 1")
    task = TrialTask(dict(space), trials, epochs, seed, _sign(sampler, direction))
    search = _search(sampler, task)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        try:
            return _TuningLoop(search, objective, task, width, compile, report).run()
        except BaseException:
            search.abandon()
            raise


def _sign(sampler: Any, direction: str | None) -> int:
    if direction is not None and direction not in _SIGNS:
        raise ConfigError(
            f"direction is {direction!r}, expected 'minimize' or 'maximize'", did_you_mean(direction, _SIGNS)
        )
    from_study = study_direction(sampler)
    if from_study is not None and direction not in (None, from_study):
        raise ConfigError(f"direction is {direction!r}, but the study's is {from_study!r}")
    return _SIGNS[from_study or direction or "minimize"]


def _search(sampler: Any, task: TrialTask) -> Search:
    if isinstance(sampler, str) and sampler != "tpe":
        if sampler not in _SAMPLERS:
            raise ConfigError(
                f"sampler is {sampler!r}, expected one of {', '.join([*_SAMPLERS, 'tpe'])}",
                did_you_mean(sampler, [*_SAMPLERS, "tpe"]),
            )
        sampler = _SAMPLERS[sampler]()
    if callable(sampler):
        search: Search = sampler(task)
        return search
    return build_optuna_search(sampler, task)


@dataclass
class _TuningLoop:
    """The waiting, paused and finished trials; one array runs at a time."""

    search: Search
    objective: Callable[[Mapping[str, Any]], Objective]
    task: TrialTask
    width: int
    compile: bool
    report: Callable[[Progress], object] | None
    infusible: tuple[str, ...] | None = None  # unknown until the first objective is built
    partitions: dict[tuple[str, ...], Partition] = field(default_factory=dict)
    paused: dict[int, tuple[PartitionRun, Partition]] = field(default_factory=dict)
    finished: dict[int, Trial] = field(default_factory=dict)
    best: tuple[float, int, dict[str, Tensor]] | None = None

    def run(self) -> Result:
        """Run until no trial waits and the search proposes none."""
        while self._waiting() or self._ask(self.width):
            partition = max(self.partitions.values(), key=lambda p: len(p.waiting))
            while self._fill(partition):
                self._epoch(partition)
        if self.best is not None:
            _, number, weights = self.best
            self.finished[number] = replace(self.finished[number], state_dict=weights)
        return Result(tuple(self.finished[number] for number in sorted(self.finished)), self.task.sign)

    def _waiting(self) -> int:
        return sum(len(partition.waiting) for partition in self.partitions.values())

    def _ask(self, count: int) -> bool:
        proposed = self.search.ask(count)
        for trial in proposed:
            self._partition(trial.config).enqueue(PartitionRun(trial.number, trial.config))
        return bool(proposed)

    def _partition(self, config: Mapping[str, Any]) -> Partition:
        """Return the partition of a trial; objectives other than the first are built when it runs."""
        shared = SharedConfig(config)
        first = None
        if self.infusible is None:
            first = self._make(shared)
            self.infusible = first.infusible(self.task.space)
        key = tuple(repr(config[name]) for name in self.infusible)
        if key not in self.partitions:
            shared.restrict_to(self.infusible)
            make = partial(self._make, shared) if first is None else partial(_existing_objective, first)
            self.partitions[key] = Partition(
                shared,
                make,
                seed=self.task.seed,
                compile=self.compile,
                staggered=self.search.staggered,
            )
        return self.partitions[key]

    def _make(self, shared: SharedConfig) -> Objective:
        objective = self.objective(shared)
        if not isinstance(objective, Objective):
            raise ConfigError(
                f"the objective function returned a {type(objective).__name__}, expected a fusion.Objective"
            )
        if self.infusible not in (None, objective.infusible(self.task.space)):
            raise ConfigError(f"the objective of {shared} has another hyper or fusible than the first one")
        return objective

    def _fill(self, partition: Partition) -> bool:
        """Fill the array up to the width with waiting or new trials; return False if it stays empty."""
        build = partition.objective.build  # an error in building the objective is no failure of a trial
        joining: list[tuple[PartitionRun, Any]] = []
        while partition.accepts_members and len(partition.members) + len(joining) < self.width:
            if not partition.waiting:
                others = self._waiting()
                if others >= self.width or not self._ask(1):
                    break
                continue
            run = partition.dequeue()
            try:
                joining.append((run, partition.model(run, build)))
            except Exception as error:
                self._end(run, TrialState.FAILED, _describe_error(error))
                self._apply_decisions(partition, [EpochResult(run.number, 0, float("nan"))])
        runs = [*partition.members, *(run for run, _ in joining)]
        partition.join(joining, max((self.task.epochs - len(run.history) for run in runs), default=0))
        return bool(runs)

    def _epoch(self, partition: Partition) -> None:
        """Train one epoch and remove trials that are complete, failed, stopped or paused."""
        values = partition.train()
        for run, value in values:
            run.history.append(value)
        results = [EpochResult(run.number, len(run.history), value) for run, value in values]
        self._apply_decisions(partition, results)
        if self.report is not None:
            self.report(
                Progress(
                    dict(partition.shared),
                    tuple(item.number for item in results),
                    tuple(item.epochs for item in results),
                    tuple(item.value for item in results),
                    len(self.finished),
                    self._waiting(),
                )
            )

    def _apply_decisions(self, partition: Partition, results: Sequence[EpochResult]) -> None:
        decisions = dict(self.search.decide(results))
        members = {run.number: run for run in partition.members}
        for item in results:
            run = members.get(item.number)
            if run is None:
                continue
            decision = decisions.pop(item.number, TrialDecision.GO)
            if item.failed:
                self._leave(partition, run, TrialState.FAILED, f"the loss or value became {item.value}")
            elif item.epochs >= self.task.epochs:
                self._keep(partition, run)
                self._leave(partition, run, TrialState.COMPLETE)
            elif decision is TrialDecision.STOP:
                self._leave(partition, run, TrialState.PRUNED)
            elif decision is TrialDecision.PAUSE:
                partition.pause(run)
                self.paused[run.number] = run, partition
        for number, decision in decisions.items():
            if number not in self.paused or decision is TrialDecision.PAUSE:
                continue
            run, own_partition = self.paused.pop(number)
            if decision is TrialDecision.GO:
                own_partition.enqueue(run)
            else:
                self._end(run, TrialState.PRUNED)

    def _keep(self, partition: Partition, run: PartitionRun) -> None:
        """Keep the weights of the best trial so far."""
        value = self.task.sign * run.history[-1]
        if self.best is None or (value, run.number) < self.best[:2]:
            self.best = value, run.number, partition.member_weights(run)

    def _leave(self, partition: Partition, run: PartitionRun, state: TrialState, why: str = "") -> None:
        partition.remove(run)
        self._end(run, state, why)

    def _end(self, run: PartitionRun, state: TrialState, why: str = "") -> None:
        run.model = run.optimiser = None
        trial = Trial(run.number, run.config, state, tuple(run.history), why)
        self.finished[run.number] = trial
        self.search.on_trial_end(trial)


def _existing_objective(objective: Objective) -> Objective:
    return objective


def _describe_error(error: Exception) -> str:
    message = error.message if isinstance(error, WattlineError) else str(error)
    return f"{type(error).__name__}: {message}"

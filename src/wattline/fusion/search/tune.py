"""The loop of tuning: who is trained next, with whom, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from wattline.errors import ConfigError, WattlineError, did_you_mean
from wattline.fusion.search.halving import ASHA, Hyperband
from wattline.fusion.search.objective import Objective, Shared
from wattline.fusion.search.optuna_study import direction_of, of_optuna
from wattline.fusion.search.partition import Partition, Run
from wattline.fusion.search.result import Progress, Result, State, Trial
from wattline.fusion.search.space import Space, check_space
from wattline.fusion.search.strategy import News, Random, Search, Task, Verdict

_NAMED = {"random": Random, "hyperband": Hyperband, "asha": ASHA}
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

    *objective* is called once for each setting of the infusible hyper-parameters with these and says how such
    trials are built, trained and judged. *sampler* is "random", "hyperband", "asha", "tpe", a `Hyperband` or
    `ASHA`, or a sampler or study of Optuna. *direction* is "minimize", if a study does not say otherwise, or
    "maximize". *report* is called after each epoch.

    What a trial is worth depends on *seed*, its number and its configuration, not on who is trained with it.
    """
    check_space(space)
    for name, value in (("width", width), ("trials", trials), ("epochs", epochs)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name} is {value!r}, expected a whole number of at least 1")
    task = Task(dict(space), trials, epochs, seed, _sign(sampler, direction))
    search = _search(sampler, task)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        try:
            return _Drive(search, objective, task, width, compile, report).run()
        except BaseException:
            search.abandon()
            raise


def _sign(sampler: Any, direction: str | None) -> int:
    if direction is not None and direction not in _SIGNS:
        raise ConfigError(
            f"direction is {direction!r}, expected 'minimize' or 'maximize'", did_you_mean(direction, _SIGNS)
        )
    of_study = direction_of(sampler)
    if of_study is not None and direction not in (None, of_study):
        raise ConfigError(f"direction is {direction!r}, but the study's is {of_study!r}")
    return _SIGNS[of_study or direction or "minimize"]


def _search(sampler: Any, task: Task) -> Search:
    if isinstance(sampler, str) and sampler != "tpe":
        if sampler not in _NAMED:
            raise ConfigError(
                f"sampler is {sampler!r}, expected one of {', '.join([*_NAMED, 'tpe'])}",
                did_you_mean(sampler, [*_NAMED, "tpe"]),
            )
        sampler = _NAMED[sampler]()
    if callable(sampler):
        search: Search = sampler(task)
        return search
    return of_optuna(sampler, task)


@dataclass
class _Drive:
    """Which trials wait, stand back and have ended; one array runs at a time."""

    search: Search
    objective: Callable[[Mapping[str, Any]], Objective]
    task: Task
    width: int
    compile: bool
    report: Callable[[Progress], object] | None
    infusible: tuple[str, ...] | None = None  # not known before there is an objective
    partitions: dict[tuple[str, ...], Partition] = field(default_factory=dict)
    paused: dict[int, tuple[Run, Partition]] = field(default_factory=dict)
    over: dict[int, Trial] = field(default_factory=dict)
    best: tuple[float, int, dict[str, Tensor]] | None = None

    def run(self) -> Result:
        """Until nobody waits and nobody is to be asked for."""
        while self._waiting() or self._ask(self.width):
            partition = max(self.partitions.values(), key=lambda p: len(p.waiting))
            while self._fill(partition):
                self._epoch(partition)
        if self.best is not None:
            _, number, weights = self.best
            self.over[number] = replace(self.over[number], state_dict=weights)
        return Result(tuple(self.over[number] for number in sorted(self.over)), self.task.sign)

    def _waiting(self) -> int:
        return sum(len(partition.waiting) for partition in self.partitions.values())

    def _ask(self, count: int) -> bool:
        asked = self.search.ask(count)
        for trial in asked:
            self._partition(trial.config).wait(Run(trial.number, trial.config))
        return bool(asked)

    def _partition(self, config: Mapping[str, Any]) -> Partition:
        """Where a trial belongs; but for the very first, objectives are made when their partition is run."""
        shared = Shared(config)
        first = None
        if self.infusible is None:
            first = self._make(shared)
            self.infusible = first.infusible(self.task.space)
        key = tuple(repr(config[name]) for name in self.infusible)
        if key not in self.partitions:
            shared.limit(self.infusible)
            make = partial(self._make, shared) if first is None else partial(_given, first)
            self.partitions[key] = Partition(
                shared,
                make,
                seed=self.task.seed,
                compile=self.compile,
                staggered=self.search.staggered,
            )
        return self.partitions[key]

    def _make(self, shared: Shared) -> Objective:
        objective = self.objective(shared)
        if not isinstance(objective, Objective):
            raise ConfigError(f"the builder gave a {type(objective).__name__}, expected a fusion.Objective")
        if self.infusible not in (None, objective.infusible(self.task.space)):
            raise ConfigError(f"the objective of {shared} names other hyper or fusible ones than the first")
        return objective

    def _fill(self, partition: Partition) -> bool:
        """Let those who wait join, or newly asked ones, up to the width; False: nobody is to be trained."""
        build = partition.objective.build  # what the objective's own making raises is nobody's failure
        joining: list[tuple[Run, Any]] = []
        while partition.open and len(partition.members) + len(joining) < self.width:
            if not partition.waiting:
                others = self._waiting()
                if others >= self.width or not self._ask(1):
                    break
                continue
            run = partition.next()
            try:
                joining.append((run, partition.model(run, build)))
            except Exception as error:
                self._end(run, State.FAILED, _said(error))
                self._judge(partition, [News(run.number, 0, float("nan"))])
        runs = [*partition.members, *(run for run, _ in joining)]
        partition.join(joining, max((self.task.epochs - len(run.history) for run in runs), default=0))
        return bool(runs)

    def _epoch(self, partition: Partition) -> None:
        """Train, and let those go who are done, out, or to stand back."""
        found = partition.train()
        for run, value in found:
            run.history.append(value)
        news = [News(run.number, len(run.history), value) for run, value in found]
        self._judge(partition, news)
        if self.report is not None:
            self.report(
                Progress(
                    dict(partition.shared),
                    tuple(item.number for item in news),
                    tuple(item.epochs for item in news),
                    tuple(item.value for item in news),
                    len(self.over),
                    self._waiting(),
                )
            )

    def _judge(self, partition: Partition, news: Sequence[News]) -> None:
        verdicts = dict(self.search.judge(news))
        members = {run.number: run for run in partition.members}
        for item in news:
            run = members.get(item.number)
            if run is None:
                continue
            verdict = verdicts.pop(item.number, Verdict.GO)
            if item.failed:
                self._leave(partition, run, State.FAILED, f"the loss or value became {item.value}")
            elif item.epochs >= self.task.epochs:
                self._keep(partition, run)
                self._leave(partition, run, State.COMPLETE)
            elif verdict is Verdict.STOP:
                self._leave(partition, run, State.PRUNED)
            elif verdict is Verdict.PAUSE:
                partition.pause(run)
                self.paused[run.number] = run, partition
        for number, verdict in verdicts.items():
            if number not in self.paused or verdict is Verdict.PAUSE:
                continue
            run, home = self.paused.pop(number)
            if verdict is Verdict.GO:
                home.wait(run)
            else:
                self._end(run, State.PRUNED)

    def _keep(self, partition: Partition, run: Run) -> None:
        """The weights of the best so far."""
        value = self.task.sign * run.history[-1]
        if self.best is None or (value, run.number) < self.best[:2]:
            self.best = value, run.number, partition.weights(run)

    def _leave(self, partition: Partition, run: Run, state: State, why: str = "") -> None:
        partition.leave(run)
        self._end(run, state, why)

    def _end(self, run: Run, state: State, why: str = "") -> None:
        run.model = run.optimiser = None
        trial = Trial(run.number, run.config, state, tuple(run.history), why)
        self.over[run.number] = trial
        self.search.ended(trial)


def _given(objective: Objective) -> Objective:
    return objective


def _said(error: Exception) -> str:
    message = error.message if isinstance(error, WattlineError) else str(error)
    return f"{type(error).__name__}: {message}"

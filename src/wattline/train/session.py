"""`wattline.Session`: the lines that a user adds to a training script.

    with wattline.Session() as run:
        for epoch in run.epochs(100):
            for batch in run.steps(loader):
                ...
            run.report(accuracy=acc)

A session counts steps, measures energy, finds the best power cap while the job trains and writes checkpoints.
It exits with a checkpoint when the scheduler asks it to yield, and stops when the target is reached or the
cost bound is exceeded. It works alone, under torchrun and under the service, which sets WATTLINE_* variables
(see `train.environment`).
"""

from __future__ import annotations

import math
import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from wattline.errors import ConfigError, MeterError, WattlineError
from wattline.meter import Meter, open_meter
from wattline.meter.caps.guard import guard_caps
from wattline.meter.energy_window import EnergyWindow
from wattline.models.cost import energy_time_cost
from wattline.profiler import step_counter
from wattline.profiler.cap_window import Aim, WindowLength
from wattline.train.caps import CapTuner
from wattline.train.checkpoint import Checkpoints, StateFunction, TrainingPosition
from wattline.train.environment import JobEnvironment, Target
from wattline.train.introspection import count_samples, get_script_name, sum_max_caps, synchronize_gpu
from wattline.train.job_history import JobHistory
from wattline.train.progress_events import EventWriter
from wattline.train.ranks import Ranks
from wattline.train.stop_signal import StopSignal

T = TypeVar("T")

YIELDED = 75
"""Exit code of a job that has written a checkpoint and is to be started again."""

_PROGRESS_S = 1.0  # between two progress events
_SYNC_STEPS = 16  # steps between two agreements of the ranks on saving and yielding
_ETA = 0.5  # of the cost bound, if the aim has none
_SAVE, _YIELD = 1.0, 2.0  # requests of a rank to all; the largest wins


class Session:
    """One training run.

    *save* and *load* write and read the user's state at a path; *target* is such as `accuracy>=0.6`. *aim*
    defines the best power cap: `energy`, `time`, `cost:0.5`, `slowdown:1.1`, `watts:200`, or `none` to leave
    caps alone. With *observe* caps are tried and then restored. A recurring job has a *group*, and its
    `batch_size` is chosen from *batch_sizes*. Environment variables override the parameters.
    """

    def __init__(
        self,
        *,
        save: StateFunction | None = None,
        load: StateFunction | None = None,
        target: str | None = None,
        aim: str = "cost:0.5",
        observe: bool = False,
        batch_size: int | None = None,
        batch_sizes: Sequence[int] = (),
        group: str = "",
        checkpoints: str | Path | None = None,
        every_s: float = 600.0,
        window: WindowLength | None = None,
        meter: str | Meter | None = None,
        memory: str | Path | None = None,
    ) -> None:
        environment = JobEnvironment.read()
        self.environment = environment
        self.ranks = Ranks()
        self.batch_size = environment.batch_size or batch_size or 0
        self.group = environment.group or group  # empty = not a recurring job
        self._batch_sizes = () if environment.batch_size else tuple(batch_sizes)
        if self._batch_sizes and not self.group:
            raise ConfigError("batch_sizes are given without a group, expected group= or WATTLINE_GROUP")
        self.target = environment.target or (Target.parse(target) if target else None)
        aim = environment.aim or aim
        self.aim = None if aim == "none" else Aim.parse(aim)
        self.observe = environment.observe or observe
        self.position = TrainingPosition()
        self.metrics: dict[str, float] = {}
        self.reached = False
        self.stopped = ""  # the reason for an end before the last epoch
        self.resumed = False
        folder = environment.checkpoints or (Path(checkpoints) if checkpoints else None)
        self._checkpoints = None if folder is None else Checkpoints(folder, save, load)
        self._save_interval_s = every_s
        self._window_length = window or WindowLength()
        self._meter_option = meter
        self._history_path = memory
        self._history = JobHistory(self._warn_once)
        self._stop_signal = StopSignal(environment.stop_signal, lambda: self._checkpoints is not None)
        self._closed = self._epoch_interrupted = self._has_loop = False
        self._warnings: set[str] = set()
        self._skip = 0  # steps of the epoch that the checkpoint already contains
        self._loops = 0  # in this epoch
        self._epoch_count = self._steps_per_epoch = 0  # 0 = unknown
        self._others_j = 0.0  # joules of the other ranks at the last synchronisation
        self._events = EventWriter(environment.events, environment.job_id, self._warn_once)
        self._resources = ExitStack()

    # -- context manager

    def __enter__(self) -> Session:
        if isinstance(self._meter_option, Meter):
            self._meter = self._meter_option
        else:
            self._meter = open_meter(self._meter_option or "auto")
            self._resources.callback(self._meter.close)
        try:
            self._start()
        except BaseException:
            self._resources.close()
            raise
        return self

    def _start(self) -> None:
        meter, ranks = self._meter, self.ranks
        if not ranks.is_connected:
            if self._batch_sizes:
                raise ConfigError(
                    "batch_sizes under torchrun need torch.distributed, which is not initialised",
                    "call init_process_group before the session",
                )
            self._warn("torch.distributed is not initialised: caps are left alone")
        gpus = meter.gpus
        if ranks.count > 1 and len(gpus) > 1:
            gpus = gpus[ranks.local_rank % len(gpus) :][:1]
        self.gpus = gpus
        self._kind = gpus[0].kind or gpus[0].name if gpus else ""
        self._max_w = ranks.reduce_sum(sum_max_caps(gpus))
        self._window = EnergyWindow(meter, gpus)
        self._resources.callback(self._window.end)
        self._resume()
        self._start_position = replace(self.position)
        self._start_s = self._progress_s = self._saved_s = meter.now_s()
        self._open_history()
        guard = self._resources.enter_context(guard_caps(gpus, warn=self._warn_once))
        self._history_key = (
            f"{self.group or get_script_name()} on {len(gpus)} x {ranks.count} GPUs, {self.aim}"
        )
        self.caps = CapTuner(
            gpus,
            guard,
            self.aim,
            length=self._window_length if ranks.count == 1 else replace(self._window_length, seconds=0.0),
            ranks=ranks,
            observe=self.observe,
            known=self._history.read_caps(self._history_key, self.batch_size, self._kind),
            fixed=self.environment.cap_w,
            warn=self._warn_once,
        )
        self._epoch_start_cost_j = self.cost_j
        if self.environment.max_cost_j is not None and math.isnan(self.cost_j):
            self._warn("WATTLINE_MAX_COST_J is ignored: energy cannot be measured here")
        self._stop_signal.install()
        self._write_event("began", kind=self._kind, resumed=self.resumed, method=self._window.read().method)

    def _resume(self) -> None:
        """Resume from the newest checkpoint; a recurring job that has ended starts from the beginning."""
        if self._checkpoints is None:
            return
        if self.ranks.is_first:
            self._checkpoints.claim()
            self._resources.callback(self._checkpoints.release)
        position = self._checkpoints.read()
        if position is None or (position.over and self.group):
            return
        self._checkpoints.load()
        position.over = False
        if not self.ranks.is_first:
            position.joules = None  # the first rank counts the energy before the checkpoint
        self.position, self.resumed = position, True
        self._skip, self.reached = position.step, position.reached
        self.batch_size = self.environment.batch_size or position.batch or self.batch_size

    def _open_history(self) -> None:
        """Open the history, and choose the batch size of a recurring job, on the first rank for all."""
        problem: WattlineError | None = None
        chosen = 0
        if self.ranks.is_first:
            try:
                self._history.open(self._history_path)
                self._resources.callback(self._history.close)
                if self.group:
                    self._history.join_group(self.group, self._kind, self._max_w or 1.0, self._eta)
                    if self._batch_sizes and not self.resumed:
                        default = self.batch_size or self._batch_sizes[0]
                        chosen = self._history.choose_batch_size(self._batch_sizes, default, self._warn)
            except WattlineError as error:
                problem = error
            except sqlite3.Error as error:
                problem = ConfigError(f"the history of recurring jobs cannot be used: {error}")
        if problem is not None and not self._batch_sizes and self._history_path is None:
            self._warn_once(f"results of this job are not stored: {problem.message}")
            problem = None
            self._history.close()
        if self.ranks.any(problem is not None):
            raise problem or ConfigError("the first rank could not choose a batch size")
        if self._batch_sizes and not self.resumed:
            self.batch_size = int(self.ranks.broadcast_first(chosen))
        self.position.batch = self.batch_size

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            code = error.code if isinstance(error, SystemExit) else None
            clean = error is None or (isinstance(error, SystemExit) and code in (None, 0))
            if code != YIELDED:
                self._report_progress()
                how = "failed" if not clean else "reached" if self.reached else self.stopped or "ended"
                if clean and self._checkpoints is not None and self.position.steps and self.ranks.is_first:
                    self.position.over = not self.stopped
                    self._checkpoints.write(self.position)
                self._write_event("ended", how=how, saves=self.caps.saves, observed=self.observe)
                self._history.record_end(
                    self.batch_size,
                    failed=how == "failed",
                    reached=how == "reached" or (how == "ended" and self.target is None),
                    seconds=self.seconds,
                    joules=self.energy_j,
                    epochs=self.position.epoch + (1 if self.position.step else 0),
                )
        finally:
            self._closed = True
            self._stop_signal.remove()
            self._resources.close()
            if self._stop_signal.is_requested and not self._has_loop:
                self._stop_signal.send_again()

    # -- training loop

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the remaining epochs, from the checkpoint's to *count*, the target or the cost bound."""
        self._has_loop, self._epoch_count = True, count
        while self.position.epoch < count and not self.reached and not self.stopped:
            yield self.position.epoch
            self._end_epoch(count)

    def steps(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield the batches of *loader* without those before the checkpoint's step.

        Only the first loop of an epoch is counted; others, such as one over validation data, are not.
        """
        self._loops += 1
        if self._loops > 1:
            yield from loader
            return
        skip, self._skip = self._skip, 0
        self._steps_per_epoch = getattr(loader, "__len__", lambda: self._steps_per_epoch)()
        is_profiled = bool(os.environ.get(step_counter.PIPE))
        for number, batch in enumerate(loader):
            if number < skip:
                continue
            self._save_or_yield()
            if self.stopped:
                self._epoch_interrupted = True
                return
            try:
                yield batch
            except GeneratorExit:  # the user leaves the loop after this batch
                self._record_step(count_samples(batch) or self.batch_size)
                raise
            if is_profiled:
                step_counter.step()
            self._record_step(count_samples(batch) or self.batch_size)

    def report(self, **metrics: float) -> bool:
        """Report metrics of the model; return True if the target is reached, which ends `epochs`."""
        self.metrics = {name: float(value) for name, value in metrics.items()}
        target = self.target
        if target is not None and target.metric not in self.metrics:
            raise ConfigError(
                f"report got {', '.join(metrics) or 'no metric'}, "
                f"expected {target.metric}, which has the target"
            )
        if target is not None and not math.isnan(value := self.metrics[target.metric]):
            self.position.best = target.select_better(self.position.best, value)
            self.position.reached = self.position.reached or target.is_reached(value)
            self.reached = self.position.reached if self.ranks.is_alone else self.reached
        self._write_event("report", metrics=self.metrics)
        return self.position.reached

    @property
    def energy_j(self) -> float | None:
        """Joules so far, including earlier processes, and other ranks up to the end of the last epoch.

        None: unmetered, or counted by another process on the same GPU.
        """
        if self._closed:
            return self.position.joules
        own_j, before_j = self._process_energy_j(), self._start_position.joules
        return own_j + self._others_j + (before_j or 0.0) if own_j is not None else before_j

    @property
    def seconds(self) -> float:
        """Seconds so far on the meter's clock, including earlier processes."""
        if self._closed:
            return self.position.seconds
        return self._start_position.seconds + self._meter.now_s() - self._start_s

    @property
    def cost_j(self) -> float:
        """Zeus' cost of energy and time so far, of all ranks; nan: unmetered."""
        energy = self.energy_j
        if energy is None:
            return math.nan
        if self._max_w <= 0:
            return energy  # without the largest power, time has no cost in joules
        energy_j, seconds = np.array([energy]), np.array([self.seconds])
        return float(energy_time_cost(energy_j, seconds, eta=self._eta, max_w=self._max_w)[0])

    # -- internals

    @property
    def _eta(self) -> float:
        return self.aim.amount if self.aim is not None and self.aim.by == "cost" else _ETA

    def _process_energy_j(self) -> float | None:
        """Return the joules of this process's GPUs since it started; None: unmetered."""
        parts = self._window.read().parts
        known = [part.energy_j for part in parts if part.counted and part.energy_j is not None]
        return sum(known) if known else None

    def _record_step(self, samples: float) -> None:
        try:
            self._meter.stepped(samples or 1)
        except MeterError as error:
            self._warn_once(error.message)
        position = self.position
        position.step += 1
        position.steps += 1
        position.samples += samples
        if self.caps.is_searching:
            self._search_cap()
        if self._meter.now_s() - self._progress_s >= _PROGRESS_S:
            self._report_progress()

    def _search_cap(self) -> None:
        energy_j: float | None = 0.0  # not read unless a window starts or ends
        if self.caps.needs_reading:
            synchronize_gpu()
            energy_j = self._window.read().energy_j
        if self.caps.record_step(self._meter.now_s(), energy_j):
            search = self.caps.search
            assert search is not None
            measurements = search.measurements
            self._write_event("cap", cap_w=search.best.cap_w, saves=self.caps.saves, tried=len(measurements))
            self._history.write_caps(self._history_key, self.batch_size, self._kind, measurements)

    def _end_epoch(self, count: int) -> None:
        self.caps.end_epoch()
        self._loops = self._skip = 0
        if self._epoch_interrupted:
            self._epoch_interrupted = False
        else:
            self.position.epoch, self.position.step = self.position.epoch + 1, 0
        self._synchronize_ranks()
        self._report_progress()
        self._stop_if_hopeless()
        if self._checkpoints is not None:
            self._save()
        has_more = self.position.epoch < count and not self.reached and not self.stopped
        if self.ranks.any(self._stop_signal.is_requested) and has_more:
            self._yield_job()

    def _synchronize_ranks(self) -> None:
        """Add up the energy of all ranks, and agree on whether the target is reached."""
        if self.ranks.is_alone:
            return
        self.reached = self.position.reached = self.ranks.any(self.position.reached)
        own_j = self._process_energy_j() or 0.0
        self._others_j = self.ranks.reduce_sum(own_j) - own_j

    def _save_or_yield(self) -> None:
        """Save or yield between two batches if either is due; all ranks do so at the same step."""
        if not self.ranks.is_alone and self.position.steps % _SYNC_STEPS:
            return
        can_save = self._checkpoints is not None and not self.caps.is_measuring
        is_due = can_save and self._meter.now_s() - self._saved_s >= self._save_interval_s
        request = self.ranks.reduce_max(
            _YIELD if self._stop_signal.is_requested else _SAVE if is_due else 0.0
        )
        if request >= _YIELD:
            self._synchronize_ranks()
            self._yield_job()
        if request >= _SAVE:
            self._save()

    def _yield_job(self) -> None:
        """Save, wait until the first rank has saved, and exit."""
        self._report_progress()
        self._save()
        self.ranks.any(True)
        self._write_event("yielded")
        raise SystemExit(YIELDED)

    def _report_progress(self) -> None:
        """Read the meter, write a progress event, and check the cost bound if there is one rank.

        Several ranks check the bound together between epochs.
        """
        self._progress_s = self._meter.now_s()
        self.position.seconds, self.position.joules = self.seconds, self.energy_j
        self._write_event("progress")
        max_cost_j = self.environment.max_cost_j
        if max_cost_j is not None and self.ranks.is_alone and self.cost_j > max_cost_j:
            self.stopped = self.stopped or "cost bound"

    def _stop_if_hopeless(self) -> None:
        """Stop a run that exceeds its cost bound, or cannot become cheaper than the best known batch size."""
        cost_j, before_j, max_cost_j = self.cost_j, self._epoch_start_cost_j, self.environment.max_cost_j
        self._epoch_start_cost_j = cost_j
        max_epochs = self._history.max_epochs(cost_j - before_j)
        is_hopeless = max_epochs is not None and self.position.epoch >= max_epochs
        is_over = max_cost_j is not None and cost_j > max_cost_j
        has_bound = bool(self._batch_sizes) or max_cost_j is not None
        if has_bound and self.ranks.any(is_hopeless or is_over) and not self.reached:
            self.stopped = self.stopped or "cost bound"

    def _save(self) -> None:
        if self._checkpoints is None:
            return
        self.position.seconds, self.position.joules = self.seconds, self.energy_j
        if self.ranks.is_first:
            self._checkpoints.write(self.position)
        self._saved_s = self._meter.now_s()
        self.caps.restart_window()  # saving took time that is not part of a step

    def _warn_once(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.add(text)
            self._warn(text)

    def _warn(self, text: str) -> None:
        rank = "" if self.ranks.is_first else f" (rank {self.ranks.rank})"
        print(f"wattline{rank}: {text}", file=sys.stderr, flush=True)

    def _write_event(self, event: str, **fields: Any) -> None:
        """Write a progress event; only the first rank does."""
        if self.ranks.is_first:
            self._events.write(
                event, {**asdict(self.position), "fraction": self._completed_fraction(), **fields}
            )

    def _completed_fraction(self) -> float | None:
        """Return the completed fraction of the epochs; None: unknown."""
        if not self._epoch_count:
            return None
        of_epoch = self.position.step / self._steps_per_epoch if self._steps_per_epoch else 0.0
        return min((self.position.epoch + min(of_epoch, 1.0)) / self._epoch_count, 1.0)

"""One training run: what `wattline.Session` does at each step, at each epoch, and at its end.

The faces of a session (iterators, and `step` and `epoch` for frameworks that own the loop) call the methods
here, so that caps, energy, progress events, checkpoints and recurrence do not depend on the face.
"""

from __future__ import annotations

import math
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from wattline.errors import ConfigError, MeterError, WattlineError
from wattline.measurement.counter_period import MIN_WINDOW_S
from wattline.meter import Meter
from wattline.meter.caps.guard import guard_caps
from wattline.meter.energy_window import EnergyWindow
from wattline.meter.gpu_names import name_gpu_kind
from wattline.meter.gpu_sync import synchronize_gpus
from wattline.meter.neighbours import describe_neighbours, find_disturbance
from wattline.meter.sources import use_meter
from wattline.models.cost import energy_time_cost
from wattline.profiler.cap_aim import Aim
from wattline.profiler.cap_window import WindowLength
from wattline.train.attempt_watch import AttemptWatch
from wattline.train.caps import CapTuner
from wattline.train.checkpoint import Checkpoints, StateFunction, TrainingPosition
from wattline.train.environment import JobEnvironment, Target
from wattline.train.introspection import describe_device, get_script_name, sum_max_caps
from wattline.train.job_history import JobHistory
from wattline.train.progress_events import EventWriter
from wattline.train.ranks import Ranks
from wattline.train.spent_energy import SpentEnergy
from wattline.train.stop_signal import StopSignal

YIELDED = 75
"""Exit code of a job that has written a checkpoint and is to be started again."""

SYNC_STEPS = 16
"""Steps between two agreements of the ranks on saving and yielding."""

_PROGRESS_S = 1.0  # between two progress events
_CLAIM_S = 60.0  # for an earlier attempt on a node that came back to notice this one, and leave
_ETA = 0.5  # of the cost bound, if the aim has none
_SAVE, _YIELD = 1.0, 2.0  # requests of a rank to all; the largest wins


class TrainingRun:
    """State and bookkeeping of one training run; `wattline.Session` has the parameters and the faces."""

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
        self.resumed = self._resume_reported = False
        folder = environment.checkpoints or (Path(checkpoints) if checkpoints else None)
        self._checkpoints = None if folder is None else Checkpoints(folder, save, load)
        self._spent = SpentEnergy(folder)
        self._save_interval_s = every_s
        self._window_length = window or WindowLength()
        self._meter_option = meter
        self._history_path = memory
        self._history = JobHistory(self._warn_once)
        self._stop_signal = StopSignal(
            environment.stop_signal, lambda: self._checkpoints is not None, environment.grace_s
        )
        self._attempt = AttemptWatch(environment.attempt)
        self._opened = self._closed = self._has_loop = False
        self._is_pushed = False  # the framework owns the loop, so that a stop is only asked for
        self._is_yielding = False  # saved on request, and to end with YIELDED
        self._epoch_interrupted = False
        self._warnings: set[str] = set()
        self._skip = 0  # steps of the epoch that the checkpoint already contains
        self._epoch_count = self._steps_per_epoch = 0  # 0 = unknown
        self._saved_steps = -1  # steps at the last checkpoint of this process
        self._others_j = 0.0  # joules of the other ranks at the last synchronisation
        self._events = EventWriter(environment.events, environment.job_id, self._warn_once)
        self._resources = ExitStack()

    def _start(self, meter: Meter) -> None:
        """Start measuring with *meter*, resume from a checkpoint, and start the search for a cap."""
        ranks = self.ranks
        self._meter = meter
        self._resources.enter_context(use_meter(meter))
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
        self._kind = name_gpu_kind(gpus[0]) if gpus else ""
        self._max_w = ranks.reduce_sum(sum_max_caps(gpus))
        self._window = EnergyWindow(meter, gpus)
        self._resources.callback(self._window.end)
        self._resume()
        self._start_position = replace(self.position)
        self._start_s = self._progress_s = self._saved_s = meter.now_s()
        self._open_history()
        guard = self._resources.enter_context(guard_caps(gpus, warn=self._warn_once))
        if not (self.environment.is_scheduled and self.group):  # the service keeps those
            count, job = int(ranks.reduce_sum(len(gpus))), self.group or get_script_name()
            self._history.set_key(job, self._kind, count, describe_device(meter, gpus))
        self.caps = CapTuner(
            gpus,
            guard,
            self.aim,
            length=self._window_length,
            ranks=ranks,
            observe=self.observe,
            known=()
            if self.environment.is_scheduled and self.group
            else self._history.read_caps(self.batch_size),
            fixed=self.environment.cap_w,
            warn=self._warn_once,
        )
        self._costed = self.position.epoch, self.seconds, self.cost_j
        if self.environment.max_cost_j is not None and math.isnan(self.cost_j):
            self._warn("WATTLINE_MAX_COST_J is ignored: energy cannot be measured here")
        for line in describe_neighbours(gpus):
            self._warn_once(line)
        self._stop_signal.install()
        self._write_event("began", kind=self._kind, resumed=self.resumed, method=self.energy_method)

    def _resume(self) -> None:
        """Resume from the newest checkpoint; a recurring job that has ended starts from the beginning."""
        if self._checkpoints is None:
            return
        if self.ranks.is_first:
            self._checkpoints.claim(_CLAIM_S if self.environment.is_scheduled else 0.0)
            self._resources.callback(self._checkpoints.release)
        saved = self._checkpoints.read()
        if saved is not None and saved.over and self.group:
            self._spent.remove()
            return
        position = saved or self.position
        self._spent.add_to(position, self._warn if self.ranks.is_first else None)
        if not self.ranks.is_first:
            position.joules = None  # the first rank counts the energy before the checkpoint
        if saved is None:
            return
        self._checkpoints.load()
        position.over = False
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
    def energy_method(self) -> str:
        """Method of the energy measurement: `nvml energy counter`, `simulated`, `unmetered` …"""
        return " and ".join(dict.fromkeys(gpu.method for gpu in self._meter.gpus)) or "unmetered"

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

    @property
    def _eta(self) -> float:
        return self.aim.amount if self.aim is not None and self.aim.by == "cost" else _ETA

    def _process_energy_j(self) -> float | None:
        """Return the joules of this process's GPUs since it started; None: unmetered."""
        parts = self._window.read().parts
        known = [part.energy_j for part in parts if part.counted and part.energy_j is not None]
        return sum(known) if known else None

    def _record_step(self, samples: float) -> None:
        if self.resumed and not self._resume_reported:
            self._resume_reported = True  # the fraction of the checkpoint is known from here on
            self._write_event("resumed")
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
        if self.caps.needs_reading:
            synchronize_gpus()
        if self.caps.record_step(self._meter.now_s(), *self._read_gpus(self.caps.needs_reading)):
            self._record_caps()

    def _read_gpus(self, needed: bool) -> tuple[tuple[float, ...], str]:
        """Return the joules of each GPU that can be read, and what disturbs them; read if *needed*."""
        if not needed:
            return (0.0,), ""
        parts = self._window.read().parts
        counters_j = tuple(part.energy_j for part in parts if part.energy_j is not None)
        return counters_j, find_disturbance(self.gpus) if self.caps.needs_check else ""

    def _record_caps(self) -> None:
        """Report and store the caps that were measured."""
        assert self.caps.search is not None
        self._write_event("cap", aim=str(self.aim), **self.caps.describe())
        self._history.write_caps(self.batch_size, str(self.aim), self.caps.search.measurements)

    def _end_epoch(self) -> None:
        """Record the end of an epoch, also of one that was interrupted, and stop, save or yield if due."""
        if self.caps.end_epoch(self._meter.now_s(), *self._read_gpus(self.caps.needs_epoch_reading)):
            self._record_caps()
        self._skip = 0
        if self._epoch_interrupted:
            self._epoch_interrupted = False
        else:
            self.position.epoch, self.position.step = self.position.epoch + 1, 0
        self._synchronize_ranks()
        self._report_progress()
        self._stop_if_hopeless()
        if self._checkpoints is not None:
            self._save()
        has_more = not self._is_complete and not self.reached and not self.stopped
        if self.ranks.any(self._stop_signal.is_requested) and has_more and not self._is_yielding:
            self._yield_job()

    @property
    def _is_complete(self) -> bool:
        """True if all epochs are done; False if their number is unknown."""
        return 0 < self._epoch_count <= self.position.epoch

    def _synchronize_ranks(self) -> None:
        """Add up the energy of all ranks, and agree on whether the target is reached."""
        if self.ranks.is_alone:
            return
        self.reached = self.position.reached = self.ranks.any(self.position.reached)
        own_j = self._process_energy_j() or 0.0
        self._others_j = self.ranks.reduce_sum(own_j) - own_j

    def _save_or_yield(self) -> None:
        """Save or yield between two batches if either is due; all ranks do so at the same step."""
        if self._is_yielding or (not self.ranks.is_alone and self.position.steps % SYNC_STEPS):
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
        """Save, wait until the first rank has saved, and exit, or ask the framework to end its loop."""
        self._report_progress()
        self._save()
        self.ranks.any(True)
        if self._is_pushed:
            self._is_yielding = True
            return
        self._write_event("yielded")
        raise SystemExit(YIELDED)

    def _report_progress(self) -> None:
        """Read the meter, write a progress event, and check the cost bound if there is one rank.

        Several ranks check the bound together between epochs.
        """
        self._progress_s = self._meter.now_s()
        self._leave_if_superseded()
        self._follow_orders()
        self.position.seconds, self.position.joules = self.seconds, self.energy_j
        self._write_event("progress")
        if self.ranks.is_first:
            self._spent.write(self.position)
        max_cost_j = self.environment.max_cost_j
        if max_cost_j is not None and self.ranks.is_alone and self.cost_j > max_cost_j:
            self.stopped = self.stopped or "cost bound"

    def _leave_if_superseded(self) -> None:
        """End this process without saving if the service has started a newer attempt at the job."""
        if self._attempt.is_superseded():
            self._warn_once("a newer attempt at this job was started: this one ends and saves nothing")
            raise SystemExit(YIELDED)

    def _follow_orders(self) -> None:
        """Set the power limit that the service has ordered; not while all ranks try caps together."""
        if self.caps.is_searching and not self.ranks.is_alone:
            return
        cap_w = self._attempt.read_cap_w()
        if cap_w is not None:
            self.caps.follow_order(cap_w)

    def _stop_if_hopeless(self) -> None:
        """Stop a run that exceeds its cost bound, or cannot become cheaper than the best known batch size."""
        cost_j, max_cost_j = self.cost_j, self.environment.max_cost_j
        epoch, seconds, before_j = self._costed
        epochs, max_epochs = self.position.epoch - epoch, None
        if epochs > 0 and self.seconds - seconds >= MIN_WINDOW_S:  # a shorter epoch cannot be metered alone
            max_epochs = self._history.max_epochs((cost_j - before_j) / epochs)
            self._costed = self.position.epoch, self.seconds, cost_j
        is_hopeless = max_epochs is not None and self.position.epoch >= max_epochs
        is_over = max_cost_j is not None and cost_j > max_cost_j
        has_bound = bool(self._batch_sizes) or max_cost_j is not None
        if has_bound and self.ranks.any(is_hopeless or is_over) and not self.reached:
            self.stopped = self.stopped or "cost bound"

    def _save(self) -> None:
        if self._checkpoints is None:
            return
        self._leave_if_superseded()
        self.position.seconds, self.position.joules = self.seconds, self.energy_j
        if self.ranks.is_first:
            self._checkpoints.write(self.position)
            if self._checkpoints.has_state:  # else only the position was saved
                self._write_event("saved")
        self._saved_s, self._saved_steps = self._meter.now_s(), self.position.steps
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

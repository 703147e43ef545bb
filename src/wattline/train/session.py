"""`wattline.Session`: the lines that a user adds to a training script.

    with wattline.Session() as run:                  with wattline.Session() as run:
        for epoch in run.epochs(100):                    framework.fit(callbacks=[...])
            for batch in run.steps(loader):                  # after each step:   run.step(samples)
                ...                                          # after each epoch:  run.epoch(accuracy=acc)
            run.report(accuracy=acc)                         # then: stop if run.should_stop

On the left the session iterates; on the right a framework owns the loop and calls the session (Keras,
Lightning, Trainer of transformers, JAX). Both do the same: a session counts steps, measures energy, finds
the best power cap while the job trains and writes checkpoints. It ends with a checkpoint when the scheduler
asks it to yield, and stops when the target is reached or the cost bound is exceeded. It works alone, under
torchrun and under the service, which sets WATTLINE_* variables (see `train.environment`).
"""

from __future__ import annotations

import atexit
import math
import os
import sys
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TypeVar

from wattline.errors import ConfigError
from wattline.meter import Meter, open_meter
from wattline.profiler import step_counter
from wattline.train.introspection import count_samples
from wattline.train.recurrence import is_out_of_memory
from wattline.train.training_run import YIELDED, TrainingRun

T = TypeVar("T")


class Session(TrainingRun):
    """One training run.

    *save* and *load* write and read the user's state at a path; *target* is such as `accuracy>=0.6`. *aim*
    defines the best power cap: `energy`, `time`, `cost:0.5`, `slowdown:1.1`, `watts:200`, or `none` to leave
    caps alone. With *observe* caps are tried and then restored. A recurring job has a *group*, and its
    `batch_size` is chosen from *batch_sizes*. Environment variables override the parameters.
    """

    _loops = 0  # calls of `steps` in this epoch
    _iterates_steps = _iterates_epochs = False  # inside the iterators

    # -- start and end

    def open(self) -> Session:
        """Start the run as `with` does, for callbacks that have no block; `close` ends it."""
        self._open()
        atexit.register(self._close_at_exit)
        return self

    def close(self, error: BaseException | None = None) -> None:
        """End the run; *error* is the exception that ended the training, if any.

        A run that was asked to yield has saved a checkpoint, and ends the process with exit code 75.
        """
        atexit.unregister(self._close_at_exit)
        if self._opened and not self._closed:
            self._finish(error)

    def __enter__(self) -> Session:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    def _open(self) -> None:
        if self._opened:
            state = "ended" if self._closed else "already started"
            raise ConfigError(f"this session has {state}, expected a new one for each run")
        self._opened = True
        if isinstance(self._meter_option, Meter):
            meter = self._meter_option
        else:
            meter = open_meter(self._meter_option or "auto")
            self._resources.callback(meter.close)
        try:
            self._start(meter)
        except BaseException:
            self._closed = True
            self._resources.close()
            raise

    def _finish(self, error: BaseException | None) -> None:
        code = error.code if isinstance(error, SystemExit) else None
        clean = error is None or (isinstance(error, SystemExit) and code in (None, 0))
        yields = self._is_yielding and clean and not self.reached and not self._is_complete
        try:
            if yields:
                self._report_progress()
                if self._saved_steps != self.position.steps:  # the framework went on training
                    self._save()
                    self.ranks.any(True)  # the first rank has saved
                self._write_event("yielded")
            elif code != YIELDED:
                self._end(clean, error)
        finally:
            self._closed = True
            self._stop_signal.remove()
            self._resources.close()
            if self._stop_signal.is_requested and not self._has_loop:
                self._stop_signal.send_again()
        if yields:
            raise SystemExit(YIELDED)

    def _end(self, clean: bool, error: BaseException | None) -> None:
        """Write the last checkpoint and event, and the outcome for the next run of a recurring job."""
        self._report_progress()
        how = "failed" if not clean else "reached" if self.reached else self.stopped or "ended"
        if clean and self._checkpoints is not None and self.position.steps and self.ranks.is_first:
            self.position.over = not self.stopped
            self._checkpoints.write(self.position)
            self._spent.remove()
        no_memory = not clean and is_out_of_memory(error)
        self._write_event(
            "ended", how=how, saves=self.caps.saves, observed=self.observe, out_of_memory=no_memory
        )
        self._history.record_end(
            self.batch_size,
            failed=how == "failed",
            out_of_memory=no_memory,
            reached=how == "reached" or (how == "ended" and self.target is None),
            # A kill is no evidence on the batch size.
            seconds=self.seconds - self.position.lost_seconds,
            joules=None if self.energy_j is None else self.energy_j - self.position.lost_joules,
            epochs=self.position.epoch + (1 if self.position.step else 0),
            method=self.energy_method,
        )

    def _close_at_exit(self) -> None:
        """End a run that was opened and never closed, with the exit code that the scheduler expects."""
        error = getattr(sys, "last_value", None)  # the exception that ended the interpreter
        self._warn("the session was not closed: type run.close() after training")
        try:
            self.close(error)
        except SystemExit:  # has no effect in a function called at exit
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(YIELDED)

    # -- the session iterates

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the remaining epochs, from the checkpoint's to *count*, the target or the cost bound."""
        self._has_loop, self._epoch_count = True, count
        while self.position.epoch < count and not self.reached and not self.stopped:
            self._iterates_epochs = True
            try:
                yield self.position.epoch
            finally:
                self._iterates_epochs = False
            self._end_epoch()

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
        self._iterates_steps = True
        try:
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
        finally:
            self._iterates_steps = False

    # -- a framework owns the loop

    def expect(self, epochs: int = 0, steps: int = 0) -> None:
        """State the number of epochs and of steps in an epoch, for the completed fraction; 0: unknown."""
        for name, number in (("epochs", epochs), ("steps", steps)):
            if number < 0:
                raise ConfigError(f"{name} is {number}, expected a whole number from 0 up")
        self._epoch_count, self._steps_per_epoch = int(epochs), int(steps)

    def step(self, samples: float | None = None) -> None:
        """Record a finished training step of *samples* samples; None: the batch size of the session.

        If a checkpoint is due or the scheduler asks the job to yield, the checkpoint is written here.
        """
        if self._iterates_steps:
            raise ConfigError("run.step is called inside run.steps(...), which counts the steps itself")
        count = float(self.batch_size if samples is None else samples)
        if not 0 <= count < math.inf:
            raise ConfigError(f"a step has {samples} samples, expected a number from 0 up")
        self._push("step")
        if os.environ.get(step_counter.PIPE):
            step_counter.step()
        self._record_step(count)
        is_last = self.position.step == self._steps_per_epoch  # `epoch` saves and yields
        if not is_last:
            self._save_or_yield()
        self._epoch_interrupted = self.should_stop and not is_last

    def epoch(self, **metrics: float) -> bool:
        """Record the end of an epoch, with metrics as `report` takes them; return `should_stop`.

        An epoch that was stopped before its last step is not counted as done.
        """
        if self._iterates_epochs:
            raise ConfigError("run.epoch is called inside run.epochs(...), which counts the epochs itself")
        self._push("epoch")
        if metrics:
            self.report(**metrics)
        self._end_epoch()
        return self.should_stop

    @property
    def should_stop(self) -> bool:
        """True if training should end: asked to yield, target reached, cost bound exceeded, or all done.

        It has the same value on all ranks.
        """
        return self._is_yielding or self.reached or bool(self.stopped) or self._is_complete

    def _push(self, call: str) -> None:
        if self._closed:
            raise ConfigError(f"run.{call} is called after the session has ended")
        if not self._opened:
            self.open()
        self._is_pushed = self._has_loop = True

    def _end_epoch(self) -> None:
        self._loops = 0
        super()._end_epoch()

    # -- both

    def report(self, **metrics: float) -> bool:
        """Report metrics of the model; return True if the target is reached, which ends the run."""
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

"""The lines a user adds to a training script.

    with wattline.Session() as run:
        for epoch in run.epochs(100):
            for batch in run.steps(loader):
                ...
            run.report(accuracy=acc)

It counts steps, measures energy, finds the best power cap while the job trains, keeps checkpoints, and does
what it is told: yields when it is asked to, stops when the target is reached or the cost bound is passed.
It works alone, under torchrun and under the service, which talk to it by WATTLINE_* (see `train.settings`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

import numpy as np

from wattline.errors import ConfigError, MeterError
from wattline.meter import Meter, open_meter
from wattline.meter.energy import Window
from wattline.meter.hold import hold
from wattline.model.cost import energy_time_cost
from wattline.profile import steps as pipe
from wattline.profile.window import Aim, Length
from wattline.train.caps import Caps
from wattline.train.checkpoint import Checkpoints, Keep, Where
from wattline.train.memory import Memory
from wattline.train.ranks import Ranks
from wattline.train.recurrence import Recurrence
from wattline.train.settings import Target, Told

T = TypeVar("T")

YIELDED = 75
"""Exit code of a job that has saved its work and wants to be started again."""

_LOOK_S = 1.0  # between two looks at the meter, and two reports
_AGREE = 16  # steps between two questions whether some rank was asked to stop
_MOST_EPOCHS = 1000  # nobody says how many a run may take; the tuner's bound is about cost
_ETA = 0.5  # of the cost bound, if the aim has none


class Session:
    """One training run.

    *save* and *load* keep the user's state at a path; *target* is `accuracy>=0.6`, *aim* what makes a power
    cap the best (`energy`, `time`, `cost:0.5`, `slowdown:1.1`, `watts:200`; `none`: leave caps alone). With
    *observe* everything is measured, nothing changed. A job that runs again and again has a *group*: with
    *batch_sizes* that it may use, `batch_size` is the one that is worth trying now. What the environment says
    goes first.
    """

    def __init__(
        self,
        *,
        save: Keep | None = None,
        load: Keep | None = None,
        target: str | None = None,
        aim: str = "cost:0.5",
        observe: bool = False,
        batch_size: int | None = None,
        batch_sizes: Sequence[int] = (),
        group: str = "",
        checkpoints: str | Path | None = None,
        every_s: float = 600.0,
        window: Length | None = None,
        meter: str | Meter | None = None,
        memory: str | Path | None = None,
    ) -> None:
        told = Told.read()
        self.told = told
        self.ranks = Ranks()
        self.batch_size = told.batch_size or batch_size or 0
        self.group = told.group or group  # empty: it does not recur
        self._batches = () if told.batch_size else tuple(batch_sizes)
        if self._batches and not self.group:
            raise ConfigError("batch_sizes are given without a group, expected group= or WATTLINE_GROUP")
        self.target = told.target or (Target.parse(target) if target else None)
        self.aim = told.aim or (None if aim == "none" else Aim.parse(aim))
        self.observe = told.observe or observe
        self.where = Where()
        self.metrics: dict[str, float] = {}
        self.reached = False
        self.stopped = ""  # why it ended before its epochs were over
        self.resumed = False
        folder = told.checkpoints or (Path(checkpoints) if checkpoints else None)
        self._checkpoints = None if folder is None else Checkpoints(folder, save, load)
        self._every_s = every_s
        self._length = window or Length()
        self._given = meter
        self._memory_path = memory
        self._asked = False
        self._over = False
        self._told: set[str] = set()
        self._skip = 0
        self._open = ExitStack()
        self._before: Any = None

    # -- the block

    def __enter__(self) -> Session:
        meter = self._given if isinstance(self._given, Meter) else open_meter(self._given or "auto")
        self._meter = meter
        self._open.callback(meter.close)
        try:
            self._enter(meter)
        except BaseException:
            self._open.close()
            raise
        return self

    def _enter(self, meter: Meter) -> None:
        gpus = meter.gpus
        if self.ranks.count > 1 and len(gpus) > 1:
            gpus = gpus[self.ranks.local % len(gpus) :][:1]
        self.gpus = gpus
        self._max_w = sum(gpu.cap_range_w()[1] for gpu in gpus) or 1.0
        self._window = Window(meter, gpus)
        self._open.callback(self._window.end)
        self._memory = Memory.open(self._memory_path) if self.ranks.first else None
        if self._memory is not None:
            self._open.callback(self._memory.close)
        if self._checkpoints is not None and (found := self._checkpoints.read()) is not None:
            self.where, self.resumed, self._skip = found, True, found.step
        self._base = replace(self.where)
        held = self._open.enter_context(hold(gpus, tell=self._tell))
        kind = gpus[0].kind or gpus[0].name if gpus else ""
        self._kind = kind
        self._recur(kind)
        self._job = self.group or _script()
        known = () if self._memory is None else self._memory.profile(self._job, self.batch_size, kind)
        self.caps = Caps(
            gpus,
            held,
            self.aim,
            length=self._length if self.ranks.count == 1 else replace(self._length, seconds=0.0),
            combine=self.ranks.slowest_and_sum,
            ranks=self.ranks.count,
            observe=self.observe,
            known=known,
            fixed=self.told.cap_w,
            tell=self._tell,
        )
        self._listen()
        self._began_s = self._looked_s = self._saved_s = meter.now_s()
        self._epoch_from_j = self.cost_j
        self._say("began", kind=kind, resumed=self.resumed, method=self._window.so_far().method)

    def _recur(self, kind: str) -> None:
        """Choose the batch size of this recurrence: the first rank does, for all."""
        self._recurrence: Recurrence | None = None
        if self.group and self._memory is not None:
            self._recurrence = Recurrence(self._memory, self.group, kind, self._max_w, self._eta)
        if not self._batches or self.resumed:
            return
        chosen = 0
        if self._recurrence is not None:
            chosen = self._recurrence.choose(self._batches, self.batch_size or self._batches[0], _MOST_EPOCHS)
        self.batch_size = self.ranks.of_first(chosen)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._look()
            yielded = isinstance(error, SystemExit) and error.code == YIELDED
            if not yielded:
                how = "failed" if kind is not None else "reached" if self.reached else self.stopped or "ended"
                self._say("ended", how=how, saves=self.caps.saves, observed=self.observe)
                self._remember(how)
        finally:
            self._over = True
            self._unlisten()
            self._open.close()

    # -- the loop

    def epochs(self, count: int) -> Iterator[int]:
        """Epochs still to do: from where a checkpoint was, until *count*, the target or the cost bound."""
        while self.where.epoch < count and not self.reached and not self.stopped:
            yield self.where.epoch
            self._epoch_ended()

    def steps(self, loader: Iterable[T]) -> Iterator[T]:
        """The batches of *loader*; those that a checkpoint has behind it are left out."""
        skip, self._skip = self._skip, 0
        piped = bool(os.environ.get(pipe.PIPE))
        for number, batch in enumerate(loader):
            if number < skip:
                continue
            yield batch
            if piped:
                pipe.step()
            self._stepped(_samples(batch) or self.batch_size)
            if self.stopped:
                return

    def report(self, **metrics: float) -> bool:
        """Tell how good the model is; answers whether the target is reached, which ends `epochs`."""
        self.metrics = {name: float(value) for name, value in metrics.items()}
        target = self.target
        if target is not None and target.metric in self.metrics:
            value = self.metrics[target.metric]
            self.where.best = target.better(self.where.best, value)
            self.reached = self.reached or target.reached(value)
        elif target is not None:
            raise ConfigError(
                f"report has {', '.join(metrics) or 'nothing'}, expected {target.metric}: it has the target"
            )
        self._say("report", metrics=self.metrics)
        return self.reached

    @property
    def energy_j(self) -> float | None:
        """Joules so far, also of earlier processes, of the GPUs of this rank; None: unmetered, or counted by
        another process on the same GPU."""
        if self._over:
            return self.where.joules
        parts = self._window.so_far().parts
        known = [part.energy_j for part in parts if part.counted and part.energy_j is not None]
        before = self._base.joules
        return sum(known) + (before or 0.0) if known else before

    @property
    def seconds(self) -> float:
        """Seconds so far, of this and of earlier processes, on the meter's clock."""
        return self.where.seconds if self._over else self._base.seconds + self._meter.now_s() - self._began_s

    def yield_(self) -> None:
        """Save and end with exit code 75, as if asked to."""
        self._asked = True
        self._leave_if_asked(at_once=True)

    # -- inside

    def _stepped(self, samples: float) -> None:
        try:
            self._meter.stepped(samples or 1)
        except MeterError as error:
            self._tell_once(error.message)
        where = self.where
        where.step += 1
        where.steps += 1
        where.samples += samples
        if self.caps.sweep is not None and not self.caps.sweep.done:
            self._try_caps()
        now_s = self._meter.now_s()
        if now_s - self._looked_s >= _LOOK_S:
            self._look()
            if self._checkpoints is not None and now_s - self._saved_s >= self._every_s:
                self._save()
        self._leave_if_asked()

    def _try_caps(self) -> None:
        energy_j = None
        if self.caps.wants_reading:
            _finish_work()
            energy_j = self._window.so_far().energy_j
        if self.caps.stepped(self._meter.now_s(), energy_j):
            sweep = self.caps.sweep
            assert sweep is not None
            self._say("cap", cap_w=sweep.found.cap_w, saves=self.caps.saves, tried=len(sweep.tried))
            if self._memory is not None:
                self._memory.keep_profile(self._job, self.batch_size, self._kind, sweep.tried)

    def _epoch_ended(self) -> None:
        self.caps.epoch_ended()
        self.where.epoch, self.where.step = self.where.epoch + 1, 0
        self._look(at_once=True)
        self._stop_if_hopeless()
        if self._checkpoints is not None:
            self._save()
        self._leave_if_asked(at_once=True)

    def _look(self, at_once: bool = False) -> None:
        """Read the meter, report, and see whether the cost bound is passed; many ranks do that *at_once*."""
        self._looked_s = self._meter.now_s()
        self.where.seconds, self.where.joules = self.seconds, self.energy_j
        self._say("progress")
        bound = self.told.max_cost_j
        if bound is None or self.stopped or not (at_once or self.ranks.count == 1):
            return
        if self.ranks.anybody(self.cost_j > bound):
            self.stopped = "cost bound"

    def _stop_if_hopeless(self) -> None:
        """End a recurrence whose batch size turns out worse than the best that is known."""
        cost_j, before_j = self.cost_j, self._epoch_from_j
        self._epoch_from_j = cost_j
        most = None if self._recurrence is None else self._recurrence.most_epochs(cost_j - before_j)
        hopeless = most is not None and self.where.epoch >= most and not self.reached
        if self._batches and self.ranks.anybody(hopeless) and not self.stopped:
            self.stopped = "cost bound"

    @property
    def cost_j(self) -> float:
        """Zeus' cost of energy and time so far; unmetered energy counts as if drawn at the largest cap."""
        energy = self.energy_j
        energy = self._max_w * self.seconds if energy is None else energy
        energy_j, seconds = np.array([energy]), np.array([self.seconds])
        return float(energy_time_cost(energy_j, seconds, eta=self._eta, max_w=self._max_w)[0])

    @property
    def _eta(self) -> float:
        return self.aim.amount if self.aim is not None and self.aim.by == "cost" else _ETA

    def _save(self) -> None:
        self._saved_s = self._meter.now_s()
        if self._checkpoints is not None and self.ranks.first:
            self.where.seconds, self.where.joules = self.seconds, self.energy_j
            self._checkpoints.write(self.where)

    def _leave_if_asked(self, at_once: bool = False) -> None:
        """Save and end, if some rank was asked to: all of them leave at the same step."""
        alone = self.ranks.count == 1
        if not alone and not at_once and self.where.steps % _AGREE:
            return
        if self._asked if alone else self.ranks.anybody(self._asked):
            self._look()
            self._save()
            self._say("yielded")
            raise SystemExit(YIELDED)

    def _remember(self, how: str) -> None:
        """What became of this recurrence, for the next one's batch size."""
        if self._recurrence is not None and self.batch_size:
            self._recurrence.ended(
                self.batch_size,
                reached=how == "reached" or (how == "ended" and self.target is None),
                seconds=self.seconds,
                joules=self.energy_j,
                epochs=self.where.epoch + (1 if self.where.step else 0),
            )

    def _listen(self) -> None:
        with suppress(ValueError):  # not the main thread: nobody can be asked there
            self._before = signal.signal(self.told.stop, self._signalled)

    def _unlisten(self) -> None:
        if self._before is not None:
            with suppress(ValueError):
                signal.signal(self.told.stop, self._before)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(text)

    def _tell(self, text: str) -> None:
        if self.ranks.first:
            print(f"wattline: {text}", file=sys.stderr, flush=True)

    def _say(self, event: str, **more: Any) -> None:
        """A line of JSON for who watches, if somebody does."""
        if self.told.events is None or not self.ranks.first:
            return
        words = {"at": time.time(), "job": self.told.job, "event": event, **asdict(self.where), **more}
        with suppress(OSError), open(self.told.events, "a", encoding="utf-8") as file:
            file.write(json.dumps(words) + "\n")


def _script() -> str:
    """What runs: what was measured is kept under this name."""
    return str(Path(sys.argv[0]).resolve()) if sys.argv and sys.argv[0] else ""


def _samples(batch: Any) -> int:
    """How many samples a batch has; 0: nobody can tell."""
    while isinstance(batch, tuple | list | dict):
        if not batch:
            return 0
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else 0


def _finish_work() -> None:
    """Wait for what a GPU was told to do: it is asked for its joules next."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()

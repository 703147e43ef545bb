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

import math
import os
import signal
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

import numpy as np

from wattline.batch_size.history import Memory
from wattline.errors import ConfigError, MeterError, WattlineError
from wattline.meter import Meter, open_meter
from wattline.meter.caps.guard import hold
from wattline.meter.energy_window import Window
from wattline.models.cost import energy_time_cost
from wattline.profiler import step_counter as pipe
from wattline.profiler.cap_window import Aim, Length
from wattline.train.caps import Caps
from wattline.train.checkpoint import Checkpoints, Keep, Where
from wattline.train.environment import Target, Told
from wattline.train.progress_events import Events
from wattline.train.ranks import Ranks
from wattline.train.recurrence import Recurrence

T = TypeVar("T")

YIELDED = 75
"""Exit code of a job that has saved its work and wants to be started again."""

_LOOK_S = 1.0  # between two looks at the meter, and two reports
_AGREE = 16  # steps between two questions whether some rank was asked to stop, or should save
_MOST_EPOCHS = 1000  # nobody says how many a run may take; the tuner's bound is about cost
_ETA = 0.5  # of the cost bound, if the aim has none
_SAVE, _LEAVE = 1.0, 2.0  # what some rank wants all to do


class Session:
    """One training run.

    *save* and *load* keep the user's state at a path; *target* is `accuracy>=0.6`, *aim* what makes a power
    cap the best (`energy`, `time`, `cost:0.5`, `slowdown:1.1`, `watts:200`; `none`: leave caps alone). With
    *observe* caps are tried, and then left as they were. A job that runs again and again has a *group*: with
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
        aim = told.aim or aim
        self.aim = None if aim == "none" else Aim.parse(aim)
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
        self._memory: Memory | None = None
        self._recurrence: Recurrence | None = None
        self._pid = os.getpid()
        self._before: Any = None
        self._asked = self._over = self._cut = self._looped = False
        self._told: set[str] = set()
        self._skip = self._loops = 0
        self._of = self._per_epoch = 0  # epochs in all, and steps of each; 0: nobody knows
        self._others_j = 0.0  # joules of the other ranks, when all last agreed
        self._events = Events(told.events, told.job, self._tell_once)
        self._open = ExitStack()

    # -- the block

    def __enter__(self) -> Session:
        if isinstance(self._given, Meter):
            self._meter = self._given
        else:
            self._meter = open_meter(self._given or "auto")
            self._open.callback(self._meter.close)
        try:
            self._enter()
        except BaseException:
            self._open.close()
            raise
        return self

    def _enter(self) -> None:
        meter, ranks = self._meter, self.ranks
        if not ranks.joined:
            if self._batches:
                raise ConfigError("batch_sizes under torchrun need init_process_group before the session")
            self._tell("the session began before init_process_group: caps are left alone")
        gpus = meter.gpus
        if ranks.count > 1 and len(gpus) > 1:
            gpus = gpus[ranks.local % len(gpus) :][:1]
        self.gpus = gpus
        self._kind = gpus[0].kind or gpus[0].name if gpus else ""
        self._max_w = ranks.total(_largest_w(gpus))
        self._window = Window(meter, gpus)
        self._open.callback(self._window.end)
        self._resume()
        self._base = replace(self.where)
        self._began_s = self._looked_s = self._saved_s = meter.now_s()
        self._remembers()
        held = self._open.enter_context(hold(gpus, tell=self._tell_once))
        self._job = f"{self.group or _script()} on {len(gpus)} x {ranks.count} GPUs, {self.aim}"
        self.caps = Caps(
            gpus,
            held,
            self.aim,
            length=self._length if ranks.count == 1 else replace(self._length, seconds=0.0),
            ranks=ranks,
            observe=self.observe,
            known=()
            if self._memory is None
            else self._memory.profile(self._job, self.batch_size, self._kind),
            fixed=self.told.cap_w,
            tell=self._tell_once,
        )
        self._epoch_from_j = self.cost_j
        if self.told.max_cost_j is not None and math.isnan(self.cost_j):
            self._tell("a cost bound was given, and nothing here is metered: it cannot be held")
        self._listen()
        self._say("began", kind=self._kind, resumed=self.resumed, method=self._window.so_far().method)

    def _resume(self) -> None:
        """Go back to the newest checkpoint; a recurring job that has ended begins anew."""
        if self._checkpoints is None:
            return
        if self.ranks.first:
            self._checkpoints.claim()
            self._open.callback(self._checkpoints.release)
        found = self._checkpoints.read()
        if found is None or (found.over and self.group):
            return
        self._checkpoints.load()
        found.over = False
        if not self.ranks.first:
            found.joules = None  # the first counts what was used before
        self.where, self.resumed, self._skip, self.reached = found, True, found.step, found.reached
        self.batch_size = self.told.batch_size or found.batch or self.batch_size

    def _remembers(self) -> None:
        """Open the memory, and choose the batch size of this recurrence: the first rank does, for all."""
        problem: WattlineError | None = None
        chosen = 0
        if self.ranks.first:
            try:
                self._memory = Memory.open(self._memory_path)
                self._open.callback(self._memory.close)
                if self.group:
                    self._recurrence = Recurrence(
                        self._memory, self.group, self._kind, self._max_w or 1.0, self._eta
                    )
                    if self._batches and not self.resumed:
                        default = self.batch_size or self._batches[0]
                        chosen = self._recurrence.choose(self._batches, default, _MOST_EPOCHS, self._tell)
            except WattlineError as error:
                problem = error
            except sqlite3.Error as error:
                problem = ConfigError(f"the memory of recurring jobs cannot be used: {error}")
        if problem is not None and not self._batches and self._memory_path is None:
            self._tell_once(f"nothing is remembered: {problem.message}")
            problem, self._memory, self._recurrence = None, None, None
        if self.ranks.anybody(problem is not None):
            raise problem or ConfigError("the first rank could not choose a batch size")
        if self._batches and not self.resumed:
            self.batch_size = int(self.ranks.of_first(chosen))
        self.where.batch = self.batch_size

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            code = error.code if isinstance(error, SystemExit) else None
            clean = error is None or (isinstance(error, SystemExit) and code in (None, 0))
            if code != YIELDED:
                self._look()
                how = "failed" if not clean else "reached" if self.reached else self.stopped or "ended"
                if clean and self._checkpoints is not None and self.where.steps and self.ranks.first:
                    self.where.over = not self.stopped
                    self._checkpoints.write(self.where)
                self._say("ended", how=how, saves=self.caps.saves, observed=self.observe)
                self._remember(how)
        finally:
            self._over = True
            self._unlisten()
            self._open.close()
            if self._asked and not self._looped:  # nobody was there to do as it was told
                os.kill(os.getpid(), self.told.stop)

    # -- the loop

    def epochs(self, count: int) -> Iterator[int]:
        """Epochs still to do: from where a checkpoint was, until *count*, the target or the cost bound."""
        self._looped, self._of = True, count
        while self.where.epoch < count and not self.reached and not self.stopped:
            yield self.where.epoch
            self._epoch_ended(count)

    def steps(self, loader: Iterable[T]) -> Iterator[T]:
        """The batches of *loader*; those that a checkpoint has behind it are left out.

        The first loop of an epoch counts. Others, such as one over validation data, are only passed through.
        """
        self._loops += 1
        if self._loops > 1:
            yield from loader
            return
        skip, self._skip = self._skip, 0
        self._per_epoch = getattr(loader, "__len__", lambda: self._per_epoch)()
        piped = bool(os.environ.get(pipe.PIPE))
        for number, batch in enumerate(loader):
            if number < skip:
                continue
            self._save_or_leave()
            if self.stopped:
                self._cut = True
                return
            try:
                yield batch
            except GeneratorExit:  # the user breaks off after this batch
                self._stepped(_samples(batch) or self.batch_size)
                raise
            if piped:
                pipe.step()
            self._stepped(_samples(batch) or self.batch_size)

    def report(self, **metrics: float) -> bool:
        """Tell how good the model is; answers whether the target is reached, which ends `epochs`."""
        self.metrics = {name: float(value) for name, value in metrics.items()}
        target = self.target
        if target is not None and target.metric not in self.metrics:
            raise ConfigError(
                f"report has {', '.join(metrics) or 'nothing'}, expected {target.metric}: it has the target"
            )
        if target is not None and not math.isnan(value := self.metrics[target.metric]):
            self.where.best = target.better(self.where.best, value)
            self.where.reached = self.where.reached or target.reached(value)
            self.reached = self.where.reached if self.ranks.alone else self.reached
        self._say("report", metrics=self.metrics)
        return self.where.reached

    @property
    def energy_j(self) -> float | None:
        """Joules so far, also of earlier processes, and of other ranks as of when an epoch last ended; None:
        unmetered, or counted by another process on the same GPU."""
        if self._over:
            return self.where.joules
        own, before = self._own_j(), self._base.joules
        return own + self._others_j + (before or 0.0) if own is not None else before

    @property
    def seconds(self) -> float:
        """Seconds so far, of this and of earlier processes, on the meter's clock."""
        return self.where.seconds if self._over else self._base.seconds + self._meter.now_s() - self._began_s

    @property
    def cost_j(self) -> float:
        """Zeus' cost of energy and time so far, of all ranks; nan: unmetered."""
        energy = self.energy_j
        if energy is None:
            return math.nan
        if self._max_w <= 0:
            return energy  # nobody knows what time is worth
        energy_j, seconds = np.array([energy]), np.array([self.seconds])
        return float(energy_time_cost(energy_j, seconds, eta=self._eta, max_w=self._max_w)[0])

    # -- inside

    @property
    def _eta(self) -> float:
        return self.aim.amount if self.aim is not None and self.aim.by == "cost" else _ETA

    def _own_j(self) -> float | None:
        """Joules of this process' GPUs since it began."""
        parts = self._window.so_far().parts
        known = [part.energy_j for part in parts if part.counted and part.energy_j is not None]
        return sum(known) if known else None

    def _stepped(self, samples: float) -> None:
        try:
            self._meter.stepped(samples or 1)
        except MeterError as error:
            self._tell_once(error.message)
        where = self.where
        where.step += 1
        where.steps += 1
        where.samples += samples
        if self.caps.trying:
            self._try_caps()
        if self._meter.now_s() - self._looked_s >= _LOOK_S:
            self._look()

    def _try_caps(self) -> None:
        energy_j: float | None = 0.0  # not looked at, unless a window begins or ends
        if self.caps.wants_reading:
            _finish_work()
            energy_j = self._window.so_far().energy_j
        if self.caps.stepped(self._meter.now_s(), energy_j):
            sweep = self.caps.sweep
            assert sweep is not None
            self._say("cap", cap_w=sweep.found.cap_w, saves=self.caps.saves, tried=len(sweep.tried))
            if self._memory is not None:
                with self._forgiving():
                    self._memory.keep_profile(self._job, self.batch_size, self._kind, sweep.tried)

    def _epoch_ended(self, count: int) -> None:
        self.caps.epoch_ended()
        self._loops = self._skip = 0
        if self._cut:
            self._cut = False
        else:
            self.where.epoch, self.where.step = self.where.epoch + 1, 0
        self._agree()
        self._look()
        self._stop_if_hopeless()
        if self._checkpoints is not None:
            self._save()
        left = self.where.epoch < count and not self.reached and not self.stopped
        if self.ranks.anybody(self._asked) and left:
            self._leave()

    def _agree(self) -> None:
        """All ranks are here: add up what they used, and see who has reached the target."""
        if self.ranks.alone:
            return
        self.reached = self.where.reached = self.ranks.anybody(self.where.reached)
        own = self._own_j() or 0.0
        self._others_j = self.ranks.total(own) - own

    def _save_or_leave(self) -> None:
        """Between two batches, if one of them is due; several ranks do so at the same step."""
        if not self.ranks.alone and self.where.steps % _AGREE:
            return
        saves = self._checkpoints is not None and not self.caps.measuring
        late = saves and self._meter.now_s() - self._saved_s >= self._every_s
        wish = self.ranks.most(_LEAVE if self._asked else _SAVE if late else 0.0)
        if wish >= _LEAVE:
            self._agree()
            self._leave()
        if wish >= _SAVE:
            self._save()

    def _leave(self) -> None:
        """Save, wait until the first rank has, and end."""
        self._look()
        self._save()
        self.ranks.anybody(True)
        self._say("yielded")
        raise SystemExit(YIELDED)

    def _look(self) -> None:
        """Read the meter, report, and see whether the cost bound is passed; ranks do that between epochs."""
        self._looked_s = self._meter.now_s()
        self.where.seconds, self.where.joules = self.seconds, self.energy_j
        self._say("progress")
        bound = self.told.max_cost_j
        if bound is not None and self.ranks.alone and self.cost_j > bound:
            self.stopped = self.stopped or "cost bound"

    def _stop_if_hopeless(self) -> None:
        """End a run that costs too much, or whose batch size turns out worse than the best that is known."""
        cost_j, before_j, bound = self.cost_j, self._epoch_from_j, self.told.max_cost_j
        self._epoch_from_j = cost_j
        most = None if self._recurrence is None else self._recurrence.most_epochs(cost_j - before_j)
        hopeless = most is not None and self.where.epoch >= most
        over = bound is not None and cost_j > bound
        if (self._batches or bound is not None) and self.ranks.anybody(hopeless or over) and not self.reached:
            self.stopped = self.stopped or "cost bound"

    def _save(self) -> None:
        if self._checkpoints is None:
            return
        self.where.seconds, self.where.joules = self.seconds, self.energy_j
        if self.ranks.first:
            self._checkpoints.write(self.where)
        self._saved_s = self._meter.now_s()
        self.caps.cut()  # that took time which is not the job's

    def _remember(self, how: str) -> None:
        """What became of this recurrence, for the next one's batch size."""
        if self._recurrence is None or not self.batch_size:
            return
        with self._forgiving():
            if how == "failed":  # that says nothing of the batch size
                self._recurrence.given_up(self.batch_size)
                return
            self._recurrence.ended(
                self.batch_size,
                reached=how == "reached" or (how == "ended" and self.target is None),
                seconds=self.seconds,
                joules=self.energy_j,
                epochs=self.where.epoch + (1 if self.where.step else 0),
            )

    def _forgiving(self) -> _Forgiving:
        """A training does not end because something could not be written down."""
        return _Forgiving(self._tell_once)

    def _listen(self) -> None:
        with suppress(ValueError):  # not the main thread: nobody can be asked there
            self._before = signal.signal(self.told.stop, self._signalled)

    def _unlisten(self) -> None:
        with suppress(ValueError):
            if self._before is not None and signal.getsignal(self.told.stop) == self._signalled:
                signal.signal(self.told.stop, self._before)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        """Yield at the next step; who has nowhere to save, or is asked twice, ends as it would have."""
        mine = os.getpid() == self._pid
        if mine and self._checkpoints is not None and not self._asked:
            self._asked = True
            return
        signal.signal(number, self._before if self._before is not None else signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(text)

    def _tell(self, text: str) -> None:
        who = "" if self.ranks.first else f" (rank {self.ranks.rank})"
        print(f"wattline{who}: {text}", file=sys.stderr, flush=True)

    def _say(self, event: str, **more: Any) -> None:
        """Tell who watches; the first rank speaks for all."""
        if self.ranks.first:
            self._events.say(event, {**asdict(self.where), "fraction": self._fraction(), **more})

    def _fraction(self) -> float | None:
        """How much of the epochs is done; None: nobody knows."""
        if not self._of:
            return None
        of_epoch = self.where.step / self._per_epoch if self._per_epoch else 0.0
        return min((self.where.epoch + min(of_epoch, 1.0)) / self._of, 1.0)


class _Forgiving:
    """Turns what a database cannot do into a sentence."""

    def __init__(self, tell: Any) -> None:
        self._tell = tell

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, sqlite3.Error | OSError):
            self._tell(f"nothing is remembered of this: {error}")
            return True
        return False


def _largest_w(gpus: Sequence[Any]) -> float:
    """The largest cap of all; 0: nobody knows."""
    try:
        return float(sum(gpu.cap_range_w()[1] for gpu in gpus))
    except MeterError:
        return 0.0


def _script() -> str:
    """What runs, with its arguments: what was measured is kept under this name."""
    first = str(Path(sys.argv[0]).resolve()) if sys.argv and sys.argv[0] else ""
    return " ".join((first, *sys.argv[1:]))


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

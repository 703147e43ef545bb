"""Measure the speed-up of a training script from fusing, against ordinary models one after another."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from wattline.errors import ConfigError
from wattline.fusion import script_main
from wattline.fusion.architecture_check import fingerprint
from wattline.fusion.array import FusedArray, fuse
from wattline.fusion.lowering.fallback import FusionWarning
from wattline.fusion.lowering.per_member import per_member_reason
from wattline.fusion.lowering.report import LoweredPart, explain
from wattline.fusion.ordinary_training import OrdinaryTraining, count_batch
from wattline.fusion.script_loader import load_script
from wattline.fusion.step_recorder import Clock, RecordedStep, StepRecorder

_WARMUP_STEPS = 4  # steps not counted: the first ones detect what can be fused and compile
_MIN_BLOCKS = 8  # alternations between the array and an ordinary model
_MIN_STEPS = 2  # steps of an ordinary model that are counted in a block
_ORDINARY_WARMUP_STEPS = 2
_KEPT_STEPS = 4  # recorded steps that ordinary models repeat


@dataclass(frozen=True)
class StepSpeed:
    """Steps per second: the median, and the slow and the fast quartile."""

    steps_s: float
    low: float
    high: float

    @classmethod
    def from_seconds(cls, seconds: Sequence[float]) -> StepSpeed:
        """Build from the seconds of at least two single steps."""
        fast, median, slow = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(1 / median, 1 / slow, 1 / fast)

    def divide(self, count: float) -> StepSpeed:
        """Return the speed if every step took *count* times as long."""
        return StepSpeed(self.steps_s / count, self.low / count, self.high / count)


@dataclass(frozen=True)
class Gain:
    """Speeds of ordinary models and of an array of *width*; *parts* lists how each module runs.

    *alone* is one ordinary model. *serial* and *fused* count steps of all members: ordinary models one after
    another, and the array. *compiled* is one ordinary model under `torch.compile`, measured if the script
    compiles its steps. Only steps are timed, not the loading of batches or evaluations between them.
    """

    width: int
    key: str  # of the architecture; equal for models that may be fused
    batch: int  # samples of a step of one member
    alone: StepSpeed
    serial: StepSpeed
    fused: StepSpeed
    compiled: StepSpeed | None
    is_fused_compiled: bool
    has_loss: bool  # false: the loss of the script could not be repeated, ordinary models run without it
    outside_fraction: float  # of the time of the fused training, outside of steps
    peak_gib: float | None  # on a GPU, of the array
    parts: tuple[LoweredPart, ...]

    @property
    def best_serial(self) -> StepSpeed:
        """The faster of *serial* and the same with compiled models."""
        compiled = self.serial if self.compiled is None else self.compiled.divide(self.width)
        return max(self.serial, compiled, key=lambda speed: speed.steps_s)

    @property
    def is_noisy(self) -> bool:
        """True if the middle half of the steps differs by more than a factor of 1.5, as under other load."""
        speeds = (self.serial, self.fused, *([] if self.compiled is None else [self.compiled]))
        return any(speed.high > 1.5 * speed.low for speed in speeds)

    @property
    def gain(self) -> float:
        """Samples per second of the array, relative to ordinary models one after another at their best."""
        return self.fused.steps_s / self.best_serial.steps_s


class _StopTraining(BaseException):
    """Ends a training of which enough steps were timed."""


def measure_gain(script: Path, width: int, arguments: Sequence[str], seconds: float) -> Gain:
    """Measure the speed-up for *width* members of *script* with the configs given by *arguments*."""
    build, train = load_script(script)
    configs = script_main.read_configs(arguments)
    if len(configs) > 1 and len(configs) != width:
        raise ConfigError(f"the arguments describe {len(configs)} members, expected one or {width}")
    return measure_training(build, train, configs * width if len(configs) == 1 else configs, seconds)


def measure_training(
    build: script_main.Build,
    train: script_main.Train,
    configs: Sequence[script_main.Config],
    seconds: float,
    clock: Clock = time.perf_counter,
) -> Gain:
    """Measure the array for *seconds* with its own `train`, in turn with its members as ordinary models.

    Ordinary models repeat the recorded steps of the array, see `OrdinaryTraining`.
    """
    array, width = _build_array(build, configs), len(configs)
    run = _AlternatingRun(array, seconds, _synchronised(clock))
    run.train(train, configs)
    steps, times = run.last_steps, run.ordinary_seconds
    speeds = [StepSpeed.from_seconds(times[member]) for member in range(width)]
    is_compiled = any(step.is_compiled for step in steps)
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    return Gain(
        width=width,
        key=fingerprint(array.member(0)),
        batch=count_batch(steps[0]),
        alone=StepSpeed.from_seconds([each for one in times.values() for each in one]),
        serial=StepSpeed(
            1 / sum(1 / speed.steps_s for speed in speeds),
            1 / sum(1 / speed.low for speed in speeds),
            1 / sum(1 / speed.high for speed in speeds),
        ),
        fused=StepSpeed.from_seconds(run.fused_seconds),
        compiled=StepSpeed.from_seconds(run.compiled_seconds) if run.compiled_seconds else None,
        is_fused_compiled=is_compiled,
        has_loss=all(step.has_loss for step in steps),
        outside_fraction=run.outside_fraction,
        peak_gib=peak,
        parts=_list_parts(array),
    )


class _AlternatingRun:
    """A training of the array for *seconds*, in turn with blocks of steps of its members as ordinary models.

    Both therefore see the same machine: other load on it changes all speeds, but hardly their ratio.
    """

    def __init__(self, array: FusedArray, seconds: float, clock: Clock) -> None:
        self.clock = clock
        self.fused_seconds: list[float] = []  # of single steps
        self.ordinary_seconds: dict[int, list[float]] = {member: [] for member in range(len(array))}
        self.compiled_seconds: list[float] = []  # of an ordinary model; empty if the script does not compile
        self.last_steps: list[RecordedStep] = []
        self._array, self._width = array, len(array)
        self._block_count = max(_MIN_BLOCKS, len(array))
        self._block_s = seconds / self._block_count
        self._trainings: dict[int, OrdinaryTraining] = {}
        self._compiled: OrdinaryTraining | None = None
        self._can_compile = True
        self._count = self._block = 0
        self._start_s = self._fused_total_s = 0.0

    def train(self, train: script_main.Train, configs: Sequence[script_main.Config]) -> None:
        """Train until enough steps are timed; raise `ConfigError` if the script makes too few."""
        recorder = StepRecorder(self._array, self.clock, self._on_step)
        with warnings.catch_warnings(), recorder.record(), suppress(_StopTraining):
            warnings.simplefilter("ignore", FusionWarning)
            train(self._array, [dict(config) for config in configs])
        if len(self.fused_seconds) < 2:
            raise ConfigError(
                f"train made {self._count} steps with {self._width} members, too few to measure",
                f"at least {_WARMUP_STEPS + 2} are needed; those of train_step and of fusion's optimisers "
                "after a forward of the array are counted",
            )
        while self._block < self._block_count:  # the script has ended early
            self._run_ordinary_block()

    @property
    def outside_fraction(self) -> float:
        """The share of the time of the array that is not spent in steps."""
        total_s = self._fused_total_s
        return max(0.0, 1 - sum(self.fused_seconds) / total_s) if total_s > 0 else 0.0

    def _on_step(self, step: RecordedStep) -> None:
        if len(self._array) != self._width:  # a member has left
            raise _StopTraining
        self._count += 1
        self.last_steps = [*self.last_steps, step][-_KEPT_STEPS:]
        if self._count > _WARMUP_STEPS:
            now_s = self.clock()
            self.fused_seconds.append(step.seconds)
            if now_s - self._start_s < self._block_s:
                return
            self._fused_total_s += now_s - self._start_s
            self._run_ordinary_block()
            if self._block >= self._block_count:
                raise _StopTraining
        self._start_s = self.clock()

    def _run_ordinary_block(self) -> None:
        """Time the next member as an ordinary model."""
        member = self._block % self._width
        self._block += 1
        if member not in self._trainings:
            row = member % len(self._array)  # members may have left
            self._trainings[member] = OrdinaryTraining(self._array, self.last_steps, row)
        run_step = self._trainings[member].run_step
        with torch.enable_grad():
            self.ordinary_seconds[member] += _time_steps(run_step, self._block_s, self.clock)
            if self.last_steps[-1].is_compiled and self._can_compile:
                self._run_compiled_block()

    def _run_compiled_block(self) -> None:
        """Time the first member as an ordinary model under `torch.compile`."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if self._compiled is None:
                    self._compiled = OrdinaryTraining(self._array, self.last_steps[-1:], 0, compiled=True)
                self.compiled_seconds += _time_steps(self._compiled.run_step, self._block_s, self.clock)
        except Exception:  # of any kind, from the compiler; the model is also measured without it
            self._can_compile = False
            self.compiled_seconds.clear()


def _build_array(build: script_main.Build, configs: Sequence[script_main.Config]) -> FusedArray:
    try:
        return fuse([build(dict(config)) for config in configs])
    except KeyError as error:
        raise ConfigError(f"build needs {error} in its config", f"add --set {error.args[0]}=VALUE") from None


def _time_steps(run_step: Callable[[], None], seconds: float, clock: Clock) -> list[float]:
    """Return the seconds of single steps after a warm-up."""
    for _ in range(_ORDINARY_WARMUP_STEPS):
        run_step()
    times: list[float] = []
    start_s = clock()
    while len(times) < _MIN_STEPS or clock() - start_s < seconds:
        before_s = clock()
        run_step()
        times.append(clock() - before_s)
    return times


def _list_parts(array: FusedArray) -> tuple[LoweredPart, ...]:
    why = {name: per_member_reason(module) for name, module in array.body.named_modules()}
    return tuple(
        LoweredPart(part.name, part.kind, "per member", reason) if (reason := why[part.name]) else part
        for part in explain(array.member(0)).parts
    )


def _synchronised(clock: Clock) -> Clock:
    """Return a clock that waits for the GPU before it is read."""

    def read() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return clock()

    return read

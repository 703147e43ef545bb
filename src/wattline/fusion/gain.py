"""Measure the speed-up of a training script from fusing: a few seconds alone and as an array."""

from __future__ import annotations

import runpy
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wattline.errors import ConfigError, NotFound
from wattline.fusion import script_main
from wattline.fusion.architecture_check import fingerprint
from wattline.fusion.array import FusedArray, fuse
from wattline.fusion.lowering.fallback import FusionWarning
from wattline.fusion.lowering.per_member import per_member_reason
from wattline.fusion.lowering.report import LoweredPart, explain
from wattline.fusion.step import listeners

_WARMUP_STEPS = 3  # steps not counted: the first detects what can be fused, the second compiles


@dataclass(frozen=True)
class Gain:
    """Steps per second of one member alone and of an array of *width*; *parts* lists how each module runs."""

    width: int
    key: str  # of the architecture; equal for models that may be fused
    alone_steps_s: float
    fused_steps_s: float
    peak_gib: float | None  # on a GPU, of the array
    parts: tuple[LoweredPart, ...]

    @property
    def gain(self) -> float:
        """Samples per second of the array, relative to one member alone."""
        return self.width * self.fused_steps_s / self.alone_steps_s


class _StopTraining(BaseException):
    """Ends a training of which enough steps were timed."""


def measure_gain(script: Path, width: int, arguments: Sequence[str], seconds: float) -> Gain:
    """Measure the speed-up for *width* members of *script* with the configs given by *arguments*."""
    build, train = load_script(script)
    configs = script_main.read_configs(arguments)
    if len(configs) > 1 and len(configs) != width:
        raise ConfigError(f"the arguments describe {len(configs)} members, expected one or {width}")
    configs = configs * width if len(configs) == 1 else configs
    alone_s, one = _time_steps(build, train, configs[:1], seconds)
    fused_s, array = _time_steps(build, train, configs, seconds)
    why = {name: per_member_reason(module) for name, module in array.body.named_modules()}
    parts = tuple(
        LoweredPart(p.name, p.kind, "per member", why[p.name] or "") if why[p.name] else p
        for p in explain(one.member(0)).parts
    )
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    return Gain(width, fingerprint(one.member(0)), 1 / alone_s, 1 / fused_s, peak, parts)


def load_script(script: Path) -> tuple[script_main.Build, script_main.Train]:
    """Return the `build` and `train` that *script* passes to `wattline.fusion.main`, without training."""
    if not script.is_file():
        raise NotFound(f"{script}: no such script")
    calls: list[tuple[script_main.Build, script_main.Train]] = []
    script_main.captured, before = calls, (sys.argv[:], sys.path[:])
    sys.argv, sys.path = [str(script)], [str(script.parent), *sys.path]
    try:
        names = runpy.run_path(str(script), run_name="__main__")
    except SystemExit as stop:
        raise ConfigError(f"{script}: exited ({stop}) before it called wattline.fusion.main") from None
    finally:
        script_main.captured, (sys.argv, sys.path) = None, before
    if calls:
        return calls[0]
    if callable(names.get("build")) and callable(names.get("train")):
        return names["build"], names["train"]
    raise ConfigError(
        f"{script}: nothing calls wattline.fusion.main(build, train)",
        "define build(config) and train(array, configs), and call main with them",
    )


def _time_steps(
    build: Any, train: Any, configs: list[script_main.Config], seconds: float
) -> tuple[float, FusedArray]:
    """Return the median time of a step in seconds, and the array of these members."""
    try:
        models = [build(dict(config)) for config in configs]
    except KeyError as error:
        raise ConfigError(f"build needs {error} in its config", f"add --set {error.args[0]}=VALUE") from None
    array = fuse(models)
    times: list[float] = []

    def on_step(width: int) -> None:
        times.append(time.perf_counter())
        if len(times) > _WARMUP_STEPS + 3 and times[-1] - times[_WARMUP_STEPS] > seconds:
            raise _StopTraining

    with warnings.catch_warnings(), listeners.listen_to_steps(on_step):
        warnings.simplefilter("ignore", FusionWarning)
        with suppress(_StopTraining):
            train(array, [dict(config) for config in configs])
    steps = [b - a for a, b in zip(times[_WARMUP_STEPS:], times[_WARMUP_STEPS + 1 :], strict=False)]
    if not steps:
        raise ConfigError(
            f"train made {len(times)} steps with {len(configs)} members, too few to measure",
            "more than four are needed; steps of fusion's optimisers and of train_step are counted",
        )
    return statistics.median(steps), array

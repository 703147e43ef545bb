"""What a script would gain from being fused: it is trained for a few seconds, alone and as an array."""

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
from wattline.fusion import script_main as entry
from wattline.fusion.architecture_check import fingerprint
from wattline.fusion.array import FusedArray, fuse
from wattline.fusion.lowering.fallback import FusionWarning
from wattline.fusion.lowering.per_member import why_alone
from wattline.fusion.lowering.report import Part, explain
from wattline.fusion.step import listeners

_WARM = 3  # steps that are not counted: the first finds out what can be fused, the second compiles


@dataclass(frozen=True)
class Gain:
    """Steps per second of one member by itself, and of an array of *width*; *parts*: what runs how."""

    width: int
    key: str  # of the architecture: equal where models may be fused
    alone_steps_s: float
    fused_steps_s: float
    peak_gib: float | None  # on a GPU, of the array
    parts: tuple[Part, ...]

    @property
    def gain(self) -> float:
        """How many times as many samples the array trains in the same time."""
        return self.width * self.fused_steps_s / self.alone_steps_s


class _Enough(BaseException):
    """Enough was seen of a training."""


def measure_gain(script: Path, width: int, words: Sequence[str], seconds: float) -> Gain:
    """What *width* members of *script* with the config that *words* name would gain."""
    build, train = load(script)
    configs = entry.read_configs(words)
    if len(configs) > 1 and len(configs) != width:
        raise ConfigError(f"the words name {len(configs)} members, expected one or {width}")
    configs = configs * width if len(configs) == 1 else configs
    alone_s, one = _timed(build, train, configs[:1], seconds)
    fused_s, array = _timed(build, train, configs, seconds)
    why = {name: why_alone(module) for name, module in array.body.named_modules()}
    parts = tuple(
        Part(p.name, p.kind, "per member", why[p.name] or "") if why[p.name] else p
        for p in explain(one.member(0)).parts
    )
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    return Gain(width, fingerprint(one.member(0)), 1 / alone_s, 1 / fused_s, peak, parts)


def load(script: Path) -> tuple[entry.Build, entry.Train]:
    """What *script* gives to `wattline.fusion.main`, which is kept from training."""
    if not script.is_file():
        raise NotFound(f"{script}: no such script")
    found: list[tuple[entry.Build, entry.Train]] = []
    entry.captured, before = found, (sys.argv[:], sys.path[:])
    sys.argv, sys.path = [str(script)], [str(script.parent), *sys.path]
    try:
        names = runpy.run_path(str(script), run_name="__main__")
    except SystemExit as stop:
        raise ConfigError(f"{script}: it ended by itself ({stop}) before wattline.fusion.main") from None
    finally:
        entry.captured, (sys.argv, sys.path) = None, before
    if found:
        return found[0]
    if callable(names.get("build")) and callable(names.get("train")):
        return names["build"], names["train"]
    raise ConfigError(
        f"{script}: nothing calls wattline.fusion.main(build, train)",
        "define build(config) and train(array, configs), and call main with them",
    )


def _timed(build: Any, train: Any, configs: list[entry.Config], seconds: float) -> tuple[float, FusedArray]:
    """The median time of a step of an array of these members."""
    try:
        models = [build(dict(config)) for config in configs]
    except KeyError as error:
        raise ConfigError(f"build needs {error} in its config", f"say --set {error.args[0]}=VALUE") from None
    array = fuse(models)
    times: list[float] = []

    def listen(width: int) -> None:
        times.append(time.perf_counter())
        if len(times) > _WARM + 3 and times[-1] - times[_WARM] > seconds:
            raise _Enough

    with warnings.catch_warnings(), listeners.listening(listen):
        warnings.simplefilter("ignore", FusionWarning)
        with suppress(_Enough):
            train(array, [dict(config) for config in configs])
    steps = [b - a for a, b in zip(times[_WARM:], times[_WARM + 1 :], strict=False)]
    if not steps:
        raise ConfigError(
            f"train made {len(times)} steps with {len(configs)} members, too few to measure",
            "it needs more than four; steps of fusion's optimisers and of train_step are counted",
        )
    return statistics.median(steps), array

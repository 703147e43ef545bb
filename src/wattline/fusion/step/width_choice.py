"""How to train an array fastest: a few ways are tried on copies, not to fuse included."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from wattline.fusion.lowering.fallback import FusionWarning
from wattline.fusion.lowering.inputs import Inputs
from wattline.fusion.lowering.rules import Ways
from wattline.fusion.step.execution_mode import Way
from wattline.fusion.step.traced import NotTraced

if TYPE_CHECKING:
    from wattline.fusion.step.train_step import Step

STEPS = 10_000  # where nobody says how many there will be
COMPILE_S = 10.0  # what compiling is taken to cost before it was measured
GAIN = 0.5  # of the time of a step, that compiling may be hoped to save
SEARCH = 0.1  # of the time of training, that looking for the best width may take
LOOK_S = 0.3  # for how long a way is tried

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class Tried:
    """One way: seconds of a step of all members, and what compiling it took (0: it was not)."""

    way: Way
    step_s: float
    compile_s: float


def choose(step: Step, inputs: Inputs, count: int, steps: int | None) -> tuple[Way, list[Tried]]:
    """The fastest way of those that are worth trying when *steps* are to come, and all that were tried."""
    size, left = len(step.array), STEPS if steps is None else steps
    tried: list[Tried] = []

    def attempt(way: Way) -> float:
        tried.append(_try(step, way, inputs, count))
        return tried[-1].step_s

    def worth() -> bool:
        """Whether what compiling may save is more than what it costs, and enough is left to look further."""
        now_s, spent_s = min(t.step_s for t in tried), sum(t.compile_s for t in tried)
        many = sum(t.way.compiled for t in tried)
        cost_s = spent_s / many if many else COMPILE_S
        return now_s * left * (GAIN if many < 2 else SEARCH) > (cost_s if many < 2 else spent_s + cost_s)

    images = any(isinstance(m, _CONVOLUTIONS) for m in step.array.body.modules())
    ways, other = (Ways(last=True), Ways()) if images else (Ways(), None)
    attempt(Way(None, None, compiled=False))
    if size > 1:
        attempt(Way(None, ways, compiled=False))
    try:
        if step.way.compiled and worth():
            attempt(Way(None, None, compiled=True))
            if size > 1 and worth():
                _narrowed(attempt, worth, ways, size)
            best = min(tried, key=lambda t: t.step_s).way
            if other is not None and best.ways is not None and worth():
                attempt(Way(best.width, other, compiled=True))
    except NotTraced as why:
        warnings.warn(f"the step cannot be compiled: {why}", FusionWarning, stacklevel=5)
    # Twice, because somebody else may have had the machine while one of them was tried.
    again = (_try(step, t.way, inputs, count).step_s for t in tried)
    tried = [replace(t, step_s=min(t.step_s, second_s)) for t, second_s in zip(tried, again, strict=True)]
    return min(tried, key=lambda t: t.step_s).way, tried


def _narrowed(attempt: Callable[[Way], float], worth: Callable[[], bool], ways: Ways, size: int) -> None:
    """All members at a time, then half as many for as long as that is faster: caches are only so large."""
    now_s, width = attempt(Way(None, ways, compiled=True)), size // 2
    while width > 1 and worth():
        before_s, now_s = now_s, attempt(Way(width, ways, compiled=True))
        if now_s > before_s:
            break
        width //= 2


def _try(step: Step, way: Way, inputs: Inputs, count: int) -> Tried:
    """The fastest of some steps on copies of all members: others on the machine only slow them down."""
    size = len(step.array)
    wide = 1 if way.ways is None else min(way.width or size, size)
    before_s, calls = step.compile_s, []
    for first in range(0, size, wide):
        part = slice(first, min(first + wide, size))
        own = inputs if wide == size else inputs.rows(part)
        copies = [leaf.clone() for leaf in step.rows(part).flat()[0]]
        calls.append((step.made(way, own, count, part), [*copies, *own.tensors]))
    times: list[float] = []
    until_s = time.perf_counter() + LOOK_S
    while len(times) < 4 or (time.perf_counter() < until_s and len(times) < 200):
        start_s = time.perf_counter()
        for call, flat in calls:
            call(flat)
        if inputs.tensors[0].is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start_s)
    return Tried(way, min(times[1:]), step.compile_s - before_s)

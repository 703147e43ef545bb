"""Choice of the fastest execution mode of an array: some modes are timed on copies."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from wattline.fusion.lowering.error_kinds import is_out_of_memory
from wattline.fusion.lowering.fallback import FusionWarning
from wattline.fusion.lowering.inputs import Inputs
from wattline.fusion.lowering.rules import Ways
from wattline.fusion.step.execution_mode import ExecutionMode
from wattline.fusion.step.traced import TracingError

if TYPE_CHECKING:
    from wattline.fusion.step.train_step import Step

ASSUMED_STEPS = 10_000  # if `steps` is not given
COMPILE_S = 10.0  # assumed cost of compiling before it was measured
GAIN_SHARE = 0.5  # share of a step's time that compiling is assumed to save
SEARCH_SHARE = 0.1  # share of the training time that the search for the best width may take
TRIAL_S = 0.3  # for which a mode is timed

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class TimedWidth:
    """A timed mode: seconds for a step of all members, and for compiling it (0: not compiled).

    *step_s* is infinite for a mode that has run out of memory.
    """

    way: ExecutionMode
    step_s: float
    compile_s: float


def choose_mode(
    step: Step, inputs: Inputs, model_arg_count: int, steps: int | None
) -> tuple[ExecutionMode, list[TimedWidth]]:
    """Return the fastest of the modes worth trying for *steps* further steps, and all timed modes."""
    size, remaining_steps = len(step.array), ASSUMED_STEPS if steps is None else steps
    tried: list[TimedWidth] = []

    def attempt(way: ExecutionMode) -> float:
        tried.append(_time_mode(step, way, inputs, model_arg_count))
        return tried[-1].step_s

    def is_worth_compiling() -> bool:
        """Return whether the time that compiling may save exceeds its cost and the search budget."""
        now_s, spent_s = min(t.step_s for t in tried), sum(t.compile_s for t in tried)
        compiled_count = sum(t.way.compiled for t in tried)
        cost_s = spent_s / compiled_count if compiled_count else COMPILE_S
        return now_s * remaining_steps * (GAIN_SHARE if compiled_count < 2 else SEARCH_SHARE) > (
            cost_s if compiled_count < 2 else spent_s + cost_s
        )

    images = any(isinstance(m, _CONVOLUTIONS) for m in step.array.body.modules())
    ways, other = (Ways(last=True), Ways()) if images else (Ways(), None)
    attempt(ExecutionMode(None, None, compiled=False))
    if size > 1:
        attempt(ExecutionMode(None, ways, compiled=False))
    try:
        if step.way.compiled and is_worth_compiling():
            attempt(ExecutionMode(None, None, compiled=True))
            if size > 1 and is_worth_compiling():
                _try_narrower_widths(attempt, is_worth_compiling, ways, size)
            best = min(tried, key=lambda t: t.step_s).way
            if other is not None and best.ways is not None and is_worth_compiling():
                attempt(ExecutionMode(best.width, other, compiled=True))
    except TracingError as why:
        warnings.warn(f"the step cannot be compiled: {why}", FusionWarning, stacklevel=5)
    # Timed twice, because other processes may have been running during the first measurement.
    again = (_time_mode(step, t.way, inputs, model_arg_count).step_s for t in tried)
    tried = [replace(t, step_s=min(t.step_s, second_s)) for t, second_s in zip(tried, again, strict=True)]
    return min(tried, key=lambda t: t.step_s).way, tried


def _try_narrower_widths(
    attempt: Callable[[ExecutionMode], float], is_worth_compiling: Callable[[], bool], ways: Ways, size: int
) -> None:
    """Time all members at once, then halve the width while that is faster, since caches are limited."""
    now_s, width = attempt(ExecutionMode(None, ways, compiled=True)), size // 2
    while width > 1 and is_worth_compiling():
        before_s, now_s = now_s, attempt(ExecutionMode(width, ways, compiled=True))
        if now_s > before_s:
            break
        width //= 2


def _time_mode(step: Step, way: ExecutionMode, inputs: Inputs, model_arg_count: int) -> TimedWidth:
    """Time a mode by the fastest of some steps on copies of all members; other load only adds time."""
    size = len(step.array)
    step_width = 1 if way.ways is None else min(way.width or size, size)
    before_s, calls = step.compile_s, []
    for first in range(0, size, step_width):
        part = slice(first, min(first + step_width, size))
        own = inputs if step_width == size else inputs.select_members(part)
        copies = [leaf.clone() for leaf in step.member_rows(part).flat()[0]]
        calls.append((step.get_step_function(way, own, model_arg_count, part), [*copies, *own.tensors]))
    times: list[float] = []
    until_s = time.perf_counter() + TRIAL_S
    while len(times) < 4 or (time.perf_counter() < until_s and len(times) < 200):
        start_s = time.perf_counter()
        try:
            for call, flat in calls:
                call(flat)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return TimedWidth(way, math.inf, step.compile_s - before_s)
        if inputs.tensors[0].is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start_s)
    return TimedWidth(way, min(times[1:]), step.compile_s - before_s)

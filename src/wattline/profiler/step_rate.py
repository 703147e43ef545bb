"""Step rate of a command: steps found in its output, and their rate with a standard error."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

STEP_PATTERN = r"(?i)(?<![a-z])(?:step|iter|iteration|batch)s?\W{0,3}(\d+)|\s(\d+)/\d+ \[\d+:"
"""Matches `step 12`, `Iter: 12`, `batch [12/391]`, `global_step=12`, and progress bars: ` 12/391 [00:03<`."""

_BATCHES = 10  # into which steps are divided to estimate how much their rate varies


class StepRate(NamedTuple):
    """Steps per second, their standard error, and the number of steps measured."""

    steps_s: float
    stderr: float
    steps: int


def estimate_rate(at_s: Sequence[float], done: Sequence[int], warmup: int) -> StepRate | None:
    """Estimate the rate after *warmup* steps; None: not yet known.

    *done* is the number of steps completed at each time *at_s*. The error is that of batch means, since steps
    come in bursts, one from each worker of a data loader.
    """
    first = bisect_left(done, warmup)
    times, steps = np.array(at_s[first:]), np.array(done[first:], np.float64)
    if len(times) < 2 or times[-1] <= times[0]:
        return None
    steps_s = float((steps[-1] - steps[0]) / (times[-1] - times[0]))
    batches = min(_BATCHES, len(times) - 1)
    edges = np.round(np.linspace(0, len(times) - 1, batches + 1)).astype(np.int64)
    step_s = np.diff(times[edges]) / np.diff(steps[edges])
    relative_error = (
        float(np.std(step_s, ddof=1) / np.sqrt(batches) / step_s.mean()) if batches > 1 else math.inf
    )
    return StepRate(steps_s, steps_s * relative_error, int(steps[-1] - steps[0]))


class OutputStepCounter:
    """Counts the steps of a command from the lines of its output."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)
        self._last: int | None = None
        self._stride = 1
        self.steps = 0

    def add_line(self, line: str) -> bool:
        """Count the steps that *line* reports; return True if there are any.

        A number that grows by 50 counts as 50 steps. A smaller number starts a new epoch, and counts as many
        steps as the last increase. A match without a number counts as one step.
        """
        match = None
        for match in self._pattern.finditer(line):  # noqa: B007  the last state of a redrawn progress bar
            pass
        if match is None:
            return False
        number = next((int(group) for group in match.groups() if group and group.isdigit()), None)
        if number is None:
            self.steps += 1
            return True
        if self._last == number:
            return False
        if self._last is not None:
            if number > self._last:
                self._stride = number - self._last
            self.steps += self._stride
        self._last = number
        return True

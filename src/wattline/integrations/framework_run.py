"""A session that a training framework drives: steps, epochs, metrics, saving and stopping.

The framework writes its own checkpoints. The session decides when: its `save` only records the step, and the
callback lets the framework save at the same step, on all ranks.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from wattline.errors import MeterError
from wattline.train.session import Session
from wattline.train.training_run import SYNC_STEPS

PREFIX = "wattline/"
"""Prefix of the names of energy metrics in trackers."""


def describe_energy(run: Session) -> dict[str, float]:
    """Return joules so far, watts and cap now, and the id of the job, under names for a tracker.

    The joules are of all attempts of the job, the watts and the cap the sum over the GPUs of this rank. What
    cannot be read is left out.
    """
    values: dict[str, float] = {}
    if run.energy_j is not None:
        values["energy_j"] = float(run.energy_j)
    for name, method in (("power_w", "power_w"), ("cap_w", "cap_w")):
        with suppress(MeterError):
            readings = [float(getattr(gpu, method)()) for gpu in run.gpus]
            if readings:
                values[name] = sum(readings)
    job = os.environ.get("WATTLINE_JOB_ID", "")  # without a service the session has the id of the process
    if job.isdecimal():
        values["job_id"] = float(job)
    return {f"{PREFIX}{name}": value for name, value in values.items() if math.isfinite(value)}


class FrameworkRun:
    """One training run of a framework, with the parameters of `wattline.Session`."""

    def __init__(self, **settings: Any) -> None:
        self.session = Session(**{**settings, "save": self._record_save, "load": None})
        self._wants_save = False
        self._metrics: dict[str, float] = {}

    def open(self, epochs: int, steps: int, done: int, method: str) -> None:
        """Start at the step *done*, which the framework has restored; *method* is how to restore one.

        The number of *steps* in an epoch is 0 if it is unknown.
        """
        run = self.session.open()
        run.expect(epochs=max(epochs, 0), steps=max(steps, 0))
        if run.position.steps and not done:
            text = f"the job was at step {run.position.steps}, but the training starts from the beginning"
            print(f"wattline: {text}; to continue: {method}", file=sys.stderr, flush=True)
        position = run.position
        position.steps = done
        position.epoch, position.step = divmod(done, steps) if steps else (position.epoch, 0)

    def step(self, samples: float) -> None:
        """Record a finished step."""
        self.session.step(samples)

    def end_epoch(self) -> None:
        """Record the end of an epoch, also of one that was interrupted.

        An interrupted epoch was saved at its last step. Frameworks count it as complete from here on, so that
        a checkpoint would leave out the rest of it.
        """
        is_interrupted = self.session.should_stop
        self.session.epoch()
        if is_interrupted:
            self._wants_save = False

    def take_save_request(self, at_epoch_end: bool = False) -> bool:
        """Return True once after the session has asked for a checkpoint; the same on all ranks."""
        wanted, self._wants_save = self._wants_save, False
        ranks = (
            self.session.ranks
        )  # only the first rank of several calls `save`, at the steps of an agreement
        if ranks.is_alone or not (at_epoch_end or self.session.position.steps % SYNC_STEPS == 0):
            return wanted
        return ranks.any(wanted)

    def report(self, metrics: Mapping[str, Any]) -> None:
        """Report the numbers among *metrics* to the service, and stop if the target is reached."""
        numbers = {name: float(value) for name, value in metrics.items() if _is_number(value)}
        self._metrics |= {name: value for name, value in numbers.items() if not name.startswith(PREFIX)}
        target = self.session.target
        if self._metrics and (target is None or target.metric in numbers):
            self.session.report(**self._metrics)

    def close(self, error: BaseException | None = None) -> None:
        """End the run; exit with code 75 if it was asked to yield."""
        self.session.close(error)

    def _record_save(self, path: Path) -> None:
        path.mkdir(parents=True)
        text = json.dumps({"step": self.session.position.steps})
        (path / "framework.json").write_text(text, encoding="utf-8")
        self._wants_save = True


def _is_number(value: Any) -> bool:
    is_scalar = getattr(value, "ndim", 0) == 0
    return is_scalar and hasattr(value, "__float__") and not isinstance(value, bool | str)

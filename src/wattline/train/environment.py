"""What a job is told by its environment."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wattline.errors import ConfigError


@dataclass(frozen=True)
class Target:
    """The metric that decides whether a recurrence has succeeded: `accuracy>=0.6`, `wer<=40`."""

    metric: str
    value: float
    falls: bool = False

    @classmethod
    def parse(cls, text: str) -> Target:
        """A target from its text."""
        for sign, falls in ((">=", False), ("<=", True)):
            metric, found, value = text.partition(sign)
            if found and metric.strip():
                try:
                    return cls(metric.strip(), float(value), falls)
                except ValueError:
                    break
        raise ConfigError(f"target {text!r}: expected one such as accuracy>=0.6 or wer<=40")

    def reached(self, value: float) -> bool:
        """Whether a value is good enough."""
        return value <= self.value if self.falls else value >= self.value

    def better(self, a: float | None, b: float) -> float:
        """The better of two values."""
        if a is None:
            return b
        return min(a, b) if self.falls else max(a, b)


@dataclass(frozen=True)
class Told:
    """What the environment says; None or empty: nothing."""

    job: str
    group: str
    batch_size: int | None
    cap_w: float | None
    checkpoints: Path | None
    target: Target | None
    max_cost_j: float | None
    aim: str
    observe: bool
    events: Path | None
    stop: signal.Signals

    @classmethod
    def read(cls, words: Mapping[str, str] = os.environ) -> Told:
        """From WATTLINE_JOB_ID, GROUP, BATCH_SIZE, POWER_LIMIT_W, CHECKPOINT_DIR, TARGET, MAX_COST_J, AIM,
        OBSERVE, EVENTS and SIGNAL."""

        def word(name: str) -> str:
            return words.get(f"WATTLINE_{name}", "").strip()

        def number(name: str) -> float | None:
            text = word(name)
            try:
                value = float(text) if text else None
            except ValueError:
                value = -1.0
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"WATTLINE_{name} is {text!r}, expected a number above 0")
            return value

        batch = number("BATCH_SIZE")
        if batch is not None and batch != int(batch):
            raise ConfigError(f"WATTLINE_BATCH_SIZE is {word('BATCH_SIZE')!r}, expected a whole number")
        name = word("SIGNAL") or "SIGTERM"
        if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
            raise ConfigError(f"WATTLINE_SIGNAL is {name!r}, expected the name of a signal such as SIGTERM")
        return cls(
            job=word("JOB_ID") or f"{os.getpid()}",
            group=word("GROUP"),
            batch_size=None if batch is None else int(batch),
            cap_w=number("POWER_LIMIT_W"),
            checkpoints=Path(word("CHECKPOINT_DIR")) if word("CHECKPOINT_DIR") else None,
            target=Target.parse(word("TARGET")) if word("TARGET") else None,
            max_cost_j=number("MAX_COST_J"),
            aim=word("AIM"),
            observe=_truth("WATTLINE_OBSERVE", word("OBSERVE")),
            events=Path(word("EVENTS")) if word("EVENTS") else None,
            stop=signal.Signals[name],
        )


def _truth(name: str, text: str) -> bool:
    known = {"": False, "0": False, "no": False, "false": False, "1": True, "yes": True, "true": True}
    if text.casefold() not in known:
        raise ConfigError(f"{name} is {text!r}, expected 1 or 0")
    return known[text.casefold()]

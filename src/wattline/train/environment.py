"""Settings of a job from the WATTLINE_* environment variables."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wattline.errors import ConfigError


@dataclass(frozen=True)
class Target:
    """A metric and the value at which a run has succeeded: `accuracy>=0.6`, `wer<=40`."""

    metric: str
    value: float
    lower_is_better: bool = False

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse a target such as `accuracy>=0.6`."""
        for operator, lower_is_better in ((">=", False), ("<=", True)):
            metric, separator, value = text.partition(operator)
            if separator and metric.strip():
                try:
                    return cls(metric.strip(), float(value), lower_is_better)
                except ValueError:
                    break
        raise ConfigError(
            f"target is {text!r}, expected METRIC>=VALUE or METRIC<=VALUE, such as accuracy>=0.6"
        )

    def is_reached(self, value: float) -> bool:
        """Return True if *value* reaches the target."""
        return value <= self.value if self.lower_is_better else value >= self.value

    def select_better(self, a: float | None, b: float) -> float:
        """Return the better of two values; *a* = None: there is none yet."""
        if a is None:
            return b
        return min(a, b) if self.lower_is_better else max(a, b)


@dataclass(frozen=True)
class JobEnvironment:
    """Settings from the environment; None or empty: not set."""

    job_id: str
    group: str
    batch_size: int | None
    cap_w: float | None
    checkpoints: Path | None
    target: Target | None
    max_cost_j: float | None
    aim: str
    observe: bool
    events: Path | None
    stop_signal: signal.Signals
    grace_s: float  # from the stop signal to SIGKILL; 0: unknown
    attempt: Path | None  # folder of the service for this run
    is_scheduled: bool  # by the service, which keeps the measured caps of recurring jobs

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> JobEnvironment:
        """Read the settings.

        They are JOB_ID, GROUP, BATCH_SIZE, POWER_LIMIT_W, CHECKPOINT_DIR, TARGET, MAX_COST_J, AIM,
        OBSERVE, EVENTS, SIGNAL, GRACE_S and ATTEMPT, each with the prefix WATTLINE_.
        """

        def read_text(name: str) -> str:
            return environ.get(f"WATTLINE_{name}", "").strip()

        def read_number(name: str) -> float | None:
            text = read_text(name)
            try:
                value = float(text) if text else None
            except ValueError:
                value = -1.0
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"WATTLINE_{name} is {text!r}, expected a number above 0")
            return value

        batch = read_number("BATCH_SIZE")
        if batch is not None and batch != int(batch):
            raise ConfigError(f"WATTLINE_BATCH_SIZE is {read_text('BATCH_SIZE')!r}, expected a whole number")
        name = read_text("SIGNAL") or "SIGTERM"
        if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
            raise ConfigError(f"WATTLINE_SIGNAL is {name!r}, expected the name of a signal such as SIGTERM")
        return cls(
            job_id=read_text("JOB_ID") or f"{os.getpid()}",
            group=read_text("GROUP"),
            batch_size=None if batch is None else int(batch),
            cap_w=read_number("POWER_LIMIT_W"),
            checkpoints=Path(read_text("CHECKPOINT_DIR")) if read_text("CHECKPOINT_DIR") else None,
            target=Target.parse(read_text("TARGET")) if read_text("TARGET") else None,
            max_cost_j=read_number("MAX_COST_J"),
            aim=read_text("AIM"),
            observe=_parse_flag("WATTLINE_OBSERVE", read_text("OBSERVE")),
            events=Path(read_text("EVENTS")) if read_text("EVENTS") else None,
            stop_signal=signal.Signals[name],
            grace_s=read_number("GRACE_S") or 0.0,
            attempt=Path(read_text("ATTEMPT")) if read_text("ATTEMPT") else None,
            is_scheduled=bool(read_text("ATTEMPT")),
        )


def _parse_flag(name: str, text: str) -> bool:
    known = {"": False, "0": False, "no": False, "false": False, "1": True, "yes": True, "true": True}
    if text.casefold() not in known:
        raise ConfigError(f"{name} is {text!r}, expected 1 or 0")
    return known[text.casefold()]

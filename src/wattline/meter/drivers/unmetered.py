"""The meter `none`: energy is "unmetered", never 0 J."""

from __future__ import annotations

import time

from wattline.errors import ConfigError
from wattline.meter.protocol import Gpu


class UnmeteredMeter:
    """A machine without energy measurement."""

    name = "none"

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Always empty."""
        return ()

    def now_s(self) -> float:
        """Return the seconds of this machine's monotonic clock."""
        return time.monotonic()

    def stepped(self, samples: float) -> None:
        """Do nothing: real steps take their own time."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def open_driver(options: str = "") -> UnmeteredMeter:
    """Open the meter `none`."""
    if options:
        raise ConfigError(f"the meter none takes no options, got {options!r}", "write: none")
    return UnmeteredMeter()

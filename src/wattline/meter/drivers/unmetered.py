"""No meter: nothing is read, and energy is "unmetered", never 0 J."""

from __future__ import annotations

import time

from wattline.errors import ConfigError
from wattline.meter.protocol import Gpu


class Unmetered:
    """A machine on which no joules can be told."""

    name = "none"

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """None."""
        return ()

    def now_s(self) -> float:
        """Seconds of this machine, without jumps."""
        return time.monotonic()

    def stepped(self, samples: float) -> None:
        """Nothing to do: steps take the time they take."""

    def close(self) -> None:
        """Nothing to let go of."""


def open_text(text: str = "") -> Unmetered:
    """The meter `none`."""
    if text:
        raise ConfigError(f"the meter none takes nothing after it, and has {text!r}")
    return Unmetered()

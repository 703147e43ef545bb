"""How much power a GPU and its node draw, by kind of GPU.

Assumptions, until devices are measured: *max_w* is the board's nameplate limit; idle watts, *base_w*
(the rest of an 8-GPU server of the time) and three quarters of the limit for a GPU that trains are
round guesses that no measurement stands behind.
"""

from __future__ import annotations

from dataclasses import dataclass

from wattline.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Device:
    """Watts of one GPU kind: idle, at its limit, and of the node around eight of them."""

    name: str
    idle_w: float
    max_w: float
    base_w: float

    @property
    def busy_w(self) -> float:
        """One GPU that trains."""
        return 0.75 * self.max_w


DEVICES: dict[str, Device] = {
    d.name: d
    for d in (
        Device("k80", 30.0, 150.0, 300.0),  # one of the two chips of a 300 W board
        Device("p100", 30.0, 250.0, 350.0),
        Device("v100", 40.0, 300.0, 500.0),
        Device("t4", 10.0, 70.0, 250.0),
        Device("rtx6000", 25.0, 260.0, 350.0),
        Device("a40", 30.0, 300.0, 500.0),
        Device("a100-pcie", 45.0, 300.0, 600.0),
        Device("a100", 55.0, 400.0, 900.0),
        Device("h100", 70.0, 700.0, 1500.0),
    )
}


def device(name: str) -> Device:
    """The built-in device of that name (any case)."""
    found = DEVICES.get(name.casefold())
    if found is None:
        raise ConfigError(
            f"unknown GPU kind {name!r}, expected one of {', '.join(DEVICES)}",
            hint=did_you_mean(name.casefold(), DEVICES),
        )
    return found

"""What can be read and set on a GPU, whatever stands behind it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Gpu(Protocol):
    """One GPU. Every method raises a `MeterError` if it is gone, and `NotPermitted` if it may not be."""

    @property
    def index(self) -> int:
        """Its number as the job sees it."""
        ...

    @property
    def uuid(self) -> str:
        """What no other GPU has; the same in every process, also after a reboot."""
        ...

    @property
    def name(self) -> str:
        """As its maker calls it."""
        ...

    @property
    def kind(self) -> str:
        """As `wattline.measurement.devices` calls it; empty: none of these."""
        ...

    @property
    def method(self) -> str:
        """How its joules are known, in words for reports: `nvml energy counter`, `simulated` …"""
        ...

    @property
    def spec(self) -> str:
        """What `open_meter` finds it with again, in any process: how a cap is restored after us."""
        ...

    def energy_j(self) -> float:
        """Joules since some moment that stays the same; never falls."""
        ...

    def power_w(self) -> float:
        """What it draws now."""
        ...

    def cap_w(self) -> float:
        """Its power cap."""
        ...

    def cap_range_w(self) -> tuple[float, float]:
        """The least and the largest cap that can be set."""
        ...

    def set_cap(self, watts: float) -> None:
        """Set its power cap; a `ConfigError` names the range if it is outside."""
        ...

    def lock_clock(self, mhz: float | None) -> None:
        """Hold its clock at *mhz*; None: let it go."""
        ...

    def temperature_c(self) -> float:
        """How warm it is."""
        ...


@runtime_checkable
class Meter(Protocol):
    """The GPUs of this machine that a job may use, and the clock that goes with their readings."""

    @property
    def name(self) -> str:
        """What it is: `nvml`, `rapl`, `zeusd`, `simulated`, `replay`, `none`."""
        ...

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Those that can be read, in the order in which the job sees them; none: unmetered."""
        ...

    def now_s(self) -> float:
        """Seconds on a clock that never jumps: of this machine, or a simulated one."""
        ...

    def stepped(self, samples: float) -> None:
        """A step of so many samples was done. Simulated GPUs let the time pass that it takes on them; for
        others nothing happens."""
        ...

    def close(self) -> None:
        """Let go of everything; what was set stays set."""
        ...

"""Protocols of meters: `Gpu` (readings and settings of one GPU) and `Meter` (the GPUs of a machine)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Gpu(Protocol):
    """One GPU. Every method raises a `MeterError` if the GPU is lost, and `NotPermitted` if it is denied.

    Optional: *counter_s*, the seconds between two renewals of its energy counter, and *component*, `cpu` or
    `dram`, if it is no GPU.
    """

    @property
    def index(self) -> int:
        """Index of the GPU as the job sees it."""
        ...

    @property
    def uuid(self) -> str:
        """Unique id, the same in every process and after a reboot."""
        ...

    @property
    def name(self) -> str:
        """Product name."""
        ...

    @property
    def kind(self) -> str:
        """Name in `wattline.measurement.devices`; empty: not listed there."""
        ...

    @property
    def method(self) -> str:
        """Description of the energy measurement for reports: `nvml energy counter`, `simulated` …"""
        ...

    @property
    def spec(self) -> str:
        """Text with which `open_meter` finds it in any process, to restore a cap after this one has ended."""
        ...

    def energy_j(self) -> float:
        """Return the joules since a fixed moment; the value never decreases."""
        ...

    def power_w(self) -> float:
        """Return the power draw now."""
        ...

    def cap_w(self) -> float:
        """Return the power cap."""
        ...

    def cap_range_w(self) -> tuple[float, float]:
        """Return the smallest and the largest cap that can be set."""
        ...

    def set_cap(self, watts: float) -> None:
        """Set the power cap; raise a `ConfigError` that names the range if *watts* is outside it."""
        ...

    def lock_clock(self, mhz: float | None) -> None:
        """Lock the clock at *mhz*; None: unlock it."""
        ...

    def temperature_c(self) -> float:
        """Return the temperature in degrees Celsius."""
        ...


@runtime_checkable
class SharedGpu(Protocol):
    """A GPU of which the driver knows the other users; not all drivers do."""

    def other_processes(self) -> tuple[int, ...]:
        """Return the ids of compute processes that are not part of this job."""
        ...

    def slowdown(self) -> str:
        """Return why the GPU is slower than its cap allows, such as `too hot`; empty: it is not."""
        ...


@runtime_checkable
class Meter(Protocol):
    """The GPUs of this machine that a job may use, and the clock of their readings.

    Optional: *is_virtual*, True if the clock is not that of this machine.
    """

    @property
    def name(self) -> str:
        """Name of the driver: `nvml`, `rapl`, `zeusd`, `simulated`, `replay`, `none`."""
        ...

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The readable GPUs in the order in which the job sees them; empty: unmetered."""
        ...

    def now_s(self) -> float:
        """Return the seconds of a monotonic clock: this machine's, or a simulated one."""
        ...

    def stepped(self, samples: float) -> None:
        """Record a training step of *samples* samples.

        Simulated GPUs let the time of the step pass; other meters do nothing.
        """
        ...

    def close(self) -> None:
        """Release all resources; caps and clocks stay as they are set."""
        ...

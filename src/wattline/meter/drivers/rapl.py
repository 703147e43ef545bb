"""Energy of the CPUs of this machine (not of GPUs), from the kernel's powercap counters (RAPL).

Counted are packages, and their memory where it has a counter of its own. The counters wrap at a maximum,
some every few minutes, so a thread reads them often enough. Caps are not supported: a RAPL limit applies to
the whole machine, not to a job.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import NoReturn

from wattline.errors import ConfigError, MeterError, NotPermitted
from wattline.meter.power_sampler import PeriodicThread
from wattline.meter.protocol import Gpu

ROOT = Path("/sys/class/powercap")
_READ_S = 20.0  # 262 kJ, the usual range, last nine minutes at 500 W
_MIN_INTERVAL_S = 0.05  # power over a shorter interval is noise


class RaplZone:
    """One energy counter: a CPU package, or the memory of a package."""

    method = "rapl energy counter (CPU, not GPU)"
    kind = ""
    counter_s = 0.001  # between two renewals of the counter

    def __init__(self, folder: Path, index: int, name: str) -> None:
        self._file = folder / "energy_uj"
        self._range_j = _read_number(folder / "max_energy_range_uj") / 1e6
        self.index = index
        self.name = name
        self.component = "dram" if name.startswith("memory") else "cpu"
        self.uuid = f"RAPL-{os.uname().nodename}-{folder.name}"
        self.spec = "rapl" if folder.parent == ROOT else f"rapl:{folder.parent}"
        self._lock = threading.Lock()
        self._last_j = _read_number(self._file) / 1e6
        self._wrapped_j = 0.0
        self._last_power_reading = time.monotonic(), self._last_j
        self._power_w = 0.0

    def energy_j(self) -> float:
        """Return the joules, continued when the counter wraps."""
        with self._lock:
            read_j = _read_number(self._file) / 1e6
            if read_j < self._last_j:
                self._wrapped_j += self._range_j
            self._last_j = read_j
            return self._wrapped_j + read_j

    def power_w(self) -> float:
        """Return the mean power since the last call, or since the meter was opened."""
        then_s, then_j = self._last_power_reading
        if time.monotonic() - then_s < _MIN_INTERVAL_S:
            if self._power_w:
                return self._power_w
            time.sleep(_MIN_INTERVAL_S)
        now_s, now_j = time.monotonic(), self.energy_j()
        self._last_power_reading = now_s, now_j
        self._power_w = (now_j - then_j) / (now_s - then_s)
        return self._power_w

    def cap_w(self) -> float:
        """Raise `NotPermitted`: caps of CPUs are not supported."""
        self._refuse("power caps are")

    def cap_range_w(self) -> tuple[float, float]:
        """Raise `NotPermitted`: caps of CPUs are not supported."""
        self._refuse("power caps are")

    def set_cap(self, watts: float) -> None:
        """Raise `NotPermitted`: caps of CPUs are not supported."""
        self._refuse("power caps are")

    def lock_clock(self, mhz: float | None) -> None:
        """Raise `NotPermitted`: clocks of CPUs are not supported."""
        self._refuse("a clock lock is")

    def temperature_c(self) -> float:
        """Raise a `MeterError`: RAPL has no temperatures."""
        raise MeterError(f"{self.name}: RAPL does not report temperatures")

    def _refuse(self, what: str) -> NoReturn:
        raise NotPermitted(f"{self.name} is a CPU: its energy is read, {what} not supported")


class RaplMeter:
    """The CPUs of this machine."""

    name = "rapl"

    def __init__(self, root: Path = ROOT) -> None:
        self._gpus = tuple(
            RaplZone(folder, index, name) for index, (folder, name) in enumerate(_find_zones(root))
        )
        self._thread = PeriodicThread(_READ_S, self._read_zones) if self._gpus else None

    def _read_zones(self) -> None:
        for zone in self._gpus:
            zone.energy_j()

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The CPU counters; their `method` says that they are no GPUs."""
        return self._gpus

    def now_s(self) -> float:
        """Return the seconds of this machine's monotonic clock."""
        return time.monotonic()

    def stepped(self, samples: float) -> None:
        """Do nothing: real steps take their own time."""

    def close(self) -> None:
        """Stop the reading thread."""
        if self._thread is not None:
            self._thread.stop()


def _find_zones(root: Path) -> list[tuple[Path, str]]:
    """Return folders and names of packages and their memory.

    Cores are part of a package, and psys contains everything, so both would be counted twice.
    """
    zones = []
    for folder in sorted(root.glob("intel-rapl:*")):
        try:
            name = (folder / "name").read_text().strip()
        except OSError:
            continue
        if name.startswith("package-"):
            zones.append((folder, f"CPU {name.replace('-', ' ')}"))
        elif name == "dram":
            zones.append((folder, f"memory of CPU package {folder.name.split(':')[1]}"))
    if not zones:
        raise MeterError(f"no RAPL counters in {root}", "virtual machines and many containers have none")
    return zones


def _read_number(path: Path) -> int:
    try:
        return int(path.read_text())
    except PermissionError:
        raise NotPermitted(
            f"{path} may only be read by root", f"type: sudo chmod a+r {path}; or run as root"
        ) from None
    except (OSError, ValueError) as error:
        raise MeterError(f"{path} cannot be read: {error}") from None


def open_driver(options: str = "") -> RaplMeter:
    """Open the meter `rapl` on this machine, or on a folder laid out like /sys/class/powercap."""
    root = Path(options) if options else ROOT
    if options and not root.is_dir():
        raise ConfigError(f"the rapl meter got {options!r}, expected nothing, or a folder like {ROOT}")
    return RaplMeter(root)

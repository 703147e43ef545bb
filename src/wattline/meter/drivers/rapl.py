"""Joules of the CPUs of this machine (not of GPUs), from the counters that the kernel shows as powercap.

Packages, and their memory where it has a counter of its own. The counters begin anew at a largest value,
some every few minutes: a thread looks at them often enough. No caps: those of RAPL are the machine's, not a
job's.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import NoReturn

from wattline.errors import ConfigError, MeterError, NotPermitted
from wattline.meter.power_sampler import Every
from wattline.meter.protocol import Gpu

ROOT = Path("/sys/class/powercap")
_LOOK_S = 20.0  # 262 kJ, the usual range, are gone in nine minutes at 500 W
_BLINK_S = 0.05  # power over less than that is noise


class Zone:
    """One counter: a CPU package, or the memory of one."""

    method = "rapl energy counter (CPU, not GPU)"
    kind = ""

    def __init__(self, folder: Path, index: int, name: str) -> None:
        self._file = folder / "energy_uj"
        self._range_j = _number(folder / "max_energy_range_uj") / 1e6
        self.index = index
        self.name = name
        self.uuid = f"RAPL-{os.uname().nodename}-{folder.name}"
        self.spec = "rapl" if folder.parent == ROOT else f"rapl:{folder.parent}"
        self._lock = threading.Lock()
        self._last_j = _number(self._file) / 1e6
        self._wrapped_j = 0.0
        self._seen = time.monotonic(), self._last_j
        self._power_w = 0.0

    def energy_j(self) -> float:
        """Joules; goes on where the counter begins anew."""
        with self._lock:
            read_j = _number(self._file) / 1e6
            if read_j < self._last_j:
                self._wrapped_j += self._range_j
            self._last_j = read_j
            return self._wrapped_j + read_j

    def power_w(self) -> float:
        """On average since the last time somebody asked, or the meter was opened."""
        then_s, then_j = self._seen
        if time.monotonic() - then_s < _BLINK_S:
            if self._power_w:
                return self._power_w
            time.sleep(_BLINK_S)
        now_s, now_j = time.monotonic(), self.energy_j()
        self._seen = now_s, now_j
        self._power_w = (now_j - then_j) / (now_s - then_s)
        return self._power_w

    def cap_w(self) -> float:
        """Not for us."""
        self._refuse("a power cap")

    def cap_range_w(self) -> tuple[float, float]:
        """Not for us."""
        self._refuse("a power cap")

    def set_cap(self, watts: float) -> None:
        """Not for us."""
        self._refuse("a power cap")

    def lock_clock(self, mhz: float | None) -> None:
        """Not for us."""
        self._refuse("a clock")

    def temperature_c(self) -> float:
        """RAPL does not know."""
        raise MeterError(f"{self.name}: RAPL does not tell temperatures")

    def _refuse(self, what: str) -> NoReturn:
        raise NotPermitted(f"{self.name} is a CPU: it is read here, and {what} is not set")


class Rapl:
    """The CPUs of this machine."""

    name = "rapl"

    def __init__(self, root: Path = ROOT) -> None:
        self._gpus = tuple(Zone(folder, index, name) for index, (folder, name) in enumerate(_zones(root)))
        self._thread = Every(_LOOK_S, self._look) if self._gpus else None

    def _look(self) -> None:
        for zone in self._gpus:
            zone.energy_j()

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The counters; no GPUs, and their method says so."""
        return self._gpus

    def now_s(self) -> float:
        """Seconds of this machine, without jumps."""
        return time.monotonic()

    def stepped(self, samples: float) -> None:
        """Nothing to do: steps take the time they take."""

    def close(self) -> None:
        """Look no more."""
        if self._thread is not None:
            self._thread.stop()


def _zones(root: Path) -> list[tuple[Path, str]]:
    """Packages and their memory: cores are part of a package, and psys has all in it."""
    found = []
    for folder in sorted(root.glob("intel-rapl:*")):
        try:
            name = (folder / "name").read_text().strip()
        except OSError:
            continue
        if name.startswith("package-"):
            found.append((folder, f"CPU {name.replace('-', ' ')}"))
        elif name == "dram":
            found.append((folder, f"memory of CPU package {folder.name.split(':')[1]}"))
    if not found:
        raise MeterError(f"no RAPL counters in {root}", "virtual machines and many containers have none")
    return found


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except PermissionError:
        raise NotPermitted(
            f"{path} may only be read by root", "sudo chmod a+r on it, or run as root"
        ) from None
    except (OSError, ValueError) as error:
        raise MeterError(f"{path} cannot be read: {error}") from None


def open_text(text: str = "") -> Rapl:
    """The meter `rapl`, of this machine or of another tree that looks like /sys/class/powercap."""
    root = Path(text) if text else ROOT
    if text and not root.is_dir():
        raise ConfigError(f"the rapl meter has {text!r}, expected nothing, or a folder like {ROOT}")
    return Rapl(root)

"""Energy sources of a measuring window: the GPUs of this process, and the CPUs and memory of its machine.

Meters are opened on first use and stay open until the process ends. Inside a `wattline.Session` its meter is
used, so that both read the same GPUs on the same clock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from wattline.errors import ConfigError, MeterError
from wattline.meter import Meter, open_meter
from wattline.meter.protocol import Gpu

_open_meters: dict[tuple[str | None, ...], Meter] = {}
_session_meters: list[Meter] = []
_lock = threading.RLock()


@dataclass(frozen=True)
class EnergySources:
    """Devices to read on the clock of *meter*; *missing* has the reason for each part without devices."""

    meter: Meter
    gpus: tuple[Gpu, ...]
    cpu: tuple[Gpu, ...]
    dram: tuple[Gpu, ...]
    missing: dict[str, str]

    @property
    def devices(self) -> tuple[Gpu, ...]:
        """All devices."""
        return (*self.gpus, *self.cpu, *self.dram)


@contextmanager
def use_meter(meter: Meter) -> Iterator[None]:
    """Make *meter* that of all windows and timelines of this process that name none."""
    _session_meters.append(meter)
    try:
        yield
    finally:
        with suppress(ValueError):  # a process forked inside the block has forgotten it
            _session_meters.remove(meter)


def find_sources(
    meter: str | Meter | None = None, gpus: int | Sequence[int] | None = None, cpu: bool | str = True
) -> EnergySources:
    """Return the devices to measure.

    *meter* is None (of the running session, else `auto`), a text as `open_meter` takes it, or an open meter.
    *gpus* are indices as this process sees its GPUs; None: all, or the rank's own GPU under torchrun. *cpu*
    is True to read CPUs and memory too, where that is possible, or a meter such as `rapl:FOLDER`. Of several
    ranks on a machine only the first reads them, so that sums over ranks count no joule twice.
    """
    found = _find_meter(meter)
    missing: dict[str, str] = {}
    zones = [device for device in found.gpus if hasattr(device, "component")]
    chosen = _select_gpus(tuple(device for device in found.gpus if device not in zones), gpus)
    if not zones:
        zones, reason = _find_cpu_zones(found, cpu)
        missing |= {"cpu": reason, "dram": reason}
    parts = {
        name: tuple(zone for zone in zones if getattr(zone, "component", "") == name)
        for name in ("cpu", "dram")
    }
    if zones:
        missing |= {name: "no counter" for name, found_zones in parts.items() if not found_zones}
    if not chosen:
        missing["gpu"] = "no GPU can be read, see wattline doctor"
    return EnergySources(found, chosen, parts["cpu"], parts["dram"], missing)


def read_rank() -> tuple[int, int, int]:
    """Return rank, local rank and number of ranks, as torchrun sets them."""
    values = [os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")]
    rank, local, count = (int(text) if text.isdecimal() else 0 for text in values)
    return rank, local, max(count, 1)


def _find_meter(meter: str | Meter | None) -> Meter:
    if meter is not None and not isinstance(meter, str):
        return meter
    with _lock:
        if meter is None and _session_meters:
            return _session_meters[-1]
        return _open_once(meter or "auto")


def _open_once(text: str) -> Meter:
    key = (text, os.environ.get("WATTLINE_METER"), os.environ.get("CUDA_VISIBLE_DEVICES"))
    with _lock:
        if key not in _open_meters:
            _open_meters[key] = open_meter(text)
        return _open_meters[key]


def _select_gpus(known: tuple[Gpu, ...], gpus: int | Sequence[int] | None) -> tuple[Gpu, ...]:
    _, local_rank, ranks = read_rank()
    if gpus is None:
        return known if ranks == 1 or len(known) < 2 else known[local_rank % len(known) :][:1]
    chosen = list(gpus) if isinstance(gpus, Iterable) else [gpus]
    by_index = {gpu.index: gpu for gpu in known}
    for index in chosen:
        if index not in by_index or chosen.count(index) > 1:
            indices = ", ".join(map(str, by_index)) or "none: no GPU can be read here"
            raise ConfigError(f"gpus has {index}, expected each once of {indices}")
    return tuple(by_index[index] for index in chosen)


def _find_cpu_zones(meter: Meter, cpu: bool | str) -> tuple[list[Gpu], str]:
    """Return the counters of CPUs and memory, and the reason if there are none."""
    if cpu is False:
        return [], "not asked for"
    if getattr(meter, "is_virtual", False):
        return [], f"the {meter.name} meter has a clock of its own"
    if read_rank()[1] > 0:
        return [], "read by local rank 0"
    try:
        return list(_open_once("rapl" if cpu is True else cpu).gpus), ""
    except MeterError as error:
        return [], error.message


def _forget_after_fork() -> None:
    """Let a forked process open its own meters: driver handles and threads belong to the parent."""
    global _lock
    _lock = threading.RLock()
    _open_meters.clear()
    _session_meters.clear()


os.register_at_fork(after_in_child=_forget_after_fork)

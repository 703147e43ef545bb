"""Measuring windows: time and energy of any part of a program.

    with wattline.window("epoch", csv="energy.csv") as w:
        train_one_epoch()
    print(w.time_s, w.energy_j, w.gpu_j, w.cpu_j, w.dram_j, w.method)

Windows may be nested and may overlap, also in several threads; each measures as if it were alone. A value
that cannot be read is None, never 0, and `method` names the reason.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from wattline.errors import ConfigError, MeterError
from wattline.meter.counter_watch import counter_period_s, watch_counter
from wattline.meter.energy_window import EnergyPart, EnergyWindow
from wattline.meter.gpu_sync import synchronize_gpus
from wattline.meter.protocol import Gpu, Meter
from wattline.meter.sources import EnergySources, find_sources, read_rank
from wattline.meter.window_log import WindowLog

F = TypeVar("F", bound=Callable[..., Any])

_open_windows: dict[str, MeasuringWindow] = {}
_lock = threading.Lock()
_announced: set[str] = set()


@dataclass(frozen=True)
class WindowMeasurement:
    """Time and energy of a window.

    *start_time* is in seconds since 1970, *time_s* on the meter's clock. *energy_j* is the sum of all parts
    that were read: *gpu_j* by index of the GPU, *cpu_j* of all packages, *dram_j* of their memory; None:
    unmetered. *error_j* is the largest error that the age of the counters' readings can cause. *approximate*
    is True if a part is power × time, since its counter was not renewed within the window.
    """

    name: str
    start_time: float
    time_s: float
    energy_j: float | None
    gpu_j: dict[int, float | None]
    cpu_j: float | None
    dram_j: float | None
    error_j: float | None
    method: str
    approximate: bool

    @property
    def power_w(self) -> float | None:
        """Mean power; None: unmetered, or no time has passed."""
        return None if self.energy_j is None or self.time_s <= 0 else self.energy_j / self.time_s


class MeasuringWindow:
    """A window that is measured while a `with` block runs, or at each call of a function that it decorates.

    When it has ended it has the attributes of `WindowMeasurement`; `read` returns them before.
    """

    start_time: float
    time_s: float
    energy_j: float | None
    gpu_j: dict[int, float | None]
    cpu_j: float | None
    dram_j: float | None
    error_j: float | None
    power_w: float | None
    method: str
    approximate: bool

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        if not isinstance(name, str) or not name or "\n" in name:
            raise ConfigError(f"the name of a window is {name!r}, expected a text of one line")
        self.name = name
        self._options = options
        self._energy: EnergyWindow | None = None
        self._pid = 0

    def __enter__(self) -> MeasuringWindow:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._energy is not None:  # the block may have ended it
            self.end()

    def __getattr__(self, attribute: str) -> Any:
        if attribute in MeasuringWindow.__annotations__:
            raise AttributeError(
                f"{attribute} of window {self.name!r} is known when it has ended; read() measures it before"
            )
        raise AttributeError(f"a window has no attribute {attribute!r}")

    def __call__(self, function: F) -> F:
        """Decorate *function*: each call is a window; `function.window` is the last that has ended."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(
                f"{function.__name__} is a generator, of which a window would measure only the first call",
                "open the window inside it",
            )
        measured: Any

        def open_new() -> MeasuringWindow:
            return MeasuringWindow(self.name, self._options)

        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def measured(*values: Any, **named: Any) -> Any:
                with open_new() as ended:
                    result = await function(*values, **named)
                measured.window = ended
                return result
        else:

            @wraps(function)
            def measured(*values: Any, **named: Any) -> Any:
                with open_new() as ended:
                    result = function(*values, **named)
                measured.window = ended
                return result

        return measured  # type: ignore[no-any-return]

    def begin(self) -> None:
        """Start to measure; another open window with the same name is an error."""
        options = self._options
        sources = find_sources(options["meter"], options["gpus"], options["cpu"])
        log = WindowLog(options["csv"], _list_columns(sources)) if options["csv"] is not None else None
        with _lock:
            if self.name in _open_windows:
                raise ConfigError(
                    f"window {self.name!r} is already open, expected another name",
                    f"end it first: wattline.end_window({self.name!r})",
                )
            _open_windows[self.name] = self
        try:
            for attribute in MeasuringWindow.__annotations__:
                self.__dict__.pop(attribute, None)  # of an earlier block with the same object
            self._sources, self._log, self._pid = sources, log, os.getpid()
            self._synchronize()
            self.start_time = time.time()
            self._energy = EnergyWindow(sources.meter, sources.devices, claim=False)
            for gpu in sources.gpus:
                watch_counter(gpu)
        except BaseException:
            self._forget()
            raise

    def read(self) -> WindowMeasurement:
        """Return the measurement so far; the window stays open."""
        if self._energy is None:
            raise ConfigError(f"window {self.name!r} is not open")
        self._synchronize()
        used = self._energy.read()
        return _build_measurement(self.name, self.start_time, used.seconds, used.parts, self._sources)

    def end(self) -> WindowMeasurement | None:
        """Stop to measure, and write the row of the log; None: this process was forked inside the window."""
        if self._energy is None:
            raise ConfigError(f"window {self.name!r} is not open")
        if self._pid != os.getpid():  # the parent measures it
            self._energy = None
            return None
        try:
            measured = self.read()
        finally:
            self._energy = None
            self._forget()
        for field in fields(measured):
            setattr(self, field.name, getattr(measured, field.name))
        self.power_w = measured.power_w
        if measured.approximate:
            _announce_once(
                f"window {self.name!r}",
                f"took {measured.time_s:.3g} s, less than a renewal of the energy counter:"
                " its energy is power x time",
            )
        if self._log is not None:
            self._write_row(self._log, measured)
        return measured

    def _synchronize(self) -> None:
        sync = self._options["sync"]
        if callable(sync):
            sync()
        elif sync:
            synchronize_gpus()

    def _forget(self) -> None:
        with _lock:
            if _open_windows.get(self.name) is self:
                del _open_windows[self.name]

    def _write_row(self, log: WindowLog, measured: WindowMeasurement) -> None:
        row: dict[str, object] = {
            "start_time": f"{measured.start_time:.6f}",
            "window_name": measured.name,
            "elapsed_time": f"{measured.time_s:.6f}",
            **{f"gpu{index}_energy": _format(joules) for index, joules in measured.gpu_j.items()},
            "cpu_energy": _format(measured.cpu_j),
            "dram_energy": _format(measured.dram_j),
            "total_energy": _format(measured.energy_j),
            "energy_error": _format(measured.error_j),
            "method": measured.method,
            "rank": read_rank()[0],
        }
        try:
            log.append(row)
        except OSError as error:  # training goes on
            _announce_once(str(log.path), f"windows cannot be written: {error.strerror}")


def window(
    name: str,
    *,
    gpus: int | Sequence[int] | None = None,
    csv: str | Path | None = None,
    sync: bool | Callable[[], object] = True,
    cpu: bool | str = True,
    meter: str | Meter | None = None,
) -> MeasuringWindow:
    """Return a window that measures the time and energy of a `with` block or of a decorated function.

    *gpus* are the indices of GPUs as this process sees them; None: all that CUDA_VISIBLE_DEVICES leaves
    visible, or the own GPU of a rank of torchrun. *csv* is a file to which a row is appended when the window
    ends. With *sync* work queued by PyTorch is waited for; for other frameworks it is a function that waits.
    *cpu* False leaves CPUs and memory out. *meter* is one of `wattline.meter.open_meter`.
    """
    return MeasuringWindow(name, {"gpus": gpus, "csv": csv, "sync": sync, "cpu": cpu, "meter": meter})


def begin_window(name: str, **options: Any) -> MeasuringWindow:
    """Begin a window, with the options of `window`; `end_window` ends it."""
    begun = window(name, **options)
    begun.begin()
    return begun


def end_window(name: str) -> MeasuringWindow:
    """End the open window *name*, and return it with its measurement."""
    with _lock:
        ended = _open_windows.get(name)
        names = ", ".join(map(repr, _open_windows)) or "none"
    if ended is None:
        raise ConfigError(f"window {name!r} is not open, open windows: {names}")
    ended.end()
    return ended


def _build_measurement(
    name: str, start_time: float, seconds: float, parts: Sequence[EnergyPart], sources: EnergySources
) -> WindowMeasurement:
    joules, errors, methods, approximate = {}, [], {}, False
    for part in parts:
        device = part.gpu
        joules[device.uuid], error_j, methods[device.uuid] = _measure_part(part, seconds)
        approximate = approximate or methods[device.uuid].startswith("power x time")
        if joules[device.uuid] is not None:
            errors.append(error_j)

    def add(devices: Sequence[Gpu]) -> float | None:
        known = [value for device in devices if (value := joules[device.uuid]) is not None]
        return sum(known) if known else None

    texts: dict[str, list[str]] = {}  # names of the parts by method
    for label, devices in (("gpu", sources.gpus), ("cpu", sources.cpu), ("dram", sources.dram)):
        text = " and ".join(dict.fromkeys(methods[device.uuid] for device in devices))
        texts.setdefault(text or f"unmetered ({sources.missing[label]})", []).append(label)
    return WindowMeasurement(
        name=name,
        start_time=start_time,
        time_s=seconds,
        energy_j=add(sources.devices),
        gpu_j={gpu.index: joules[gpu.uuid] for gpu in sources.gpus},
        cpu_j=add(sources.cpu),
        dram_j=add(sources.dram),
        error_j=sum(errors) if errors else None,
        method="; ".join(f"{' and '.join(labels)}: {text}" for text, labels in texts.items()),
        approximate=approximate,
    )


def _measure_part(part: EnergyPart, seconds: float) -> tuple[float | None, float, str]:
    """Return joules, their possible error and the method of one device."""
    method, used_j = part.gpu.method, part.energy_j
    if used_j is None or (part.lost and used_j <= 0):
        return None, 0.0, f"unmetered ({part.lost or 'it was never read'})"
    if part.lost:
        _announce_once(part.gpu.name, f"counted until it was lost: {part.lost}")
        return used_j, used_j, f"{method}, until it was lost ({part.lost})"
    if seconds <= 0:
        return None, 0.0, f"unmetered ({method}: no time has passed on its clock)"
    period_s = counter_period_s(part.gpu)
    is_derived = hasattr(part.gpu, "component")  # the power of CPUs is that of their counter
    if period_s == 0 or (used_j > 0 and (seconds >= period_s or is_derived)):
        return used_j, used_j * min(period_s / seconds, 1.0), method
    try:
        used_j = part.gpu.power_w() * seconds
    except MeterError:
        return None, 0.0, f"unmetered (no renewal of the {method} in {seconds:.3g} s)"
    return used_j, used_j, f"power x time, shorter than the {period_s:g} s of the {method}"


def _list_columns(sources: EnergySources) -> list[str]:
    gpus = [f"gpu{gpu.index}_energy" for gpu in sources.gpus]
    totals = ["cpu_energy", "dram_energy", "total_energy", "energy_error", "method", "rank"]
    return ["start_time", "window_name", "elapsed_time", *gpus, *totals]


def _format(joules: float | None) -> str:
    return "" if joules is None else f"{joules:.6f}"


def _announce_once(subject: str, text: str) -> None:
    """Print *text* on stderr, unless something was printed about *subject* before."""
    if subject not in _announced:
        _announced.add(subject)
        print(f"wattline: {subject}: {text}", file=sys.stderr, flush=True)


def _forget_after_fork() -> None:
    """Close no window of the parent, and let the child open windows with the same names."""
    global _lock
    _lock = threading.Lock()
    _open_windows.clear()


os.register_at_fork(after_in_child=_forget_after_fork)

"""Simulated GPUs that follow the models of the library, for tests and machines without a GPU.

    simulated:2xv100,model=resnet50,batch=64,time=virtual,state=DIR

An idle GPU draws its idle power. A step of *samples* takes the time and draws the power that the library
predicts for the model under the current caps and clocks. With `time=virtual` only steps advance the clock;
with `time=real` (the default) `stepped` sleeps for the rest of the step time after the work itself. *batch*
is the batch size of all GPUs together. `state=DIR` keeps caps and counters and shares them with other
processes; without it they are deleted when the meter is closed. `gpus=0/2` are the GPUs of the job, if other
jobs use the rest; `gpu=2` shows one GPU only, as to one rank of several, which steps its share.

`counter=100` renews the energy counter every 100 ms, as those of real GPUs are; by default it is exact.

Faults: `denied=yes` forbids caps and clocks; `lost=5` loses the last GPU after five steps.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wattline.errors import ConfigError, MeterError, NotPermitted
from wattline.measurement.devices import Device, device
from wattline.meter.drivers.options import check_cap, check_choice, parse_options, parse_whole_number
from wattline.meter.drivers.simulated_state import GpuRow, SimulatedGpuState
from wattline.meter.neighbours import is_running, select_others
from wattline.meter.protocol import Gpu

if TYPE_CHECKING:
    from wattline.models.workload import Workload  # imports numpy, which restoring a cap does not need

_LONGEST_PART_S = 0.25  # of a step under one cap
_OPTIONS = ("model", "batch", "time", "state", "gpus", "gpu", "counter", "denied", "lost")
_EXAMPLE = "simulated:2xv100,model=resnet50"


class _StepRate(NamedTuple):
    """Samples per second of all GPUs if they had this GPU's cap and clock, and the power of this GPU."""

    samples_s: float
    watts: float


@dataclass(frozen=True)
class SimulationOptions:
    """Options of the meter; *job_gpus* are the GPUs of the job, *only* the GPU that this process sees."""

    device: Device
    count: int
    model: str = ""
    batch: int | None = None
    virtual: bool = False
    state: Path | None = None
    job_gpus: tuple[int, ...] = ()  # empty = all
    only: int | None = None
    counter_s: float = 0.0  # period of the energy counter; 0 = continuous
    denied: bool = False
    lost_after: int | None = None


class SimulatedGpu:
    """One simulated GPU."""

    method = "simulated"

    def __init__(self, meter: SimulatedMeter, number: int, index: int) -> None:
        self._meter, self._number = meter, number
        self.index = index
        self.uuid = f"SIM-{hashlib.sha1(str(meter.folder).encode()).hexdigest()[:12]}-{number}"
        self.name = f"simulated {meter.options.device.name}"
        self.kind = meter.options.device.name
        self.spec = meter.spec

    @property
    def counter_s(self) -> float:
        """Seconds between two renewals of the energy counter; 0: it is exact."""
        return self._meter.options.counter_s

    @property
    def _row(self) -> GpuRow:
        self._meter.check_present(self._number)
        return self._meter.state.read_row(self._number)

    def energy_j(self) -> float:
        """Return the energy counter: idle power all the time, plus the extra power of steps."""
        row, options = self._row, self._meter.options
        counter_s = find_last_renewal(self._meter.now_s(), options.counter_s)
        if options.counter_s and counter_s <= row.at_s:
            return row.counter_j
        return row.energy_j + max(counter_s - row.at_s, 0.0) * options.device.idle_w

    def power_w(self) -> float:
        """Return the power of the last step for as long as that step took, then the idle power.

        It is never above the cap, also if that was set after the step.
        """
        row, idle_w = self._row, self._meter.options.device.idle_w
        busy = row.busy_s > 0 and self._meter.now_s() <= row.at_s + row.busy_s
        return max(min(row.draw_w, row.cap_w), idle_w) if busy else idle_w

    def cap_w(self) -> float:
        """Return the power cap."""
        return self._row.cap_w

    def cap_range_w(self) -> tuple[float, float]:
        """Return the smallest and the largest cap of the device."""
        return self._meter.options.device.min_cap_w, self._meter.options.device.max_cap_w

    def set_cap(self, watts: float) -> None:
        """Set the power cap, also for other processes that share the state."""
        self._check_permitted("a power cap")
        with self._meter.state.change_row(self._number) as row:
            row.cap_w = check_cap(watts, *self.cap_range_w(), self.name)

    def lock_clock(self, mhz: float | None) -> None:
        """Lock the clock at *mhz*; None: unlock it."""
        self._check_permitted("a clock")
        low, high = self._meter.options.device.min_clock_mhz, self._meter.options.device.max_clock_mhz
        if mhz is not None and not low <= mhz <= high:
            raise ConfigError(
                f"a clock of {mhz:g} MHz is outside the range of {self.name}: {low:g} to {high:g} MHz"
            )
        with self._meter.state.change_row(self._number) as row:
            row.clock_mhz = mhz or 0.0

    def temperature_c(self) -> float:
        """Return a temperature that rises with the power draw."""
        return 30.0 + 0.15 * self.power_w()

    def other_processes(self) -> tuple[int, ...]:
        """Return the processes that made steps on this GPU and still run, without those of this job."""
        return select_others(self._meter.list_users(self._number))

    def slowdown(self) -> str:
        """Return nothing: a simulated GPU is never too hot."""
        return ""

    def memory_gib(self) -> float:
        """Return the memory of the device."""
        return self._meter.options.device.mem_gib

    def _check_permitted(self, what: str) -> None:
        self._meter.check_present(self._number)
        if self._meter.options.denied:
            raise NotPermitted(f"{self.name} refuses {what} (option denied=yes)")


class SimulatedMeter:
    """A machine of simulated GPUs that runs the steps of one job."""

    name = "simulated"

    def __init__(self, options: SimulationOptions) -> None:
        self.options = options
        folder = options.state or Path(tempfile.mkdtemp(prefix="wattline-sim-"))
        self.folder = folder.resolve()
        self._remove_folder = (
            weakref.finalize(self, shutil.rmtree, self.folder, True) if options.state is None else None
        )
        start_s = 0.0 if options.virtual else time.monotonic()
        device = options.device
        self.state = SimulatedGpuState(self.folder, device.name, options.count, device.max_cap_w, start_s)
        self._due_s = start_s  # when the step, or its part, is over in real time
        self._user_files: list[Path] = []
        self._rates: dict[tuple[float, float], _StepRate] = {}
        job_gpus = options.job_gpus or tuple(range(options.count))
        self._job_size = len(job_gpus)
        self._numbers = job_gpus if options.only is None else (options.only,)
        self._gpus = tuple(SimulatedGpu(self, number, index) for index, number in enumerate(self._numbers))
        if options.model:
            self._workload  # noqa: B018  raise now if the model cannot be simulated

    @property
    def is_virtual(self) -> bool:
        """True if only steps advance the clock."""
        return self.options.virtual

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that this process sees."""
        return self._gpus

    @property
    def spec(self) -> str:
        """Text that opens all of these GPUs in another process."""
        options = self.options
        words = [f"{options.count}x{options.device.name}", f"time={'virtual' if options.virtual else 'real'}"]
        if options.model:
            words.append(f"model={options.model}")
        if options.batch is not None:
            words.append(f"batch={options.batch}")
        if options.counter_s:
            words.append(f"counter={1e3 * options.counter_s:g}")
        if options.denied:
            words.append("denied=yes")
        if options.lost_after is not None:
            words.append(f"lost={options.lost_after}")
        return f"simulated:{','.join(words)},state={self.folder}"

    def now_s(self) -> float:
        """Return this machine's monotonic clock, or in virtual time the end of the last step on our GPUs."""
        if not self.options.virtual:
            return time.monotonic()
        return max(self.state.read_row(number).at_s for number in self._numbers)

    def stepped(self, samples: float) -> None:
        """Let the time of a step pass, and count its energy.

        A cap that changes during a long step changes its speed and power from then on, as on a real GPU.
        """
        if not samples > 0:
            raise ConfigError(f"a step has {samples:g} samples, expected more than 0")
        for number in self._numbers:
            self.check_present(number)
        if not self._user_files:
            self._add_user()
        left = samples * self._job_size / len(self._numbers)
        while True:
            rates = [self._look_up_rate(self.state.read_row(number)) for number in self._numbers]
            slowest_s = max(left / rate.samples_s for rate in rates)
            part = 1.0 if self.options.virtual else min(_LONGEST_PART_S / slowest_s, 1.0)
            self._step_part(part * left, rates, is_last=part == 1.0)
            left -= part * left
            if part == 1.0:
                self._due_s = time.monotonic()  # the next step begins now
                return

    def _step_part(self, job_samples: float, rates: Sequence[_StepRate], is_last: bool) -> None:
        """Let the time of a part of a step pass under the caps of its start."""
        busy_s = [job_samples / rate.samples_s for rate in rates]
        step_s = max(busy_s)
        end_s = self._pass_time(step_s)
        for number, rate, own_s in zip(self._numbers, rates, busy_s, strict=True):
            # Faster GPUs wait for the slowest.
            draw_w = rate.watts * (own_s + self._workload.waiting_power * (step_s - own_s)) / step_s
            self._count(number, max(draw_w, self.options.device.idle_w), step_s, end_s, is_last)

    def _add_user(self) -> None:
        """Note that this process computes on its GPUs, for other processes that share the state."""
        folder = self.folder / "users"
        folder.mkdir(exist_ok=True)
        self._user_files = [folder / f"{number}-{os.getpid()}" for number in self._numbers]
        for path in self._user_files:
            path.touch()

    def list_users(self, number: int) -> list[int]:
        """Return the running processes that have made steps on a GPU."""
        pids = [int(path.name.partition("-")[2]) for path in (self.folder / "users").glob(f"{number}-*")]
        return [pid for pid in sorted(pids) if is_running(pid)]

    def _pass_time(self, step_s: float) -> float:
        """Let *step_s* pass, and return the time after it."""
        if self.options.virtual:
            return self.now_s() + step_s
        self._due_s += step_s
        left_s = self._due_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        return time.monotonic()

    def _count(self, number: int, draw_w: float, step_s: float, end_s: float, is_last: bool) -> None:
        idle_w = self.options.device.idle_w
        with self.state.change_row(number) as row:
            renewed_s = find_last_renewal(end_s, self.options.counter_s)
            if renewed_s > row.at_s:
                busy_s = max(renewed_s - (end_s - step_s), 0.0)
                row.counter_j = row.energy_j + idle_w * (renewed_s - row.at_s) + (draw_w - idle_w) * busy_s
            row.energy_j += idle_w * max(end_s - row.at_s, 0.0) + (draw_w - idle_w) * step_s
            row.at_s = max(row.at_s, end_s)
            row.draw_w, row.busy_s = draw_w, step_s
            row.steps += is_last

    def _look_up_rate(self, row: GpuRow) -> _StepRate:
        """Return speed and power under the cap and clock of *row*; predict each pair only once."""
        key = row.cap_w, row.clock_mhz
        if key not in self._rates:
            self._rates[key] = self._predict(*key)
        return self._rates[key]

    def _predict(self, cap_w: float, clock_mhz: float) -> _StepRate:
        from wattline.measurement.settings import Settings

        settings = Settings.of(
            gpus=self._job_size, batch=self.options.batch, cap_w=cap_w, clock_mhz=clock_mhz or None
        )
        samples_s, watts = self._workload.predict(settings)
        # A fitted curve may be above a cap that it was not measured at.
        return _StepRate(float(samples_s[0]), min(float(watts[0]) / self._job_size, cap_w))

    @cached_property
    def _workload(self) -> Workload:
        from wattline.models.library import library

        known, kind = library(), self.options.device.name
        if self.options.model:
            return known.find(self.options.model, kind)
        first = next((w for w in known.workloads if w.gpu == kind), None)
        if first is None:
            raise ConfigError(f"the library has no measurement on {kind}", "wattline library list")
        return first

    def check_present(self, number: int) -> None:
        """Raise a `MeterError` if that GPU is lost."""
        after = self.options.lost_after
        if (
            after is not None
            and number == self.options.count - 1
            and self.state.read_row(number).steps >= after
        ):
            raise MeterError(f"GPU {number} ({self.options.device.name}) is lost: lost={after}")

    def close(self) -> None:
        """Close the state file, and delete it unless the option `state` is set."""
        for path in self._user_files:
            path.unlink(missing_ok=True)
        self.state.close()
        if self._remove_folder is not None:
            self._remove_folder()


def find_last_renewal(now_s: float, period_s: float) -> float:
    """Return the last time at which a counter with that period was renewed; 0: it always is."""
    return math.floor(now_s / period_s) * period_s if period_s else now_s


def open_driver(options: str) -> SimulatedMeter:
    """Open the meter `simulated:` *options*."""
    return SimulatedMeter(parse_simulation(options))


def parse_simulation(text: str) -> SimulationOptions:
    """Parse options such as `2xv100,model=resnet50,…`."""
    first, *words = text.split(",")
    shape = re.fullmatch(r"(?:(\d+)x)?([A-Za-z][\w-]*)", first)
    if shape is None or shape[1] == "0":
        raise ConfigError(
            f"the simulated meter got {first!r}, expected count and kind of GPU", f"write: {_EXAMPLE}"
        )
    values = parse_options("simulated", words, _OPTIONS)
    count = int(shape[1] or 1)
    only = parse_whole_number("simulated", "gpu", values["gpu"]) if "gpu" in values else None
    if only is not None and only >= count:
        raise ConfigError(f"gpu of the simulated meter is {only}, expected less than {count}")
    job_gpus = tuple(
        parse_whole_number("simulated", "gpus", n)
        for n in values.get("gpus", "").split("/")
        if "gpus" in values
    )
    for number in job_gpus:
        if number >= count or job_gpus.count(number) > 1:
            raise ConfigError(
                f"gpus of the simulated meter has {number}, expected each index once, below {count}"
            )
    if only is not None and job_gpus and only not in job_gpus:
        raise ConfigError(f"gpu of the simulated meter is {only}, expected one of gpus={values['gpus']}")
    return SimulationOptions(
        device=device(shape[2]),
        count=count,
        model=values.get("model", ""),
        batch=parse_whole_number("simulated", "batch", values["batch"], 1) if "batch" in values else None,
        virtual=check_choice("simulated", "time", values.get("time", "real"), ("virtual", "real"))
        == "virtual",
        state=Path(values["state"]) if "state" in values else None,
        job_gpus=job_gpus,
        only=only,
        counter_s=parse_whole_number("simulated", "counter", values.get("counter", "0")) / 1e3,
        denied=check_choice("simulated", "denied", values.get("denied", "no"), ("yes", "no")) == "yes",
        lost_after=parse_whole_number("simulated", "lost", values["lost"]) if "lost" in values else None,
    )

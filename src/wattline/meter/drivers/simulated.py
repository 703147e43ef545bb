"""GPUs that are not there, and follow the curves of the library: for tests, and to try things without one.

    simulated:2xv100,model=resnet50,batch=64,time=virtual,state=DIR

A GPU that does nothing draws its idle watts. A step of *samples* draws what the library says of the model
under the present caps and clocks, for as long as it takes there. `time=virtual`: the clock jumps by that,
and nothing else moves it; `time=real` (the default): we sleep for what is left of it after the work itself.
*batch* is of all the GPUs together. `state=DIR` keeps caps and counters, for other processes too; without
it they are gone when the meter is closed. `gpus=0/2` are those of the job, where others have the rest;
`gpu=2` sees only one of the GPUs, as one process of several does, and steps its share.

Faults: `denied=yes` forbids caps and clocks; `lost=5` loses the last GPU after five steps.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import time
import weakref
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wattline.errors import ConfigError, MeterError, NotPermitted
from wattline.measurement.devices import Device, device
from wattline.meter.drivers.options import one_of, read_options, whole_number, within
from wattline.meter.drivers.simulated_state import Row, State
from wattline.meter.protocol import Gpu

if TYPE_CHECKING:
    from wattline.models.workload import Workload  # with numpy, which who only restores a cap does not need

_OPTIONS = ("model", "batch", "time", "state", "gpus", "gpu", "denied", "lost")
_MEANT = "simulated:2xv100,model=resnet50"


class _Pace(NamedTuple):
    """Of one GPU under its cap: samples per second of all of them, and its own watts."""

    samples_s: float
    watts: float


@dataclass(frozen=True)
class Simulation:
    """What is simulated; *mine* are the GPUs of the job, *only* the one that this process sees."""

    device: Device
    count: int
    model: str = ""
    batch: int | None = None
    virtual: bool = False
    state: Path | None = None
    mine: tuple[int, ...] = ()
    only: int | None = None
    denied: bool = False
    lost_after: int | None = None


class SimulatedGpu:
    """One of them."""

    method = "simulated"

    def __init__(self, meter: Simulated, place: int, index: int) -> None:
        self._meter, self._place = meter, place
        self.index = index
        self.uuid = f"SIM-{hashlib.sha1(str(meter.folder).encode()).hexdigest()[:12]}-{place}"
        self.name = f"simulated {meter.what.device.name}"
        self.kind = meter.what.device.name
        self.spec = meter.spec

    @property
    def _row(self) -> Row:
        self._meter.check(self._place)
        return self._meter.state.row(self._place)

    def energy_j(self) -> float:
        """Its counter: idle watts all the time, and what steps draw more."""
        row = self._row
        idle_s = max(self._meter.now_s() - row.at_s, 0.0)
        return row.energy_j + idle_s * self._meter.what.device.idle_w

    def power_w(self) -> float:
        """As in the last step, if that has just been."""
        row = self._row
        busy = row.steps > 0 and self._meter.now_s() <= row.at_s + row.busy_s
        return row.draw_w if busy else self._meter.what.device.idle_w

    def cap_w(self) -> float:
        """Its power cap."""
        return self._row.cap_w

    def cap_range_w(self) -> tuple[float, float]:
        """As the device's maker says."""
        return self._meter.what.device.min_cap_w, self._meter.what.device.max_cap_w

    def set_cap(self, watts: float) -> None:
        """Set its power cap, for every process that sees it."""
        self._permitted("a power cap")
        with self._meter.state.changing(self._place) as row:
            row.cap_w = within(watts, *self.cap_range_w(), self.name)

    def lock_clock(self, mhz: float | None) -> None:
        """Hold its clock; None: let it go."""
        self._permitted("a clock")
        least, most = self._meter.what.device.min_clock_mhz, self._meter.what.device.max_clock_mhz
        if mhz is not None and not least <= mhz <= most:
            raise ConfigError(
                f"a clock of {mhz:g} MHz is outside what {self.name} takes: {least:g} to {most:g} MHz"
            )
        with self._meter.state.changing(self._place) as row:
            row.clock_mhz = mhz or 0.0

    def temperature_c(self) -> float:
        """Warmer the more it draws."""
        return 30.0 + 0.15 * self.power_w()

    def _permitted(self, what: str) -> None:
        self._meter.check(self._place)
        if self._meter.what.denied:
            raise NotPermitted(f"{self.name} was told to refuse {what} (denied=yes)")


class Simulated:
    """A machine of simulated GPUs that does what one job does."""

    name = "simulated"

    def __init__(self, what: Simulation) -> None:
        self.what = what
        folder = what.state or Path(tempfile.mkdtemp(prefix="wattline-sim-"))
        self.folder = folder.resolve()
        self._gone = weakref.finalize(self, shutil.rmtree, self.folder, True) if what.state is None else None
        real_s = 0.0 if what.virtual else time.monotonic()
        self.state = State(self.folder, what.device.name, what.count, what.device.max_cap_w, real_s)
        self._stepped_s = real_s
        self._paces: dict[tuple[float, float], _Pace] = {}
        job = what.mine or tuple(range(what.count))
        self._of = len(job)
        self._places = job if what.only is None else (what.only,)
        self._gpus = tuple(SimulatedGpu(self, place, index) for index, place in enumerate(self._places))
        if what.model:
            self._workload  # noqa: B018  what cannot be simulated is told at once

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Those that this process sees."""
        return self._gpus

    @property
    def spec(self) -> str:
        """The text that opens the same GPUs again, all of them."""
        what = self.what
        words = [f"{what.count}x{what.device.name}", f"time={'virtual' if what.virtual else 'real'}"]
        if what.model:
            words.append(f"model={what.model}")
        if what.batch is not None:
            words.append(f"batch={what.batch}")
        if what.denied:
            words.append("denied=yes")
        if what.lost_after is not None:
            words.append(f"lost={what.lost_after}")
        return f"simulated:{','.join(words)},state={self.folder}"

    def now_s(self) -> float:
        """This machine's clock, or the virtual one: how far the steps of anybody on our GPUs have come."""
        if not self.what.virtual:
            return time.monotonic()
        return max(self.state.row(place).at_s for place in self._places)

    def stepped(self, samples: float) -> None:
        """Let the time of a step pass, and count its joules."""
        if not samples > 0:
            raise ConfigError(f"a step of {samples:g} samples, expected more than 0")
        for place in self._places:
            self.check(place)
        paces = [self._pace(self.state.row(place)) for place in self._places]
        mine = samples * self._of / len(self._places)
        busy_s = [mine / pace.samples_s for pace in paces]
        step_s = max(busy_s)
        end_s = self._pass(step_s)
        for place, pace, own_s in zip(self._places, paces, busy_s, strict=True):
            # Who is faster waits for the others.
            draw_w = pace.watts * (own_s + self._workload.wait * (step_s - own_s)) / step_s
            self._count(place, max(draw_w, self.what.device.idle_w), step_s, end_s)

    def _pass(self, step_s: float) -> float:
        """When the step is over."""
        if self.what.virtual:
            return self.now_s() + step_s
        left_s = self._stepped_s + step_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        self._stepped_s = time.monotonic()
        return self._stepped_s

    def _count(self, place: int, draw_w: float, step_s: float, end_s: float) -> None:
        idle_w = self.what.device.idle_w
        with self.state.changing(place) as row:
            row.energy_j += idle_w * max(end_s - row.at_s, 0.0) + (draw_w - idle_w) * step_s
            row.at_s = max(row.at_s, end_s)
            row.draw_w, row.busy_s = draw_w, step_s
            row.steps += 1

    def _pace(self, row: Row) -> _Pace:
        key = row.cap_w, row.clock_mhz
        if key not in self._paces:
            self._paces[key] = self._predict(*key)
        return self._paces[key]

    def _predict(self, cap_w: float, clock_mhz: float) -> _Pace:
        from wattline.measurement.settings import Settings

        asked = Settings.of(gpus=self._of, batch=self.what.batch, cap_w=cap_w, clock_mhz=clock_mhz or None)
        samples_s, watts = self._workload.predict(asked)
        return _Pace(float(samples_s[0]), float(watts[0]) / self._of)

    @cached_property
    def _workload(self) -> Workload:
        from wattline.models.library import library

        known, kind = library(), self.what.device.name
        if self.what.model:
            return known.find(self.what.model, kind)
        found = next((w for w in known.workloads if w.gpu == kind), None)
        if found is None:
            raise ConfigError(f"nothing in the library was measured on {kind}", "wattline library list")
        return found

    def check(self, place: int) -> None:
        """A `MeterError` if that GPU is lost by now."""
        after = self.what.lost_after
        if after is not None and place == self.what.count - 1 and self.state.row(place).steps >= after:
            raise MeterError(f"GPU {place} ({self.what.device.name}) is lost: lost={after}")

    def close(self) -> None:
        """Let go of the state; where nobody named it, it is deleted."""
        self.state.close()
        if self._gone is not None:
            self._gone()


def open_text(text: str) -> Simulated:
    """The meter `simulated:` *text*."""
    return Simulated(parse(text))


def parse(text: str) -> Simulation:
    """What *text* says: `2xv100,model=resnet50,…`."""
    first, *words = text.split(",")
    shape = re.fullmatch(r"(?:(\d+)x)?([A-Za-z][\w-]*)", first)
    if shape is None or shape[1] == "0":
        raise ConfigError(f"the simulated meter has {first!r}, expected how many of which kind", _MEANT)
    said = read_options("simulated", words, _OPTIONS)
    count = int(shape[1] or 1)
    only = whole_number("simulated", "gpu", said["gpu"]) if "gpu" in said else None
    if only is not None and only >= count:
        raise ConfigError(f"gpu of the simulated meter is {only}, expected less than {count}")
    mine = tuple(
        whole_number("simulated", "gpus", n) for n in said.get("gpus", "").split("/") if "gpus" in said
    )
    for place in mine:
        if place >= count or mine.count(place) > 1:
            raise ConfigError(f"gpus of the simulated meter have {place}, expected each once, below {count}")
    if only is not None and mine and only not in mine:
        raise ConfigError(f"gpu of the simulated meter is {only}, expected one of gpus={said['gpus']}")
    return Simulation(
        device=device(shape[2]),
        count=count,
        model=said.get("model", ""),
        batch=whole_number("simulated", "batch", said["batch"], 1) if "batch" in said else None,
        virtual=one_of("simulated", "time", said.get("time", "real"), ("virtual", "real")) == "virtual",
        state=Path(said["state"]) if "state" in said else None,
        mine=mine,
        only=only,
        denied=one_of("simulated", "denied", said.get("denied", "no"), ("yes", "no")) == "yes",
        lost_after=whole_number("simulated", "lost", said["lost"]) if "lost" in said else None,
    )

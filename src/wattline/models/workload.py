"""What one model does on one kind of GPU: its speed, power, demand and array models as one.

    step_s    = max(compute_s · slowdown(fuse) / rate(cap, clock) + sync_s, loader_s)
    samples_s = batch · fuse / step_s
    watts     = gpus · busy_w · (share + wait · (1 − share)),   share = the part of a step spent computing

A GPU that waits for others or for data draws *wait* of what it draws computing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from wattline.core.table import Bools, Floats
from wattline.errors import OutOfRange
from wattline.measurement.devices import DEVICES
from wattline.measurement.settings import Settings
from wattline.models.array_speed import Array, fit_array
from wattline.models.demand import Demand
from wattline.models.power.curves import REACH
from wattline.models.power.throttle import Throttle
from wattline.models.speed import Speed

SURPRISE = 0.1
"""Relative error of a prediction above which a model learns from what it sees."""

WAITING = 0.7
"""Watts of a GPU that waits over those of one that computes, until they are measured.

From MLPerf's power submissions, see `benchmarks/fit_devices.py`; five runs there say 0.4 to 0.85.
"""

_ROUNDS = 8
_CREDIBLE = 100.0  # times more or less than expected; beyond, somebody has misread something
_BLOCK = 16384  # rows at once: they and what is made of them stay in the cache
_UNMEASURED = {"gpus": (1.0, 64.0), "nodes": (1.0, 64.0), "fuse": (1.0, 16.0)}  # reach of knobs never varied
_UPWARDS_FREE = frozenset(("cpus", "mem_gib", "read_mib_s"))  # more of them than was measured changes nothing


class Prediction(NamedTuple):
    """Of the whole job, all its GPUs and all fused members together."""

    samples_s: Floats
    watts: Floats


@dataclass(frozen=True)
class Source:
    """Where a workload's coefficients come from, and how far off they were at points they had not seen."""

    name: str = ""
    points: int = 0
    samples_error: float = np.nan  # mean relative error, held out
    watts_error: float = np.nan


@dataclass(frozen=True)
class Workload:
    """One model on one kind of GPU; learns by being replaced.

    *measured* has the range of each knob that was varied, per GPU where the knob is of the job
    (`batch`, `cpus`, `mem_gib`, `read_mib_s`). *usual_batch* is the batch of each GPU where nobody says.
    """

    model: str
    gpu: str
    speed: Speed
    throttle: Throttle = field(repr=False)
    demand: Demand = field(default_factory=Demand)
    array: Array = field(default_factory=Array)
    wait: float = WAITING
    usual_batch: float = np.nan
    measured: Mapping[str, tuple[float, float]] = field(default_factory=lambda: MappingProxyType({}))
    metered: bool = False  # whether its watts were ever measured, or are the device's
    source: Source = Source()

    def predict(self, settings: Settings) -> Prediction:
        """Samples per second and watts; raises `OutOfRange` beyond `REACH`."""
        if not self.reaches(settings).all():
            raise self._out_of_range(settings)
        return self.extrapolate(settings)

    def extrapolate(self, settings: Settings) -> Prediction:
        """As `predict`, however far from what was measured."""
        if len(settings) > _BLOCK:
            blocks = (slice(at, at + _BLOCK) for at in range(0, len(settings), _BLOCK))
            parts = zip(*(self.extrapolate(settings.take(rows)) for rows in blocks), strict=True)
            return Prediction(*(np.concatenate(part) for part in parts))
        batch, computes_s, step_s, busy_w = self._parts(settings)
        share = computes_s / step_s
        watts = settings.gpus * busy_w * (self.wait + (1.0 - self.wait) * share)
        return Prediction(np.asarray(batch * settings.gpus * settings.fuse / step_s), np.asarray(watts))

    def _parts(self, settings: Settings) -> tuple[Floats, Floats, Floats, Floats]:
        """Local batch, seconds of computing, seconds of the step, watts of a computing GPU."""
        batch = self.local_batch(settings)
        rate, busy_w = self.throttle.at(batch, settings.cap_w, settings.clock_mhz)
        computes_s = self.speed.compute_s(batch) * self.array.slowdown(settings.fuse) / rate
        step_s = computes_s + self.speed.sync_s(settings.gpus, settings.nodes)
        if self.demand.ever_rules and not (np.isnan(settings.cpus) & np.isnan(settings.mem_gib)).all():
            loads_s = self.demand.sample_s(
                settings.cpus / settings.gpus,
                settings.mem_gib / settings.gpus,
                settings.gpus / settings.nodes,
                settings.read_mib_s / settings.gpus,
            )
            step_s = np.maximum(step_s, loads_s * batch * settings.fuse)
        return batch, computes_s, step_s, busy_w

    def local_batch(self, settings: Settings) -> Floats:
        """Samples per GPU and step, the usual ones where no batch is said."""
        usual = 1.0 if np.isnan(self.usual_batch) else self.usual_batch
        return np.where(np.isnan(settings.batch), usual, settings.batch / settings.gpus)

    def reaches(self, settings: Settings) -> Bools:
        """Which settings are within `REACH` of what was measured."""
        good = np.ones(len(settings), dtype=np.bool_)
        for name, (least, most) in self._reach.items():
            value = self._per_gpu(settings, name)
            good &= ~((value < least) | (value > most))
        return good

    @property
    def _reach(self) -> dict[str, tuple[float, float]]:
        """The least and the most of each knob that can be predicted."""
        reach = dict(_UNMEASURED)
        if self.gpu in DEVICES:
            device = DEVICES[self.gpu]
            reach |= {"cap_w": (device.min_cap_w, np.inf), "clock_mhz": (device.min_clock_mhz, np.inf)}
        for name, (least, most) in self.measured.items():
            reach[name] = (least / REACH, np.inf if name in _UPWARDS_FREE else most * REACH)
        return reach

    def _per_gpu(self, settings: Settings, name: str) -> Floats:
        if name == "batch":
            return self.local_batch(settings)
        column: Floats = getattr(settings, name)
        return column / settings.gpus if name in _UPWARDS_FREE else column

    def _out_of_range(self, settings: Settings) -> OutOfRange:
        row = settings.take(np.flatnonzero(~self.reaches(settings))[:1])
        for name, (least, most) in self._reach.items():
            value = float(self._per_gpu(row, name)[0])
            if value < least or value > most:
                each = " per GPU" if name in ("batch", *_UPWARDS_FREE) else ""
                known = self.measured.get(name)
                was = f"was measured from {known[0]:g} to {known[1]:g}" if known else "was never varied in it"
                upto = "" if most == np.inf else f" to {most:g}"
                return OutOfRange(
                    f"{name} is {value:g}{each}: {self.model} on {self.gpu} {was}, and predictions reach from"
                    f" {least:g}{upto}"
                )
        raise AssertionError("asked about a row that is within reach")

    def observe(
        self,
        settings: Settings,
        samples_s: Floats,
        watts: Floats | None = None,
        keep: Settings | None = None,
    ) -> Workload:
        """What is believed after a job did *samples_s* and drew *watts* (nan: not seen).

        Rows that were predicted within `SURPRISE` change nothing, so that a well-known job costs one
        prediction per look. What is believed of *keep* stays.
        """
        expected = self.extrapolate(settings)
        learnt = self
        real = (samples_s > expected.samples_s / _CREDIBLE) & (samples_s < expected.samples_s * _CREDIBLE)
        off = real & (np.abs(np.where(real, samples_s, 1.0) / expected.samples_s - 1.0) > SURPRISE)
        if off.any():
            learnt = learnt._learn_samples(settings.take(off), samples_s[off], keep)
        if watts is not None:
            learnt = learnt._learn_watts(settings, watts, expected.watts)
        return learnt

    def _learn_samples(self, settings: Settings, samples_s: Floats, keep: Settings | None) -> Workload:
        """Blame what is least known: an array never measured, else the loader if it rules, else the GPU."""
        batch, computes_s, step_s, _ = self._parts(settings)
        free_s = computes_s + self.speed.sync_s(settings.gpus, settings.nodes)
        seen_s = batch * settings.gpus * settings.fuse / samples_s
        learnt = self
        fused = (settings.fuse > 1) & ("fuse" not in self.measured)
        if fused.any():
            alone_s = computes_s / self.array.slowdown(settings.fuse)
            slowdown = 1.0 + (seen_s - free_s + computes_s - alone_s) / alone_s
            unknown = np.full(np.count_nonzero(fused), np.nan)
            serial = fit_array(settings.fuse[fused], np.maximum(slowdown[fused], 1e-3), unknown).serial
            learnt = replace(learnt, array=replace(learnt.array, serial=serial))
        loads = ~fused & (step_s > free_s)
        if loads.any():
            factor = float(np.exp(np.mean(np.log(seen_s[loads] / step_s[loads]))))
            learnt = replace(learnt, demand=learnt.demand.scaled(factor))
        # What a cap or a clock does that was never measured is not the speed's fault.
        guessed = ~np.isnan(settings.cap_w) & (self.throttle.caps is None)
        guessed |= ~np.isnan(settings.clock_mhz) & (self.throttle.clocks is None)
        rows = np.flatnonzero(~fused & ~loads & ~guessed)
        return learnt._learn_speed(settings.take(rows), samples_s[rows], keep) if len(rows) else learnt

    def _learn_watts(self, settings: Settings, watts: Floats, expected: Floats) -> Workload:
        known = ~np.isnan(expected)
        credible = (watts > expected / _CREDIBLE) & (watts < expected * _CREDIBLE)
        seen = np.where(known, credible, np.isfinite(watts) & (watts > 0))
        new = np.flatnonzero(seen & ~known)
        if len(new):
            batch, computes_s, step_s, _ = self._parts(settings)
            busy = self.wait + (1.0 - self.wait) * computes_s / step_s
            top_w = float(np.mean((watts / settings.gpus / busy)[new]))
            throttle = replace(self.throttle, batch=batch[new][:1], top_w=np.full(1, top_w))
            return replace(self, throttle=throttle, metered=True)
        off = np.flatnonzero(seen & (np.abs(np.where(seen, watts, 1.0) / expected - 1.0) > SURPRISE))
        if not len(off):
            return self
        factor = float(np.exp(np.mean(np.log(watts[off] / expected[off]))))
        return replace(self, throttle=self.throttle.scaled(factor), metered=True)

    def _learn_speed(self, settings: Settings, samples_s: Floats, keep: Settings | None) -> Workload:
        if keep is not None:
            samples_s = np.concatenate((samples_s, self.extrapolate(keep).samples_s))
            settings = settings.followed_by(keep)
        settings = replace(settings, batch=self.local_batch(settings) * settings.gpus)
        batch, computes_s, _, _ = self._parts(settings)
        seen_s = batch * settings.gpus * settings.fuse / samples_s
        stretch = computes_s / self.speed.compute_s(batch)
        speed = self.speed
        for _ in range(_ROUNDS if 1 < len(settings) <= _ROUNDS else 1):  # a few rows pull in turn
            speed = speed.observe(settings, stretch, seen_s, self.measured)
        return replace(self, speed=speed, measured=self._widened(settings))

    def _widened(self, settings: Settings) -> Mapping[str, tuple[float, float]]:
        wider = dict(self.measured)
        for name in {"gpus", "nodes", "batch"} & set(wider):
            value, (least, most) = self._per_gpu(settings, name), wider[name]
            wider[name] = (min(least, float(value.min())), max(most, float(value.max())))
        return MappingProxyType(wider)

    def sensitivity(self, cpus: Floats, mem_gib: Floats) -> Floats:
        """The sensitivity matrix of one GPU: samples_s[i, j] with cpus[i] cores and mem_gib[j]."""
        cores, memory = (a.reshape(-1) for a in np.meshgrid(cpus, mem_gib, indexing="ij"))
        rows = Settings.of(cpus=cores, mem_gib=memory, batch=self.usual_batch)
        return self.extrapolate(rows).samples_s.reshape(len(cpus), len(mem_gib))

    def least_demand(self, cpus: Floats, mem_gib: Floats, keep: float = 0.98) -> tuple[float, float]:
        """The smallest of these cores, then of these GiB, that keep so much of the best speed of one GPU."""
        cores, memory = np.sort(cpus), np.sort(mem_gib)
        matrix = self.sensitivity(cores, memory)
        enough = matrix >= keep * matrix.max()
        row = int(np.argmax(enough.any(axis=1)))
        return float(cores[row]), float(memory[int(np.argmax(enough[row]))])

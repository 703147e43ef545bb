"""Workload model: speed and power of one training model on one kind of GPU.

    step_s    = max(compute_s · slowdown(fuse) / rate(cap, clock) + sync_s, loader_s)
    samples_s = batch · fuse / step_s
    watts     = gpus · busy_w · (share + wait · (1 − share)),   share = the part of a step spent computing

A GPU that waits for others or for data draws a share *wait* (`waiting_power`) of its computing power.
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
from wattline.models.array_speed import ArrayModel, fit_array
from wattline.models.demand import DemandModel
from wattline.models.power.curves import EXTRAPOLATION_FACTOR
from wattline.models.power.throttle import Throttle
from wattline.models.speed import Speed

LEARNING_THRESHOLD = 0.1
"""Relative error of a prediction above which a model learns from an observation."""

DEFAULT_WAITING_POWER = 0.7
"""Power of a waiting GPU relative to a computing one, until it is measured.

From MLPerf's power submissions, see `benchmarks/fit_devices.py`; five runs there give 0.4 to 0.85.
"""

_ROUNDS = 8
_MISREAD_FACTOR = 100.0  # observations off by more than this factor are taken for misreadings
_BLOCK = 16384  # rows evaluated at once, so that they and intermediate arrays fit in the CPU cache
_DEFAULT_RANGES = {
    "gpus": (1.0, 64.0),
    "nodes": (1.0, 64.0),
    "fuse": (1.0, 16.0),
}  # ranges of knobs that were not varied
_UNBOUNDED_ABOVE = frozenset(
    ("cpus", "mem_gib", "read_mib_s")
)  # above the measured range they change nothing


class Prediction(NamedTuple):
    """Prediction for the whole job: all its GPUs and all fused members together."""

    samples_s: Floats
    watts: Floats


@dataclass(frozen=True)
class MeasurementSource:
    """Origin of a workload's coefficients, their cross-validation errors, and the knobs that no law fits."""

    name: str = ""
    points: int = 0
    samples_error: float = np.nan  # mean relative error, held out
    watts_error: float = np.nan
    misfits: tuple[str, ...] = ()  # of cap_w and clock_mhz


@dataclass(frozen=True)
class Workload:
    """One training model on one kind of GPU; immutable, `observe` returns an updated copy.

    *measured* is the range of each knob that was varied, per GPU for knobs of the whole job
    (`batch`, `cpus`, `mem_gib`, `read_mib_s`). *usual_batch* is the batch per GPU of settings without one.
    *waiting_power* is the power of a waiting GPU relative to a computing one.
    """

    model: str
    gpu: str
    speed: Speed
    throttle: Throttle = field(repr=False)
    demand: DemandModel = field(default_factory=DemandModel)
    array: ArrayModel = field(default_factory=ArrayModel)
    waiting_power: float = DEFAULT_WAITING_POWER
    usual_batch: float = np.nan
    measured: Mapping[str, tuple[float, float]] = field(default_factory=lambda: MappingProxyType({}))
    metered: bool = False  # False: watts are the device's defaults
    source: MeasurementSource = MeasurementSource()

    def predict(self, settings: Settings) -> Prediction:
        """Predict samples per second and watts; raises `OutOfRange` beyond `EXTRAPOLATION_FACTOR`."""
        if not self.in_range(settings).all():
            raise self._out_of_range(settings)
        return self.extrapolate(settings)

    def extrapolate(self, settings: Settings) -> Prediction:
        """Predict samples per second and watts at any distance from the measurements."""
        if len(settings) > _BLOCK:
            blocks = (slice(at, at + _BLOCK) for at in range(0, len(settings), _BLOCK))
            parts = zip(*(self.extrapolate(settings.take(rows)) for rows in blocks), strict=True)
            return Prediction(*(np.concatenate(part) for part in parts))
        batch, compute_s, step_s, busy_w = self._step_parts(settings)
        share = compute_s / step_s
        watts = settings.gpus * busy_w * (self.waiting_power + (1.0 - self.waiting_power) * share)
        return Prediction(np.asarray(batch * settings.gpus * settings.fuse / step_s), np.asarray(watts))

    def _step_parts(self, settings: Settings) -> tuple[Floats, Floats, Floats, Floats]:
        """Return local batch, seconds of computing, seconds of the step, and watts of a computing GPU."""
        batch = self.local_batch(settings)
        rate, busy_w = self.throttle.at(batch, settings.cap_w, settings.clock_mhz)
        compute_s = self.speed.compute_s(batch) * self.array.slowdown(settings.fuse) / rate
        step_s = compute_s + self.speed.sync_s(settings.gpus, settings.nodes)
        if self.demand.can_limit and not (np.isnan(settings.cpus) & np.isnan(settings.mem_gib)).all():
            loader_s = self.demand.sample_s(
                settings.cpus / settings.gpus,
                settings.mem_gib / settings.gpus,
                settings.gpus / settings.nodes,
                settings.read_mib_s / settings.gpus,
            )
            step_s = np.maximum(step_s, loader_s * batch * settings.fuse)
        return batch, compute_s, step_s, busy_w

    def local_batch(self, settings: Settings) -> Floats:
        """Return the samples per GPU and step; *usual_batch* where the setting has no batch."""
        usual = 1.0 if np.isnan(self.usual_batch) else self.usual_batch
        return np.where(np.isnan(settings.batch), usual, settings.batch / settings.gpus)

    def in_range(self, settings: Settings) -> Bools:
        """Return a mask of the settings within `EXTRAPOLATION_FACTOR` of the measured ranges."""
        good = np.ones(len(settings), dtype=np.bool_)
        for name, (least, most) in self._predictable_ranges.items():
            value = self._per_gpu(settings, name)
            good &= ~((value < least) | (value > most))
        return good

    @property
    def _predictable_ranges(self) -> dict[str, tuple[float, float]]:
        """Minimum and maximum of each knob that can be predicted."""
        ranges = dict(_DEFAULT_RANGES)
        if self.gpu in DEVICES:
            device = DEVICES[self.gpu]
            ranges |= {"cap_w": (device.min_cap_w, np.inf), "clock_mhz": (device.min_clock_mhz, np.inf)}
        for name, (least, most) in self.measured.items():
            ranges[name] = (
                least / EXTRAPOLATION_FACTOR,
                np.inf if name in _UNBOUNDED_ABOVE else most * EXTRAPOLATION_FACTOR,
            )
        return ranges

    def _per_gpu(self, settings: Settings, name: str) -> Floats:
        if name == "batch":
            return self.local_batch(settings)
        column: Floats = getattr(settings, name)
        return column / settings.gpus if name in _UNBOUNDED_ABOVE else column

    def _out_of_range(self, settings: Settings) -> OutOfRange:
        row = settings.take(np.flatnonzero(~self.in_range(settings))[:1])
        for name, (least, most) in self._predictable_ranges.items():
            value = float(self._per_gpu(row, name)[0])
            if value < least or value > most:
                per_gpu = " per GPU" if name in ("batch", *_UNBOUNDED_ABOVE) else ""
                known = self.measured.get(name)
                measured_text = (
                    f"was measured from {known[0]:g} to {known[1]:g}" if known else "was never varied in it"
                )
                upto = "" if most == np.inf else f" to {most:g}"
                return OutOfRange(
                    f"{name} is {value:g}{per_gpu}: {self.model} on {self.gpu} {measured_text},"
                    f" and predictions reach from {least:g}{upto}"
                )
        raise AssertionError("all settings are in range")

    def observe(
        self,
        settings: Settings,
        samples_s: Floats,
        watts: Floats | None = None,
        keep: Settings | None = None,
    ) -> Workload:
        """Return the workload updated with observed *samples_s* and *watts* (nan: not observed).

        Rows predicted within `LEARNING_THRESHOLD` change nothing, so that a well-known job costs one
        prediction per observation. The predictions for *keep* are preserved.
        """
        expected = self.extrapolate(settings)
        updated = self
        real = (samples_s > expected.samples_s / _MISREAD_FACTOR) & (
            samples_s < expected.samples_s * _MISREAD_FACTOR
        )
        wrong = real & (
            np.abs(np.where(real, samples_s, 1.0) / expected.samples_s - 1.0) > LEARNING_THRESHOLD
        )
        if wrong.any():
            updated = updated._learn_samples(settings.take(wrong), samples_s[wrong], keep)
        if watts is not None:
            updated = updated._learn_watts(settings, watts, expected.watts)
        return updated

    def _learn_samples(self, settings: Settings, samples_s: Floats, keep: Settings | None) -> Workload:
        """Update the least certain part: an unmeasured array, a limiting input pipeline, else the GPU."""
        batch, compute_s, step_s, _ = self._step_parts(settings)
        free_s = compute_s + self.speed.sync_s(settings.gpus, settings.nodes)
        observed_s = batch * settings.gpus * settings.fuse / samples_s
        updated = self
        fused = (settings.fuse > 1) & ("fuse" not in self.measured)
        if fused.any():
            alone_s = compute_s / self.array.slowdown(settings.fuse)
            slowdown = 1.0 + (observed_s - free_s + compute_s - alone_s) / alone_s
            unknown = np.full(np.count_nonzero(fused), np.nan)
            serial = fit_array(settings.fuse[fused], np.maximum(slowdown[fused], 1e-3), unknown).serial
            updated = replace(updated, array=replace(updated.array, serial=serial))
        loader_bound = ~fused & (step_s > free_s)
        if loader_bound.any():
            factor = float(np.exp(np.mean(np.log(observed_s[loader_bound] / step_s[loader_bound]))))
            updated = replace(updated, demand=updated.demand.scale(factor))
        # Errors under an unmeasured cap or clock are not attributed to the speed model.
        assumed = ~np.isnan(settings.cap_w) & (self.throttle.caps is None)
        assumed |= ~np.isnan(settings.clock_mhz) & (self.throttle.clocks is None)
        rows = np.flatnonzero(~fused & ~loader_bound & ~assumed)
        return updated._learn_speed(settings.take(rows), samples_s[rows], keep) if len(rows) else updated

    def _learn_watts(self, settings: Settings, watts: Floats, expected: Floats) -> Workload:
        known = ~np.isnan(expected)
        credible = (watts > expected / _MISREAD_FACTOR) & (watts < expected * _MISREAD_FACTOR)
        valid = np.where(known, credible, np.isfinite(watts) & (watts > 0))
        new = np.flatnonzero(valid & ~known)
        if len(new):
            batch, compute_s, step_s, _ = self._step_parts(settings)
            busy = self.waiting_power + (1.0 - self.waiting_power) * compute_s / step_s
            top_w = float(np.mean((watts / settings.gpus / busy)[new]))
            throttle = replace(self.throttle, batch=batch[new][:1], top_w=np.full(1, top_w))
            return replace(self, throttle=throttle, metered=True)
        wrong = np.flatnonzero(
            valid & (np.abs(np.where(valid, watts, 1.0) / expected - 1.0) > LEARNING_THRESHOLD)
        )
        if not len(wrong):
            return self
        factor = float(np.exp(np.mean(np.log(watts[wrong] / expected[wrong]))))
        return replace(self, throttle=self.throttle.scale(factor), metered=True)

    def _learn_speed(self, settings: Settings, samples_s: Floats, keep: Settings | None) -> Workload:
        if keep is not None:
            samples_s = np.concatenate((samples_s, self.extrapolate(keep).samples_s))
            settings = settings.followed_by(keep)
        settings = replace(settings, batch=self.local_batch(settings) * settings.gpus)
        batch, compute_s, _, _ = self._step_parts(settings)
        observed_s = batch * settings.gpus * settings.fuse / samples_s
        stretch = compute_s / self.speed.compute_s(batch)
        speed = self.speed
        for _ in range(
            _ROUNDS if 1 < len(settings) <= _ROUNDS else 1
        ):  # a few rows are applied in turn, repeatedly
            speed = speed.observe(settings, stretch, observed_s, self.measured)
        return replace(self, speed=speed, measured=self._widen_ranges(settings))

    def _widen_ranges(self, settings: Settings) -> Mapping[str, tuple[float, float]]:
        ranges = dict(self.measured)
        for name in {"gpus", "nodes", "batch"} & set(ranges):
            value, (least, most) = self._per_gpu(settings, name), ranges[name]
            ranges[name] = (min(least, float(value.min())), max(most, float(value.max())))
        return MappingProxyType(ranges)

    def sensitivity_matrix(self, cpus: Floats, mem_gib: Floats) -> Floats:
        """Return Synergy's sensitivity matrix of one GPU: samples_s[i, j] with cpus[i] and mem_gib[j]."""
        cores, memory = (a.reshape(-1) for a in np.meshgrid(cpus, mem_gib, indexing="ij"))
        rows = Settings.of(cpus=cores, mem_gib=memory, batch=self.usual_batch)
        return self.extrapolate(rows).samples_s.reshape(len(cpus), len(mem_gib))

    def find_least_demand(self, cpus: Floats, mem_gib: Floats, keep: float = 0.98) -> tuple[float, float]:
        """Return the fewest cores, then the least GiB, that reach a share *keep* of one GPU's best speed."""
        cores, memory = np.sort(cpus), np.sort(mem_gib)
        matrix = self.sensitivity_matrix(cores, memory)
        enough = matrix >= keep * matrix.max()
        row = int(np.argmax(enough.any(axis=1)))
        return float(cores[row]), float(memory[int(np.argmax(enough[row]))])

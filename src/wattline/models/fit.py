"""Fits workload models to the rows of a profile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import numpy as np
import scipy.optimize  # noqa: F401  imported here, so that the first fit is as fast as later ones

from wattline.core.table import Floats
from wattline.errors import NotFitted
from wattline.measurement.devices import DEVICES
from wattline.measurement.merge import merged, unstarved, with_batches
from wattline.measurement.points import Profile
from wattline.measurement.settings import KNOBS
from wattline.models.array_speed import ArrayModel, fit_array
from wattline.models.demand import DemandModel, fit_demand
from wattline.models.power.curves import Curves, fit_caps, fit_clocks, follow_lines, pass_through_rates
from wattline.models.power.throttle import Throttle, estimate_top_w
from wattline.models.speed import Speed, fit_speed
from wattline.models.workload import DEFAULT_WAITING_POWER, MeasurementSource, Workload
from wattline.models.workload_models import WorkloadModels

_NOISE = 0.01  # relative, of a measurement that states none
_MAX_SIZES = 24  # batch sizes with curves of their own, at most
_NEARLY_FREE = 0.9  # rate above which a throttled measurement is used to estimate the unthrottled speed


def fit(profile: Profile) -> WorkloadModels:
    """Fit a workload for every (model, GPU kind) in *profile*.

    Raises `NotFitted` if there are too few measurements or all have one setting, and `ProfileError` if
    two of them contradict each other.
    """
    rows = list(split_workloads(profile))
    fitted = [fit_workload(rows_of_one) for rows_of_one in rows]
    shapes = _fit_voltage_shapes(fitted)
    for place, w in enumerate(fitted):
        if w.gpu in shapes and w.throttle.clocks is not None:
            fitted[place] = fit_workload(rows[place], shapes[w.gpu])
    return WorkloadModels(tuple(fitted))


def _fit_voltage_shapes(fitted: Sequence[Workload]) -> dict[str, tuple[float, float]]:
    """Return the median knee and rise of the voltage of each GPU kind with several metered clock curves."""
    laws: dict[str, list[list[float]]] = defaultdict(list)
    for w in fitted:
        clocks = w.throttle.clocks
        if clocks is not None and clocks.metered:
            laws[w.gpu] += [law for law in clocks.watts_law.tolist() if law[3] > 0]
    return {
        gpu: (float(np.median([law[2] for law in of_gpu])), float(np.median([law[3] for law in of_gpu])))
        for gpu, of_gpu in laws.items()
        if len(of_gpu) > 1
    }


def split_workloads(profile: Profile) -> Iterator[Profile]:
    """Yield the rows of each (model, GPU kind), in the order of their first appearance."""
    codes = profile.model.codes * len(profile.gpu.names) + profile.gpu.codes
    _, first = np.unique(codes, return_index=True)
    for row in np.sort(first):
        yield profile.take(codes == codes[row])


def fit_workload(
    profile: Profile, shape: tuple[float, float] | None = None, lines: Collection[str] = ()
) -> Workload:
    """Fit the workload of one (model, GPU kind); all rows of *profile* must belong to it.

    *shape* is the knee and the rise of the GPU's voltage, where they are known from other workloads. *lines*
    are the knobs, `cap_w` and `clock_mhz`, of which the law does not fit: measured settings are joined by
    lines.
    """
    if not len(profile):
        raise NotFitted("the profile has no measurements, expected some in at least 2 different settings")
    name = f"{profile.model.word(0)} on {profile.gpu.word(0)}"
    if np.ptp(profile.model.codes) or np.ptp(profile.gpu.codes):
        raise NotFitted(f"the profile holds {name} and other workloads, expected one; `fit` separates them")
    rows = merged(with_batches(profile))
    timed = rows.take(~np.isnan(rows.samples_s))
    if len(timed) < 2:
        count = int(np.count_nonzero(~np.isnan(profile.samples_s)))
        raise NotFitted(
            f"{name}: {count} measurement{'' if count == 1 else 's'} of samples_s in"
            f" {len(timed)} setting{'' if len(timed) == 1 else 's'}, expected at least 2 different settings",
            "measure at another number of GPUs, batch size, cap or clock",
        )
    if not (timed.fuse == 1).any():
        raise NotFitted(f"{name}: every measurement is of fused jobs, expected some of a single job (fuse 1)")
    single = unstarved(rows.take(rows.fuse == 1))
    solo = single.take(~np.isnan(single.samples_s))
    gpu = profile.gpu.word(0)
    caps = _fit_knob_curves(single, "cap_w", fit_caps)
    clocks = _fit_knob_curves(single, "clock_mhz", partial(fit_clocks, shape=shape))
    throttle = Throttle(gpu, *_fit_top_w(single, caps, clocks), caps, clocks)
    free = _unthrottled_rows(solo, _throttled_rate(throttle, solo))
    speed = fit_speed(free.settings, _step_s(free), _noise(free))
    model = Workload(
        model=profile.model.word(0),
        gpu=gpu,
        speed=speed,
        throttle=replace(
            throttle, caps=_correct_rates(caps, speed, free), clocks=_correct_rates(clocks, speed, free)
        ),
        usual_batch=float(np.median(solo.batch / solo.gpus)),
        measured=MappingProxyType(_measured_ranges(timed)),
        metered=not bool(np.isnan(throttle.top_w).all()),
        source=MeasurementSource(points=len(profile)),
    )
    model = _pass_through_measured(model, solo, lines)
    model = replace(model, waiting_power=_fit_waiting_power(model, solo), demand=_fit_host_demand(timed))
    return replace(model, array=_fit_array_model(model, timed))


def _fit_knob_curves(solo: Profile, knob: str, fit_knob: Callable[..., Curves]) -> Curves | None:
    """Fit curves against one knob, from the fewest GPUs on which it was varied."""
    other = "clock_mhz" if knob == "cap_w" else "cap_w"
    capped = solo.take(~np.isnan(getattr(solo, knob)))
    for gpus in np.unique(capped.gpus):
        rows = capped.take(capped.gpus == gpus)
        rows = _take_least_limited(rows.take(rows.nodes == rows.nodes.min()), other)
        batch, values = rows.settings.local_batch, getattr(rows, knob)
        timed = ~np.isnan(rows.samples_s)
        varied = np.array([len(np.unique(values[timed & (batch == size)])) > 1 for size in batch])
        if varied.any():
            rows = rows.take(varied)
            free = solo.take((solo.gpus == gpus) & np.isnan(solo.cap_w) & np.isnan(solo.clock_mhz))
            free = free.take(np.isin(free.settings.local_batch, batch[varied]))
            return _fit_rows(rows, free, knob, fit_knob)
    return None


def _take_least_limited(rows: Profile, knob: str) -> Profile:
    """Return the rows without a limit on *knob*, or else the rows with the loosest limit."""
    values = getattr(rows, knob)
    unset = np.isnan(values)
    return rows.take(unset if unset.any() else values == values.max())


def _fit_rows(rows: Profile, free: Profile, knob: str, fit_knob: Callable[..., Curves]) -> Curves:
    values = getattr(rows, knob)
    limit = np.full(len(free), _unthrottled_value(rows, free, knob))
    watts = np.concatenate((rows.watts / rows.gpus, free.watts / free.gpus))
    return fit_knob(
        _round_sizes(np.concatenate((rows.settings.local_batch, free.settings.local_batch))),
        np.concatenate((values, limit)),
        np.concatenate((rows.samples_s, free.samples_s)),
        watts,
        np.concatenate((_noise(rows), _noise(free))),
    )


def _unthrottled_value(rows: Profile, free: Profile, knob: str) -> float:
    """Return the value of *knob* for an unthrottled GPU: the device's maximum or its power draw."""
    most = float(getattr(rows, knob).max())
    if not len(free):
        return most
    device = DEVICES.get(rows.gpu.word(0))
    if knob == "cap_w":
        drawn = free.watts[~np.isnan(free.watts)] / free.gpus[~np.isnan(free.watts)]
        return max(most, device.max_cap_w if device else 0.0, float(drawn.max(initial=0.0)))
    faster = float(np.nanmax(free.samples_s, initial=0.0) / np.nanmax(rows.samples_s))
    return max(most, device.max_clock_mhz if device else most * min(faster, 2.0))


def _round_sizes(batch: Floats) -> Floats:
    """Map batch sizes to the nearest of at most `_MAX_SIZES` representatives."""
    sizes = np.unique(batch)
    if len(sizes) <= _MAX_SIZES:
        return batch
    chosen = sizes[np.unique(np.round(np.linspace(0, len(sizes) - 1, _MAX_SIZES)).astype(np.int64))]
    return np.asarray(chosen[np.abs(np.log(batch)[:, None] - np.log(chosen)).argmin(axis=1)])


def _fit_top_w(solo: Profile, caps: Curves | None, clocks: Curves | None) -> tuple[Floats, Floats]:
    """Return local batch sizes and the watts of an unthrottled GPU at each of them; nan: not measured."""
    known: dict[float, float] = {}
    for curves in (clocks, caps):
        if curves is not None:
            top = curves.at(curves.batch, np.full(len(curves.batch), curves.last))[1]
            known.update((b, w) for b, w in zip(curves.batch.tolist(), top.tolist(), strict=True) if w == w)
    metered = ~np.isnan(solo.watts)
    free = solo.take(metered & np.isnan(solo.cap_w) & np.isnan(solo.clock_mhz))
    free = free.take(free.gpus == free.gpus.min()) if len(free) else free
    for size in np.unique(free.settings.local_batch):
        here = free.settings.local_batch == size
        known[float(size)] = float(np.mean(free.watts[here] / free.gpus[here]))
    if not known and metered.any():
        # All rows have the same cap or clock.
        rows = solo.take(metered)
        watts, clock = float(np.median(rows.watts / rows.gpus)), float(np.median(rows.clock_mhz))
        known[float(np.median(rows.settings.local_batch))] = (
            watts if np.isnan(clock) else estimate_top_w(solo.gpu.word(0), clock, watts)
        )
    sizes = np.array(sorted(known)) if known else np.ones(1)
    return sizes, np.array([known[size] for size in sizes.tolist()]) if known else np.full(1, np.nan)


def _throttled_rate(throttle: Throttle, solo: Profile) -> Floats:
    """Return the rate of each row under its cap or clock; 1 where their effect is unknown."""
    try:
        return throttle.at(solo.settings.local_batch, solo.cap_w, solo.clock_mhz)[0]
    except NotFitted:
        return np.ones(len(solo))


def _unthrottled_rows(solo: Profile, rate: Floats) -> Profile:
    """Return one row per (gpus, nodes, batch) with its unthrottled speed."""
    knobs = np.column_stack([solo.gpus, solo.nodes, np.nan_to_num(solo.batch, nan=-1.0)])
    _, group = np.unique(knobs, axis=0, return_inverse=True)
    group = group.reshape(-1)
    keep, speeds = [], []
    for one in range(group.max() + 1):
        rows = np.flatnonzero(group == one)
        near = rows[rate[rows] >= min(_NEARLY_FREE, rate[rows].max())]
        keep.append(int(near[np.argmax(rate[near])]))
        speeds.append(float(np.mean(solo.samples_s[near] / rate[near])))
    return replace(solo.take(np.array(keep)), samples_s=np.array(speeds))


def _correct_rates(curves: Curves | None, speed: Speed, free: Profile) -> Curves | None:
    """Return curves with rates corrected for the error of the speed model at each batch size.

    A batch size measured at several caps or clocks is known better than the speed model predicts it.
    """
    if curves is None:
        return None
    settings = free.settings
    rates = np.ones(len(curves.batch))
    for row, size in enumerate(curves.batch):
        here = np.flatnonzero(np.isclose(settings.local_batch, size))
        narrow = here[settings.gpus[here] == settings.gpus[here].min()]
        compute_s = _step_s(free)[narrow] - speed.sync_s(settings.gpus[narrow], settings.nodes[narrow])
        law_s = speed.compute_s(settings.local_batch[narrow])
        rates[row] = np.mean(law_s / np.maximum(compute_s, 0.1 * law_s))
    return curves.scale_rates(rates)


def _pass_through_measured(model: Workload, solo: Profile, lines: Collection[str]) -> Workload:
    """Return *model* with throttled rates that pass through the measured speeds of the fewest GPUs.

    For the knobs of *lines* rates and watts are lines between the measurements. Coefficients stay as they
    are: only the tables are corrected.
    """
    throttle, corrected = model.throttle, dict[str, Curves]()
    for name, knob, other in (("caps", "cap_w", "clock_mhz"), ("clocks", "clock_mhz", "cap_w")):
        curves: Curves | None = getattr(throttle, name)
        rows = solo.take(~np.isnan(getattr(solo, knob)) & np.isnan(getattr(solo, other)))
        if curves is None or not len(rows):
            continue
        rows = rows.take(rows.gpus == rows.gpus.min())
        rows = rows.take(rows.nodes == rows.nodes.min())
        batch = rows.settings.local_batch
        step_s = _step_s(rows)
        compute_s = np.maximum(step_s - model.speed.sync_s(rows.gpus, rows.nodes), 0.1 * step_s)
        rate = model.speed.compute_s(batch) / compute_s
        measured = _round_sizes(batch), getattr(rows, knob), rate
        corrected[name] = (
            follow_lines(curves, *measured, rows.watts / rows.gpus)
            if knob in lines
            else pass_through_rates(curves, *measured)
        )
    caps, clocks = corrected.get("caps", throttle.caps), corrected.get("clocks", throttle.clocks)
    return replace(model, throttle=replace(throttle, caps=caps, clocks=clocks))


def _step_s(rows: Profile) -> Floats:
    return rows.settings.local_batch * rows.gpus / rows.samples_s


def _noise(rows: Profile) -> Floats:
    return np.fmax(rows.stderr / rows.samples_s, _NOISE)


def _measured_ranges(rows: Profile) -> dict[str, tuple[float, float]]:
    """Return the minimum and maximum of every knob that was varied."""
    settings = rows.settings
    values = {
        **{name: getattr(settings, name) for name in ("gpus", "nodes", "cap_w", "clock_mhz", "fuse")},
        "batch": np.where(np.isnan(rows.batch), np.nan, settings.local_batch),
        "cpus": settings.cpus / settings.gpus,
        "mem_gib": settings.mem_gib / settings.gpus,
    }
    ranges = {}
    for name, column in values.items():
        seen = column[~np.isnan(column)]
        if len(np.unique(seen)) > 1:
            ranges[name] = (float(seen.min()), float(seen.max()))
    return ranges


def _fit_waiting_power(model: Workload, solo: Profile) -> float:
    """Fit the power of a waiting GPU relative to a computing one, from jobs on several GPUs."""
    rows = solo.take((solo.gpus > 1) & ~np.isnan(solo.watts))
    if not len(rows):
        return DEFAULT_WAITING_POWER
    working, waiting = (
        replace(model, waiting_power=share).extrapolate(rows.settings).watts for share in (0.0, 1.0)
    )
    x, y = (waiting - working) / rows.watts, (rows.watts - working) / rows.watts
    # With almost no waiting time the power of a waiting GPU cannot be estimated.
    if x @ x < 1e-4 * len(x):
        return DEFAULT_WAITING_POWER
    return float(np.clip(x @ y / (x @ x), 0.0, 1.0))


def _fit_host_demand(timed: Profile) -> DemandModel:
    """Fit the demand per GPU, from the setting of the other knobs with the most rows."""
    limited = timed.take(~(np.isnan(timed.cpus) & np.isnan(timed.mem_gib)) & (timed.fuse == 1))
    if not len(limited):
        return DemandModel()
    others = [name for name in KNOBS if name not in ("cpus", "mem_gib")]
    knobs = np.column_stack([np.nan_to_num(getattr(limited, name), nan=-1.0) for name in others])
    _, group, count = np.unique(knobs, axis=0, return_inverse=True, return_counts=True)
    rows = limited.take(group.reshape(-1) == int(np.argmax(count)))
    if len(rows) < 2:
        return DemandModel()
    # A job has one cache per node, however many GPUs it uses there.
    fitted = fit_demand(rows.cpus / rows.gpus, rows.mem_gib / rows.nodes, rows.samples_s / rows.gpus)
    return replace(
        fitted,
        least_gib=fitted.least_gib * float(rows.nodes[0] / rows.gpus[0]),
        read_mib_s=float(np.nan_to_num(rows.read_mib_s[0] / rows.gpus[0])) if fitted.storage_s else 0.0,
    )


def _fit_array_model(model: Workload, timed: Profile) -> ArrayModel:
    """Fit the slowdown and memory of fused jobs relative to the model's prediction for one job."""
    alone = replace(model, array=ArrayModel(serial=0.0))
    compute_s = alone.speed.compute_s(timed.settings.local_batch)
    solo = alone.extrapolate(replace(timed.settings, fuse=np.ones(len(timed))))
    extra_s = timed.settings.local_batch * timed.gpus * (timed.fuse / timed.samples_s - 1.0 / solo.samples_s)
    slowdown = np.where(timed.fuse > 1, np.maximum(1.0 + extra_s / compute_s, 1e-3), np.nan)
    # Memory grows with the batch size too, so only rows of equal local batch are compared.
    local = timed.settings.local_batch
    comparable = (
        np.isin(local, local[timed.fuse > 1]) if (timed.fuse > 1).any() else local == np.median(local)
    )
    return fit_array(timed.fuse, slowdown, np.where(comparable, timed.peak_gib, np.nan))

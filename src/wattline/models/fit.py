"""From measurements to models: `fit` reads a profile's rows, and says when they cannot be read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import numpy as np
import scipy.optimize  # noqa: F401  here, so that the first fit is as quick as the next

from wattline.core.table import Floats
from wattline.errors import NotFitted
from wattline.measurement.devices import DEVICES
from wattline.measurement.merge import merged, unstarved, with_batches
from wattline.measurement.points import Profile
from wattline.measurement.settings import KNOBS
from wattline.models.array_speed import Array, fit_array
from wattline.models.demand import Demand, fit_demand
from wattline.models.power.curves import Curves, fit_caps, fit_clocks
from wattline.models.power.throttle import Throttle, top_of
from wattline.models.speed import Speed, fit_speed
from wattline.models.workload import WAITING, Source, Workload
from wattline.models.workload_models import Measured

_NOISE = 0.01  # relative, of a measurement that states none
_SIZES = 24  # batch sizes with curves of their own, at most
_NEARLY_FREE = 0.9  # rate above which a throttled measurement tells the speed without a throttle


def fit(profile: Profile) -> Measured:
    """Models of every (model, GPU kind) in *profile*.

    Raises `NotFitted` where measurements are too few or all of one setting, and `ProfileError` where
    two of them contradict each other.
    """
    rows = list(workloads(profile))
    found = [fit_workload(some) for some in rows]
    shapes = _shapes(found)
    for place, w in enumerate(found):
        if w.gpu in shapes and w.throttle.clocks is not None:
            found[place] = fit_workload(rows[place], shapes[w.gpu])
    return Measured(tuple(found))


def _shapes(found: Sequence[Workload]) -> dict[str, tuple[float, float]]:
    """Knee and rise of each chip's voltage, where several curves against its clock tell them."""
    laws: dict[str, list[list[float]]] = defaultdict(list)
    for w in found:
        clocks = w.throttle.clocks
        if clocks is not None and clocks.metered:
            laws[w.gpu] += [law for law in clocks.watts_law.tolist() if law[3] > 0]
    return {
        gpu: (float(np.median([law[2] for law in some])), float(np.median([law[3] for law in some])))
        for gpu, some in laws.items()
        if len(some) > 1
    }


def workloads(profile: Profile) -> Iterator[Profile]:
    """The rows of each (model, GPU kind), in the order of their first appearance."""
    codes = profile.model.codes * len(profile.gpu.names) + profile.gpu.codes
    _, first = np.unique(codes, return_index=True)
    for row in np.sort(first):
        yield profile.take(codes == codes[row])


def fit_workload(profile: Profile, shape: tuple[float, float] | None = None) -> Workload:
    """The models of one (model, GPU kind), of which all rows of *profile* must be.

    *shape* is the knee and the rise of the chip's voltage, where other jobs have told them.
    """
    if not len(profile):
        raise NotFitted("there are no measurements, expected some in at least 2 different settings")
    name = f"{profile.model.word(0)} on {profile.gpu.word(0)}"
    if np.ptp(profile.model.codes) or np.ptp(profile.gpu.codes):
        raise NotFitted(f"{name} and others in one workload, expected one; `fit` takes them apart")
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
        raise NotFitted(f"{name}: every measurement is of fused jobs, expected some of one job (fuse 1)")
    every = unstarved(rows.take(rows.fuse == 1))
    solo = every.take(~np.isnan(every.samples_s))
    gpu = profile.gpu.word(0)
    caps = _curves(every, "cap_w", fit_caps)
    clocks = _curves(every, "clock_mhz", partial(fit_clocks, shape=shape))
    throttle = Throttle(gpu, *_top_w(every, caps, clocks), caps, clocks)
    free = _full_speed(solo, _rate(throttle, solo))
    speed = fit_speed(free.settings, _step_s(free), _noise(free))
    model = Workload(
        model=profile.model.word(0),
        gpu=gpu,
        speed=speed,
        throttle=replace(throttle, caps=_bent(caps, speed, free), clocks=_bent(clocks, speed, free)),
        usual_batch=float(np.median(solo.batch / solo.gpus)),
        measured=MappingProxyType(_ranges(timed)),
        metered=not bool(np.isnan(throttle.top_w).all()),
        source=Source(points=len(profile)),
    )
    model = replace(model, wait=_wait(model, solo), demand=_demand(timed))
    return replace(model, array=_array(model, timed))


def _curves(solo: Profile, knob: str, fit_knob: Callable[..., Curves]) -> Curves | None:
    """Curves against one knob, from the fewest GPUs on which it was varied."""
    other = "clock_mhz" if knob == "cap_w" else "cap_w"
    capped = solo.take(~np.isnan(getattr(solo, knob)))
    for gpus in np.unique(capped.gpus):
        rows = capped.take(capped.gpus == gpus)
        rows = _loosest(rows.take(rows.nodes == rows.nodes.min()), other)
        batch, values = rows.settings.local_batch, getattr(rows, knob)
        timed = ~np.isnan(rows.samples_s)
        varied = np.array([len(np.unique(values[timed & (batch == size)])) > 1 for size in batch])
        if varied.any():
            rows = rows.take(varied)
            free = solo.take((solo.gpus == gpus) & np.isnan(solo.cap_w) & np.isnan(solo.clock_mhz))
            free = free.take(np.isin(free.settings.local_batch, batch[varied]))
            return _fit_curves(rows, free, knob, fit_knob)
    return None


def _loosest(rows: Profile, knob: str) -> Profile:
    """Of *rows* those in which a *knob* held nothing back, or where there are none, the least."""
    values = getattr(rows, knob)
    unset = np.isnan(values)
    return rows.take(unset if unset.any() else values == values.max())


def _fit_curves(rows: Profile, free: Profile, knob: str, fit_knob: Callable[..., Curves]) -> Curves:
    values = getattr(rows, knob)
    limit = np.full(len(free), _limit(rows, free, knob))
    watts = np.concatenate((rows.watts / rows.gpus, free.watts / free.gpus))
    return fit_knob(
        _few_sizes(np.concatenate((rows.settings.local_batch, free.settings.local_batch))),
        np.concatenate((values, limit)),
        np.concatenate((rows.samples_s, free.samples_s)),
        watts,
        np.concatenate((_noise(rows), _noise(free))),
    )


def _limit(rows: Profile, free: Profile, knob: str) -> float:
    """Where on a knob a GPU is that nothing holds back: at the device's end, or where its watts are."""
    most = float(getattr(rows, knob).max())
    if not len(free):
        return most
    device = DEVICES.get(rows.gpu.word(0))
    if knob == "cap_w":
        drawn = free.watts[~np.isnan(free.watts)] / free.gpus[~np.isnan(free.watts)]
        return max(most, device.max_cap_w if device else 0.0, float(drawn.max(initial=0.0)))
    faster = float(np.nanmax(free.samples_s, initial=0.0) / np.nanmax(rows.samples_s))
    return max(most, device.max_clock_mhz if device else most * min(faster, 2.0))


def _few_sizes(batch: Floats) -> Floats:
    """Batch sizes, each put to the nearest of a few where there are many."""
    sizes = np.unique(batch)
    if len(sizes) <= _SIZES:
        return batch
    chosen = sizes[np.unique(np.round(np.linspace(0, len(sizes) - 1, _SIZES)).astype(np.int64))]
    return np.asarray(chosen[np.abs(np.log(batch)[:, None] - np.log(chosen)).argmin(axis=1)])


def _top_w(solo: Profile, caps: Curves | None, clocks: Curves | None) -> tuple[Floats, Floats]:
    """Watts of a GPU that nothing holds back, by local batch."""
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
        # One cap or clock for all rows.
        rows = solo.take(metered)
        watts, clock = float(np.median(rows.watts / rows.gpus)), float(np.median(rows.clock_mhz))
        known[float(np.median(rows.settings.local_batch))] = (
            watts if np.isnan(clock) else top_of(solo.gpu.word(0), clock, watts)
        )
    sizes = np.array(sorted(known)) if known else np.ones(1)
    return sizes, np.array([known[size] for size in sizes.tolist()]) if known else np.full(1, np.nan)


def _rate(throttle: Throttle, solo: Profile) -> Floats:
    """How far each row was held back by its cap or clock; a knob nobody can tell about held nothing back."""
    try:
        return throttle.at(solo.settings.local_batch, solo.cap_w, solo.clock_mhz)[0]
    except NotFitted:
        return np.ones(len(solo))


def _full_speed(solo: Profile, rate: Floats) -> Profile:
    """One row per (gpus, nodes, batch): its speed where neither cap nor clock holds it back."""
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


def _bent(curves: Curves | None, speed: Speed, free: Profile) -> Curves | None:
    """Curves whose rates make up for what the law of the speed misses at each batch size.

    A size at which several knobs were measured is known better than a law in the size can say.
    """
    if curves is None:
        return None
    settings = free.settings
    rates = np.ones(len(curves.batch))
    for row, size in enumerate(curves.batch):
        here = np.flatnonzero(np.isclose(settings.local_batch, size))
        narrow = here[settings.gpus[here] == settings.gpus[here].min()]
        computes_s = _step_s(free)[narrow] - speed.sync_s(settings.gpus[narrow], settings.nodes[narrow])
        law_s = speed.compute_s(settings.local_batch[narrow])
        rates[row] = np.mean(law_s / np.maximum(computes_s, 0.1 * law_s))
    return curves.bent(rates)


def _step_s(rows: Profile) -> Floats:
    return rows.settings.local_batch * rows.gpus / rows.samples_s


def _noise(rows: Profile) -> Floats:
    return np.fmax(rows.stderr / rows.samples_s, _NOISE)


def _ranges(rows: Profile) -> dict[str, tuple[float, float]]:
    """The least and the most of every knob that was varied."""
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


def _wait(model: Workload, solo: Profile) -> float:
    """Watts of a waiting GPU over those of a computing one, from what several GPUs draw."""
    rows = solo.take((solo.gpus > 1) & ~np.isnan(solo.watts))
    if not len(rows):
        return WAITING
    working, waiting = (replace(model, wait=share).extrapolate(rows.settings).watts for share in (0.0, 1.0))
    x, y = (waiting - working) / rows.watts, (rows.watts - working) / rows.watts
    # Where hardly anybody waits, what a waiting GPU draws does not show.
    if x @ x < 1e-4 * len(x):
        return WAITING
    return float(np.clip(x @ y / (x @ x), 0.0, 1.0))


def _demand(timed: Profile) -> Demand:
    """Demand per GPU, from the one setting of the other knobs in which cores or memory were varied most."""
    limited = timed.take(~(np.isnan(timed.cpus) & np.isnan(timed.mem_gib)) & (timed.fuse == 1))
    if not len(limited):
        return Demand()
    others = [name for name in KNOBS if name not in ("cpus", "mem_gib")]
    knobs = np.column_stack([np.nan_to_num(getattr(limited, name), nan=-1.0) for name in others])
    _, group, count = np.unique(knobs, axis=0, return_inverse=True, return_counts=True)
    rows = limited.take(group.reshape(-1) == int(np.argmax(count)))
    if len(rows) < 2:
        return Demand()
    # The cache of a node is one, however many of its GPUs the job has.
    found = fit_demand(rows.cpus / rows.gpus, rows.mem_gib / rows.nodes, rows.samples_s / rows.gpus)
    return replace(
        found,
        least_gib=found.least_gib * float(rows.nodes[0] / rows.gpus[0]),
        read_mib_s=float(np.nan_to_num(rows.read_mib_s[0] / rows.gpus[0])) if found.storage_s else 0.0,
    )


def _array(model: Workload, timed: Profile) -> Array:
    """How fused jobs slow down, against what the model says of one."""
    alone = replace(model, array=Array(serial=0.0))
    computes_s = alone.speed.compute_s(timed.settings.local_batch)
    solo = alone.extrapolate(replace(timed.settings, fuse=np.ones(len(timed))))
    extra_s = timed.settings.local_batch * timed.gpus * (timed.fuse / timed.samples_s - 1.0 / solo.samples_s)
    slowdown = np.where(timed.fuse > 1, np.maximum(1.0 + extra_s / computes_s, 1e-3), np.nan)
    # Memory grows with the batch too: compare like with like.
    local = timed.settings.local_batch
    alike = np.isin(local, local[timed.fuse > 1]) if (timed.fuse > 1).any() else local == np.median(local)
    return fit_array(timed.fuse, slowdown, np.where(alike, timed.peak_gib, np.nan))

"""Prices of resources over time, and the resource that was the bottleneck."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wattline.core.resource_prices import BUDGETS, ENERGY, KWH, WATTS
from wattline.core.table import Floats
from wattline.loop.runlog import Log
from wattline.reports.data.downsample import downsample
from wattline.reports.data.step_function import POINTS, StepFunction
from wattline.units import format_seconds, pluralize

_BINS = 48  # of the run: a bottleneck is named for a share of time that a reader can see
_MOST_NAMED = 4
_BUDGET_NAMES = {WATTS: "watts were", KWH: "kilowatt-hours were", BUDGETS: "the energy budgets were"}


class Bottleneck(NamedTuple):
    """A stretch of time, from the first submission on, in which one resource had the highest price."""

    resource: str
    begin_s: float
    end_s: float

    def __str__(self) -> str:
        subject = _BUDGET_NAMES.get(self.resource, f"{self.resource} GPUs were")
        unit_s, unit = (3600.0, "h") if self.end_s >= 2 * 3600 else (60.0, "min")
        begin, end = (f"{round(at_s / unit_s, 1):g}" for at_s in (self.begin_s, self.end_s))
        return f"{subject} the bottleneck from {begin} to {end} {unit}"


def collect_prices(log: Log) -> dict[str, StepFunction]:
    """Return the price of each resource over time since the first submission; empty: the log has none."""
    rounds = [(at_s, found) for at_s, found in zip(log.now_s.tolist(), log.prices, strict=True) if found]
    since_s = float(log.jobs.submit_s.min()) if len(log.jobs) else 0.0
    at_s = np.array([at_s - since_s for at_s, _ in rounds])
    names = dict.fromkeys(name for _, found in rounds for name in found.names)
    by_round = [found.as_dict() for _, found in rounds]
    return {
        name: StepFunction(at_s, np.array([prices.get(name, 0.0) for prices in by_round])) for name in names
    }


def downsample_prices(prices: dict[str, StepFunction], points: int = POINTS) -> dict[str, StepFunction]:
    """Return *prices* with at most *points* each."""
    thinned = {}
    for name, steps in prices.items():
        rows = downsample(steps.at_s, steps.value, points)
        thinned[name] = StepFunction(steps.at_s[rows], steps.value[rows])
    return thinned


def find_bottlenecks(prices: dict[str, StepFunction], end_s: float) -> tuple[Bottleneck, ...]:
    """Return the stretches with a bottleneck until *end_s*, in order of time.

    Time is cut into equal bins. The bottleneck of a bin is the resource that had the highest price for most
    of it; a resource is scarce only while its price is above 0.
    """
    names = [name for name in prices if name != ENERGY]
    if not names or end_s <= 0:
        return ()
    at_s = prices[names[0]].at_s
    values = np.stack([prices[name].value for name in names])
    highest = np.where(values.max(axis=0) > 0, values.argmax(axis=0), len(names))
    edges = np.linspace(0.0, end_s, _BINS + 1)
    share_s = np.stack([_measure_bins(at_s, highest == k, edges, end_s) for k in range(len(names))])
    width_s = end_s / _BINS
    top = np.where(share_s.max(axis=0) > 0.5 * width_s, share_s.argmax(axis=0), len(names))
    starts = np.flatnonzero(np.diff(top, prepend=-1))
    ends = np.append(starts[1:], _BINS)
    return tuple(
        Bottleneck(names[top[first]], float(edges[first]), float(edges[last]))
        for first, last in zip(starts.tolist(), ends.tolist(), strict=True)
        if top[first] < len(names)
    )


def _measure_bins(at_s: Floats, holds: Floats, edges: Floats, end_s: float) -> Floats:
    """Return the seconds of each bin in which *holds* is true; it holds from *at_s* to the next."""
    times = np.append(np.minimum(at_s, end_s), end_s)
    total = np.concatenate(([0.0], np.cumsum(np.diff(times) * holds)))
    return np.diff(np.interp(edges, times, total))


def describe_bottlenecks(bottlenecks: tuple[Bottleneck, ...]) -> str:
    """Return the longest stretches as one sentence, and how many there are besides; "": none."""
    longest = sorted(bottlenecks, key=lambda found: found.begin_s - found.end_s)[:_MOST_NAMED]
    text = "; ".join(map(str, sorted(longest, key=lambda found: found.begin_s)))
    rest = bottlenecks[:0] if len(longest) == len(bottlenecks) else set(bottlenecks) - set(longest)
    if not rest:
        return text
    rest_s = sum(found.end_s - found.begin_s for found in rest)
    return f"{text}; and {pluralize(len(rest), 'shorter interval')}, {format_seconds(rest_s)} in sum"

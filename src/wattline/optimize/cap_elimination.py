"""Configurations that differ in the power cap only, as one: which cap is best depends on nothing else.

What a job pays depends on its GPUs, the sort of its node and the busy GPUs there. So the best cap for each of
these can be found before anything else is decided, and caps make no program larger.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wattline.core.table import Ints
from wattline.optimize.instance import POSTPONED, Event, Schedule, busy
from wattline.optimize.objective import Charges


@dataclass(frozen=True, eq=False)
class Folded:
    """An event and its charges without caps."""

    event: Event
    charges: Charges
    of: Ints  # the configuration here that each configuration there belongs to
    way: Ints  # by job, configuration here and busy GPUs: the best configuration there

    def down(self, schedule: Schedule) -> Schedule:
        """*schedule* of the whole event in terms of this one."""
        waits = schedule.config == POSTPONED
        return replace(schedule, config=np.where(waits, POSTPONED, self.of[schedule.config]))

    def up(self, schedule: Schedule) -> Schedule:
        """*schedule* of this event, with the best caps."""
        used = busy(self.event, schedule)
        config = schedule.config.copy()
        for job in np.flatnonzero(config != POSTPONED).tolist():
            c = config[job]
            config[job] = self.way[job, c, used[self.event.config_sort[c]][schedule.node[job]]]
        return replace(schedule, config=config)


def fold(event: Event, charges: Charges) -> Folded:
    """*event* with one configuration for each number of GPUs of a sort."""
    pairs = np.stack((event.config_sort, event.config_gpus))
    kept, of = np.unique(pairs, axis=1, return_inverse=True)
    of = of.reshape(-1).astype(np.int64)
    groups = [np.flatnonzero(of == k) for k in range(kept.shape[1])]
    shape = (event.jobs, len(groups), event.cost_s.shape[1])
    runs, way = np.empty(shape), np.empty(shape, dtype=np.int64)
    left_s = np.empty(shape[:2])
    for k, group in enumerate(groups):
        best = np.argmin(charges.runs[:, group], axis=1)
        way[:, k] = group[best]
        runs[:, k] = np.take_along_axis(charges.runs[:, group], best[:, None], axis=1)[:, 0]
        left_s[:, k] = event.left_s[:, group].min(axis=1)
    slim = replace(
        event,
        config_sort=np.ascontiguousarray(kept[0]),
        config_gpus=np.ascontiguousarray(kept[1]),
        left_s=left_s,
        own_s=np.empty(0),
        pause_s=np.empty(0),
    )
    return Folded(slim, replace(charges, runs=runs), of, way)

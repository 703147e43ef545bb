"""History of the power of all GPUs: written every 10 s whatever the policy, and read back in steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from wattline.backend.engine.protocol import GpuReading
from wattline.core.nodes import Nodes
from wattline.errors import StoreError
from wattline.service.storage.events import PowerSample
from wattline.service.storage.queries import StoreReader
from wattline.service.storage.store import Store

KEPT_S = 30 * 86400.0
"""Time for which power samples are kept, unless the retention of the service is another."""
_PRUNE_INTERVAL_S = 3600.0

_logger = logging.getLogger(__name__)


class PowerHistory:
    """Writes power samples. A sample that cannot be written is lost, and does not stop the scheduler."""

    def __init__(self, store: Store, nodes: Nodes) -> None:
        self._store, self._nodes = store, nodes
        self._next_prune_s, self._failed = -math.inf, False

    def record(self, at_s: float, readings: Sequence[GpuReading]) -> None:
        """Write one sample of all GPUs, in one transaction."""
        names = self._nodes.name
        samples = [
            PowerSample(at_s, str(names[one.node]), one.gpu, one.power_w, one.cap_w, one.jobs)
            for one in readings
        ]
        try:
            self._store.add_power_samples(samples)
            if at_s >= self._next_prune_s:
                self._store.delete_power_samples(at_s - KEPT_S)
                self._next_prune_s = at_s + _PRUNE_INTERVAL_S
            self._failed = False
        except StoreError as error:
            if not self._failed:
                _logger.warning("power samples are lost: %s", error.message)
            self._failed = True


@dataclass(frozen=True)
class PowerPoint:
    """All GPUs in one step. A total is None if some of its GPUs could not be read."""

    at_s: float
    power_w: float | None
    cap_w: float | None
    gpus: tuple[PowerSample, ...]


def read_power(
    store: StoreReader, since_s: float, until_s: float, step_s: float, limit: int
) -> tuple[list[PowerPoint], float | None]:
    """Return at most *limit* points, one per *step_s*, and the time from which to read on; None: no more."""
    first_s = store.first_power_s(since_s, until_s)
    if first_s is None:
        return [], None
    end_s = min((math.floor(first_s / step_s) + limit) * step_s, until_s)
    next_s = store.first_power_s(end_s, until_s)
    samples = store.power_samples(first_s, end_s, step_s)
    points = [
        PowerPoint(at_s, _sum(one.power_w for one in gpus), _sum(one.cap_w for one in gpus), gpus)
        for at_s, gpus in ((at_s, tuple(group)) for at_s, group in groupby(samples, key=lambda one: one.at_s))
    ]
    return points, next_s


def _sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)

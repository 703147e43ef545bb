"""The table of jobs that policies see: it grows as jobs come, and is made anew when it is mostly past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from wattline.backend.engine.job_record import Life
from wattline.core.host_share import with_shares
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes

_LEAST_S = 1e-3  # of what is left of a job


class Rows:
    """Rows of jobs; whoever leaves the queue and comes back has a new one."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.clear()

    def clear(self) -> None:
        """Begin with nobody."""
        self.jobs = Jobs.of(submit_s=[], gpus=[], duration_s=[])
        self.ids: list[str] = []  # by row
        self._numbers: dict[str, int] = {}  # how many rows a job has had

    def enter(self, lives: Sequence[Life]) -> None:
        """Give each of *lives* a row: what is left of it to do."""
        if not lives:
            return
        first = len(self.jobs)
        names = []
        columns: dict[str, list[Any]] = {name: [] for name in lives[0].asks}
        for place, life in enumerate(lives):
            life.row, life.base = first + place, min(life.done, 1.0)
            number = self._numbers[life.id] = self._numbers.get(life.id, 0) + 1
            names.append(life.id if number == 1 else f"{life.id}~{number}")
            self.ids.append(life.id)
            for name, value in life.asks.items():
                columns[name].append(value)
        left = [max(life.asks["duration_s"] * (1.0 - life.base), _LEAST_S) for life in lives]
        columns |= {"duration_s": left, "id": names, "fuse": [life.fuse for life in lives]}
        new = Jobs.of(submit_s=[0.0] * len(lives), **columns)  # in this order, whoever came first
        submit_s = np.array([life.submit_s for life in lives])
        new = replace(with_shares(new, self._nodes), submit_s=submit_s)
        self.jobs = self.jobs.plus(new) if first else new

    def steps(self, life: Life, fraction: float) -> float:
        """Steps of a job's row when so much of the job is done."""
        part = (fraction - life.base) / (1.0 - life.base) if life.base < 1 else 1.0
        return float(self.jobs.steps[life.row]) * min(max(part, 0.0), 1.0)

    def rate(self, life: Life, rate: float | None) -> float:
        """Steps in a second, when so much of the job is done in one; None: as its owner said."""
        if rate is None or life.base >= 1:
            return 1.0 / float(self.jobs.step_s[life.row])
        return rate / (1.0 - life.base) * float(self.jobs.steps[life.row])

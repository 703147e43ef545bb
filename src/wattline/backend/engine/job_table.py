"""The job table that policies see. Rows are appended; a new table replaces one of mostly finished jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.preemption import preemption_columns
from wattline.core.host_share import fill_host_shares
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes

_LEAST_S = 1e-3  # remaining run time of a row


class JobTable:
    """Rows of jobs. A job that leaves the queue and comes back gets a new row, with the id ID~2."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.clear()

    def clear(self) -> None:
        """Remove all rows."""
        self.jobs = Jobs.of(submit_s=[], gpus=[], duration_s=[])
        self.ids: list[str] = []  # by row
        self._row_counts: dict[str, int] = {}  # by job, also its earlier rows

    def append(self, records: Sequence[JobRecord]) -> None:
        """Append a row for each record, of the work that it still has to do."""
        if not records:
            return
        first = len(self.jobs)
        ids = []
        columns: dict[str, list[Any]] = {
            name: [] for name in (*records[0].columns, *preemption_columns(records[0]))
        }
        for offset, record in enumerate(records):
            record.row, record.base_fraction = first + offset, min(record.completed_fraction, 1.0)
            count = self._row_counts[record.id] = self._row_counts.get(record.id, 0) + 1
            ids.append(record.id if count == 1 else f"{record.id}~{count}")
            self.ids.append(record.id)
            for name, value in {**record.columns, **preemption_columns(record)}.items():
                columns[name].append(value)
        remaining_s = [
            max(one.columns["duration_s"] * (1.0 - one.base_fraction), _LEAST_S) for one in records
        ]
        columns |= {"duration_s": remaining_s, "id": ids, "fuse": [one.fuse for one in records]}
        # `Jobs.of` sorts by submission time; equal times keep this order.
        new = Jobs.of(submit_s=[0.0] * len(records), **columns)
        submit_s = np.array([one.submit_s for one in records])
        new = replace(fill_host_shares(new, self._nodes), submit_s=submit_s)
        self.jobs = self.jobs.concatenate(new) if first else new

    def steps(self, record: JobRecord, fraction: float) -> float:
        """Return the steps of the record's row when *fraction* of the whole job is complete."""
        base = record.base_fraction
        part = (fraction - base) / (1.0 - base) if base < 1 else 1.0
        return float(self.jobs.steps[record.row]) * min(max(part, 0.0), 1.0)

    def steps_per_s(self, record: JobRecord, rate: float | None) -> float:
        """Return the steps per second of the record's row at *rate*, a fraction of the whole job per second.

        None: the speed that was assumed when it was submitted.
        """
        if rate is None or record.base_fraction >= 1:
            return 1.0 / float(self.jobs.step_s[record.row])
        return rate / (1.0 - record.base_fraction) * float(self.jobs.steps[record.row])

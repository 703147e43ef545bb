"""The schedule that a trace records: when each job ran, and what its records say besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from wattline.core.table import Floats, Ints, Labels, Table


@dataclass(frozen=True, eq=False)
class RecordedSchedule(Table):
    """Recorded runs of jobs, row by row those of `Trace.jobs`.

    Times are on the clock of `Jobs.submit_s`. Of a job that ran several times, *start_s* and *end_s* are
    those of the run, or of the first and the last run, that its work counts.
    """

    start_s: Floats  # nan: unknown
    end_s: Floats  # nan: unknown, or it was still running
    time_limit_s: Floats  # inf: unlimited; nan: unknown
    partition: Labels  # "": unknown, as in all columns of words
    qos: Labels
    name: Labels
    array: Labels  # id of the job array; "": none, or unknown
    nodes: Labels  # their number, or their names
    requeues: Ints  # runs before the last one
    dependency: Labels  # conditions on other jobs, as sbatch --dependency has them
    reservation: Labels  # that it ran in; "": none, or unknown
    energy_j: Floats  # as the scheduler recorded it; nan: unmetered

    @classmethod
    def of(cls, count: int, columns: Mapping[str, Any]) -> RecordedSchedule:
        """Build *count* rows from *columns*; a column that is missing or None is unknown."""
        filled: dict[str, Any] = {name: columns.get(name) for name in RECORDED_COLUMNS}
        for name, value in filled.items():
            if value is None:
                words = name not in MISSING
                filled[name] = Labels.repeat("", count) if words else np.full(count, MISSING[name])
        return cls(**filled)

    @property
    def has_times(self) -> bool:
        """True if start and end of at least one job are recorded."""
        return bool((np.isfinite(self.start_s) & np.isfinite(self.end_s)).any())

    def shift(self, by_s: float) -> RecordedSchedule:
        """Return these rows with their times *by_s* later."""
        columns = {name: getattr(self, name) for name in RECORDED_COLUMNS}
        return RecordedSchedule(**columns | {"start_s": self.start_s + by_s, "end_s": self.end_s + by_s})


RECORDED_COLUMNS = tuple(field.name for field in fields(RecordedSchedule))
"""The columns there are."""

MISSING: dict[str, Any] = {
    "start_s": np.nan,
    "end_s": np.nan,
    "time_limit_s": np.nan,
    "requeues": np.int64(0),
    "energy_j": np.nan,
}
"""Values of unknown numbers."""

"""Memory of Gavel from round to round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.table import Floats, Ints


@dataclass(frozen=True, eq=False)
class RoundNote:
    """State of Gavel between two decisions; all columns behind *room* are by *job*."""

    round: int  # number of the round that was decided last
    at_s: float  # *received_s* counts until then
    reset_s: float  # time at which *share* was computed
    computed_for: Ints  # rows of `Jobs` at that time,
    room: Ints  # and GPUs of each kind
    job: Ints  # rows of `Jobs`, ascending
    share: Floats  # target fraction of time on each kind; 0 where the job came later
    received_s: Floats  # seconds on each kind since *reset_s*, plus half a round
    isolated_s: Floats  # time that the work until *reset_s* would have taken with an equal share
    isolated_steps_s: Floats  # throughput with an equal share at *reset_s*
    steps_left: Floats  # at *reset_s*

    @classmethod
    def start(cls, kinds: int) -> RoundNote:
        """Return the note before the first decision."""
        none, no_jobs = np.empty(0), np.empty(0, dtype=np.int64)
        table = np.empty((0, kinds))
        return cls(
            -1,
            0.0,
            -np.inf,
            no_jobs,
            np.zeros(kinds, dtype=np.int64),
            no_jobs,
            table,
            table,
            none,
            none,
            none,
        )

    def align(self, job: Ints, half_round_s: float, steps_left: Floats) -> RoundNote:
        """Return the note for the jobs *job*: others are dropped, new ones have no share yet."""
        if np.array_equal(job, self.job):
            return self
        at = np.minimum(np.searchsorted(self.job, job), max(len(self.job) - 1, 0))
        known = self.job[at] == job if len(self.job) else np.zeros(len(job), dtype=np.bool_)
        kinds = self.share.shape[1]

        def take(column: Floats, new: Floats | float) -> Floats:
            if not len(self.job):
                return np.broadcast_to(new, (len(job), *column.shape[1:])).astype(np.float64)
            mask = known if column.ndim == 1 else known[:, None]
            return np.where(mask, column[at], new)

        return RoundNote(
            self.round,
            self.at_s,
            self.reset_s,
            self.computed_for,
            self.room,
            job,
            take(self.share, 0.0),
            take(self.received_s, np.full((len(job), kinds), half_round_s)),
            take(self.isolated_s, 0.0),
            take(self.isolated_steps_s, np.inf),
            take(self.steps_left, steps_left),
        )

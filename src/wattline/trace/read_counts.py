"""Counts of what became of the rows of a trace file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wattline.units import pluralize

BROKEN = "broken"
"""The reason of rows that were skipped because they are bad."""


@dataclass(frozen=True)
class ReadCounts:
    """Rows of a file: each is a job, a further run of a job (*joined*), or *dropped* for one reason.

    *repaired* counts jobs of which something was completed or approximated, by what; a job may be in
    several of its counts.
    """

    jobs: int = 0
    joined: int = 0
    repaired: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """All rows that hold data."""
        return self.jobs + self.joined + sum(self.dropped.values())

    @property
    def ignored(self) -> int:
        """Rows that are right but no GPU jobs, or that never ran."""
        return sum(count for reason, count in self.dropped.items() if reason != BROKEN)

    def __add__(self, more: ReadCounts) -> ReadCounts:
        return ReadCounts(
            self.jobs + more.jobs,
            self.joined + more.joined,
            _add(self.repaired, more.repaired),
            _add(self.dropped, more.dropped),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for JSON."""
        counts = {"rows": self.rows, "jobs": self.jobs, "joined": self.joined}
        return {**counts, "repaired": dict(self.repaired), "dropped": dict(self.dropped)}

    def __str__(self) -> str:
        """Return one sentence: `1200 rows, 1000 jobs; left out 200 rows: job steps (200)`."""
        text = f"{pluralize(self.rows, 'row')}, {pluralize(self.jobs, 'job')}"
        if self.joined:
            text += f"; joined {pluralize(self.joined, 'row')} with an earlier run of the same job"
        if self.repaired:
            text += f"; repaired: {describe_counts(self.repaired)}"
        if self.dropped:
            text += (
                f"; left out {pluralize(sum(self.dropped.values()), 'row')}: {describe_counts(self.dropped)}"
            )
        return text


def _add(counts: Mapping[str, int], more: Mapping[str, int]) -> Mapping[str, int]:
    return dict(Counter(counts) + Counter(more))


def describe_counts(counts: Mapping[str, int]) -> str:
    """Return reasons with their counts, the most frequent first."""
    largest_first = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{reason} ({count})" for reason, count in largest_first)

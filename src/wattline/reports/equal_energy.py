"""Comparison of runs at equal energy or equal mean JCT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattline.reports.knob_search import KnobMatch, Metric
from wattline.reports.summary import Report, finite_or_none
from wattline.reports.text import format_energy, format_percent, format_seconds
from wattline.text_table import format_narrow_table, format_table

_TITLES: dict[Metric, str] = {"energy_j": "At equal energy", "jct_mean_s": "At equal mean JCT"}
_SIDE_NOTES: dict[Metric, dict[str, str]] = {
    "energy_j": {
        "above": "{0} uses less whatever its {1}: its fastest run is compared",
        "under": "this run of {0} uses less, and none that uses as much is faster",
        "below": "{0} uses more whatever its {1}: its cheapest run is compared",
    },
    "jct_mean_s": {
        "above": "{0} is faster whatever its {1}: its cheapest run is compared",
        "under": "this run of {0} is faster, and none that takes as long is cheaper",
        "below": "{0} is slower whatever its {1}: its fastest run is compared",
    },
}
_SIDE_MARKS = {"": "", "above": "+", "under": "~", "below": "-"}


@dataclass(frozen=True)
class KnobSweep:
    """Runs of one policy over its energy knob, in ascending order of its values."""

    policy: str
    knob: str
    values: tuple[float, ...]
    reports: tuple[Report, ...]
    run_number: int = 0  # of this policy's own run in the comparison

    def as_rows(self) -> list[dict[str, Any]]:
        """Return the knob's value, energy and mean JCT of each run for JSON."""
        return [
            {
                self.knob: value,
                "energy_j": finite_or_none(r.energy_j),
                "jct_mean_s": finite_or_none(r.jct_mean_s),
            }
            for value, r in zip(self.values, self.reports, strict=True)
        ]

    def __str__(self) -> str:
        rows = [
            (f"{value:.3g}", format_seconds(r.jct_mean_s), format_energy(r.energy_j))
            for value, r in zip(self.values, self.reports, strict=True)
        ]
        lines = format_table((self.knob, "mean JCT", "energy"), rows, right=range(3))
        return "\n".join((f"What {self.knob} does to {self.policy}", *lines))


@dataclass(frozen=True)
class MatchedComparison:
    """A baseline run and the run of a policy with the *knob* value that meets it in energy or mean JCT.

    Ratios are the baseline's metric over the policy's: above 1, the policy is better.
    """

    baseline: str
    policy: str
    baseline_report: Report
    match: KnobMatch
    knob: str = "eta"

    @property
    def jct_ratio(self) -> float:
        """Mean JCT of the baseline over that of the policy."""
        return self.baseline_report.jct_mean_s / self.match.report.jct_mean_s

    @property
    def energy_ratio(self) -> float:
        """Energy of the baseline over that of the policy."""
        return self.baseline_report.energy_j / self.match.report.energy_j

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of this comparison in a table with the columns of `list_match_columns`."""
        ours, baseline = self.match.report, self.baseline_report
        return (
            self.baseline,
            format_seconds(baseline.jct_mean_s),
            format_energy(baseline.energy_j),
            f"{self.match.value:.3g}",
            format_seconds(ours.jct_mean_s),
            format_energy(ours.energy_j),
            f"{self.jct_ratio:.2f} x",
            f"{self.energy_ratio:.2f} x",
            _SIDE_MARKS[self.match.side],
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        ours, baseline = self.match.report, self.baseline_report
        return {
            "baseline": self.baseline,
            "policy": self.policy,
            "knob": self.knob,
            self.knob: self.match.value,
            "reached": self.match.reached,
            "side": self.match.side,
            "energy_ratio": finite_or_none(self.energy_ratio),
            "jct_ratio": finite_or_none(self.jct_ratio),
            "energy_j": finite_or_none(ours.energy_j),
            "jct_mean_s": finite_or_none(ours.jct_mean_s),
            "unfinished": ours.unfinished,
            "baseline_energy_j": finite_or_none(baseline.energy_j),
            "baseline_jct_mean_s": finite_or_none(baseline.jct_mean_s),
            "baseline_unfinished": baseline.unfinished,
        }


def format_matches(rows: Sequence[MatchedComparison], metric: Metric) -> str:
    """Return *rows*, the runs matched in *metric*, as lines of text."""
    columns = list_match_columns(rows)
    lines = format_narrow_table(columns, [row.cells for row in rows], right=range(1, len(columns) - 1))
    return "\n".join((format_match_title(rows, metric), *lines, *list_match_notes(rows, metric)))


def list_match_columns(rows: Sequence[MatchedComparison]) -> tuple[str, ...]:
    """Return the titles of the columns of `MatchedComparison.cells`."""
    knob = rows[0].knob if rows else "knob"
    return "baseline", "its mean JCT", "its energy", knob, "our mean JCT", "our energy", "JCT", "energy", ""


def format_match_title(rows: Sequence[MatchedComparison], metric: Metric) -> str:
    """Return a title such as `At equal energy: powerflow against each, at an offered load of 95.0 %`."""
    if not rows:
        return f"{_TITLES[metric]}: no run with energy and finished jobs to compare with"
    load = format_percent(rows[0].baseline_report.offered_load)
    return f"{_TITLES[metric]}: {rows[0].policy} against each, at an offered load of {load}"


def list_match_notes(rows: Sequence[MatchedComparison], metric: Metric) -> list[str]:
    """Return the explanations of the columns and marks that *rows* have."""
    if not rows:
        return []
    ours = rows[0].policy
    sides = {row.match.side for row in rows}
    notes = [f"x: the baseline's figure over ours, so above 1 {ours} is better"]
    notes += [
        f"{_SIDE_MARKS[side]}: {text.format(ours, rows[0].knob)}"
        for side, text in _SIDE_NOTES[metric].items()
        if side in sides
    ]
    if any(row.match.report.unfinished != row.baseline_report.unfinished for row in rows):
        notes.append("beware: some runs left jobs unfinished that others finished; JCT is of finished jobs")
    return notes

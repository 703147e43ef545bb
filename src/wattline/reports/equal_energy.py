"""How do runs compare where both use the same energy, or both take the same time?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from wattline.grid import grid
from wattline.reports.knob_search import Figure, Match
from wattline.reports.summary import Report, finite
from wattline.reports.text import joules, percent, seconds

TITLES: dict[Figure, str] = {"energy_j": "At equal energy", "jct_mean_s": "At equal mean JCT"}
_HEAD = ("baseline", "its mean JCT", "its energy", "eta", "our mean JCT", "our energy", "JCT", "energy", "")
_MEANT: dict[Figure, dict[str, str]] = {
    "energy_j": {
        "above": "{} uses less whatever its eta: its fastest run is compared",
        "under": "this run of {} uses less, and none that uses as much is faster",
        "below": "{} uses more whatever its eta: its cheapest run is compared",
    },
    "jct_mean_s": {
        "above": "{} is faster whatever its eta: its cheapest run is compared",
        "under": "this run of {} is faster, and none that takes as long is cheaper",
        "below": "{} is slower whatever its eta: its fastest run is compared",
    },
}
_MARKS = {"": "", "above": "+", "under": "~", "below": "-"}


@dataclass(frozen=True)
class Swept:
    """What a policy can do: its runs, from the least eta to the most."""

    policy: str
    eta: tuple[float, ...]
    reports: tuple[Report, ...]
    number: int = 0  # of this policy's own run among those that are compared

    def as_rows(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [
            {"eta": eta, "energy_j": finite(r.energy_j), "jct_mean_s": finite(r.jct_mean_s)}
            for eta, r in zip(self.eta, self.reports, strict=True)
        ]

    def __str__(self) -> str:
        rows = [("eta", "mean JCT", "energy")]
        rows += [
            (f"{eta:.3g}", seconds(r.jct_mean_s), joules(r.energy_j))
            for eta, r in zip(self.eta, self.reports, strict=True)
        ]
        return "\n".join((f"What eta does to {self.policy}", *grid(rows, lambda column: ">")))


@dataclass(frozen=True)
class Equal:
    """A run against a policy whose eta was chosen to meet it in energy or mean JCT.

    Ratios are the baseline's figure over ours: above 1, ours is better.
    """

    baseline: str
    policy: str
    theirs: Report
    ours: Match

    @property
    def jct_ratio(self) -> float:
        """How many times sooner jobs are done."""
        return self.theirs.jct_mean_s / self.ours.report.jct_mean_s

    @property
    def energy_ratio(self) -> float:
        """How many times less energy is used."""
        return self.theirs.energy_j / self.ours.report.energy_j

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        ours, theirs = self.ours.report, self.theirs
        return {
            "baseline": self.baseline,
            "policy": self.policy,
            "eta": self.ours.value,
            "reached": self.ours.reached,
            "side": self.ours.side,
            "energy_ratio": finite(self.energy_ratio),
            "jct_ratio": finite(self.jct_ratio),
            "energy_j": finite(ours.energy_j),
            "jct_mean_s": finite(ours.jct_mean_s),
            "unfinished": ours.unfinished,
            "baseline_energy_j": finite(theirs.energy_j),
            "baseline_jct_mean_s": finite(theirs.jct_mean_s),
            "baseline_unfinished": theirs.unfinished,
        }


def equal_text(rows: Sequence[Equal], figure: Figure) -> str:
    """The comparison as lines of a terminal."""
    said = [_HEAD, *((row.baseline, *_cells(row), _mark(row)) for row in rows)]
    lines = grid(said, lambda column: "<" if column in (0, len(_HEAD) - 1) else ">")
    return "\n".join((equal_title(rows, figure), *lines, *equal_notes(rows, figure)))


def equal_title(rows: Sequence[Equal], figure: Figure) -> str:
    """What is compared, and at which load: `At equal energy: powerflow against each`."""
    if not rows:
        return f"{TITLES[figure]}: there is nobody to compare with"
    load = percent(rows[0].theirs.offered_load)
    return f"{TITLES[figure]}: {rows[0].policy} against each, at an offered load of {load}"


def equal_table(rows: Sequence[Equal]) -> str:
    """The comparison as an HTML table."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in _HEAD)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in (row.baseline, *_cells(row), _mark(row)))}</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(row: Equal) -> tuple[str, ...]:
    ours, theirs = row.ours.report, row.theirs
    return (
        seconds(theirs.jct_mean_s),
        joules(theirs.energy_j),
        f"{row.ours.value:.3g}",
        seconds(ours.jct_mean_s),
        joules(ours.energy_j),
        f"{row.jct_ratio:.2f} x",
        f"{row.energy_ratio:.2f} x",
    )


def _mark(row: Equal) -> str:
    return _MARKS[row.ours.side]


def equal_notes(rows: Sequence[Equal], figure: Figure) -> list[str]:
    """What columns and marks mean, as far as they are there."""
    if not rows:
        return []
    ours = rows[0].policy
    meant = {side: text.format(ours) for side, text in _MEANT[figure].items()}
    sides = {row.ours.side for row in rows}
    notes = [f"x: the baseline's figure over ours, so above 1 {ours} is better"]
    notes += [f"{_MARKS[side]}: {text}" for side, text in meant.items() if side in sides]
    if any(row.ours.report.unfinished != row.theirs.unfinished for row in rows):
        notes.append("beware: some runs left jobs unfinished that others finished; JCT is of finished jobs")
    return notes

"""A sweep as a table: values of the matrix, metrics, time and energy of every member."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from wattline.errors import NotFound
from wattline.service.controller import Controller
from wattline.service.http.job_responses import build_job_responses
from wattline.service.http.schemas import JobResponse

_HIGHER_IS_BETTER = (
    "acc",
    "auc",
    "bleu",
    "dice",
    "f1",
    "iou",
    "map",
    "precision",
    "recall",
    "reward",
    "score",
)


@dataclass(frozen=True)
class SweepTable:
    """The members of a sweep, and the names of what they differ in."""

    sweep: str
    name: str
    user: str
    members: list[JobResponse]
    parameters: tuple[str, ...]
    metrics: tuple[str, ...]
    counts: dict[str, int]
    arrays: list[tuple[str, ...]]  # members that were trained together in their last attempt
    energy_j: float | None  # of all members; None: that of one is unknown
    methods: tuple[str, ...]

    @property
    def ended(self) -> int:
        """Number of members that have ended."""
        return len(self.members) - self.counts.get("PENDING", 0) - self.counts.get("RUNNING", 0)

    def value(self, member: JobResponse, column: str) -> Any:
        """Return the value of a member in a column: a parameter, a metric, or one of the fixed ones."""
        if column in self.parameters:
            return member.matrix.get(column)
        if column in self.metrics:
            return member.metrics.get(column)
        return {
            "id": int(member.id),
            "state": member.state,
            "energy": member.energy_j,
            "ran": member.run_s,
        }.get(column)

    def sort(self, column: str, descending: bool) -> list[JobResponse]:
        """Return the members in order of a column: numbers, then texts, then those without a value."""

        def key(member: JobResponse) -> tuple[int, float, str]:
            value = self.value(member, column)
            if isinstance(value, bool | int | float):
                return 0, -value if descending else value, ""
            return (2, 0.0, "") if value is None else (1, 0.0, str(value))

        ordered = sorted(self.members, key=key)
        texts = [member for member in ordered if key(member)[0] == 1]
        if descending and texts:
            others = [member for member in ordered if key(member)[0] != 1]
            at = sum(key(member)[0] == 0 for member in others)
            ordered = others[:at] + texts[::-1] + others[at:]
        return ordered

    def find_best(self, metric: str, highest: bool) -> JobResponse | None:
        """Return the ended or running member with the best value of a metric; None: none has a value."""
        known = [member for member in self.members if metric in member.metrics]
        if not known:
            return None
        return (max if highest else min)(known, key=lambda member: member.metrics[metric])


def read_sweep(controller: Controller, sweep: str) -> SweepTable:
    """Return the table of a sweep; raise `NotFound` if no job belongs to it."""
    rows = controller.store.jobs(sweep=sweep)
    if not rows:
        raise NotFound(f"there is no sweep {sweep!r}", "a sweep has the number of its first job")
    members = build_job_responses(controller, rows)
    ran = [member for member in members if member.starts]
    energies = [member.energy_j for member in ran]
    groups = {tuple(sorted((one.id, *one.allocation.fused_with), key=int)) for one in ran}
    return SweepTable(
        sweep=sweep,
        name=find_common_name([row.name for row in rows]),
        user=rows[0].user,
        members=members,
        parameters=tuple(dict.fromkeys(name for member in members for name in member.matrix)),
        metrics=tuple(dict.fromkeys(name for member in members for name in member.metrics)),
        counts=dict(Counter(member.state for member in members)),
        arrays=sorted((group for group in groups if len(group) > 1), key=lambda group: int(group[0])),
        energy_j=None if None in energies or not ran else sum(one for one in energies if one is not None),
        methods=tuple(dict.fromkeys(member.energy_method for member in ran)),
    )


def find_common_name(names: Sequence[str]) -> str:
    """Return the words that all *names* share, as members' names may have their values; else the first."""
    words = [name.split() for name in names]
    if len(set(map(len, words))) == 1:
        shared = [column[0] for column in zip(*words, strict=True) if len(set(column)) == 1]
        if shared:
            return " ".join(shared)
    letters = zip(*names, strict=False)
    prefix = "".join(column[0] for column in takewhile(lambda column: len(set(column)) == 1, letters))
    if prefix not in names:  # not within a number or after a sign
        prefix = prefix.rstrip("0123456789.").rstrip(" -_=:,./")
    return prefix or names[0]


def is_better_high(metric: str) -> bool:
    """Return whether a metric of this name is usually better if it is higher."""
    return any(part in metric.casefold() for part in _HIGHER_IS_BETTER)

"""Joules of attempts, as the meters of their nodes have written them.

energy.NODE.json in the folder of an attempt has the joules of its GPUs on that node since the start of the
attempt, the draw, and the method. A node without a meter writes the method "unmetered".
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.folder_layout import read_json
from wattline.backend.engine.user_files import replace_file

UNMETERED = "unmetered"
_MAX_NUMBER = 1e15  # joules or watts of one attempt


def energy_file(node: str) -> str:
    """Return the name of the energy file of one node."""
    return f"energy.{node}.json"


def read_energy(folder: Path, node: str) -> dict[str, Any]:
    """Return method, joules and power_w of one node; None: not known. The job's user can write the file."""
    row = read_json(folder / energy_file(node))
    row = row if isinstance(row, dict) else {}
    method = row.get("method")
    numbers = {name: _read_number(row.get(name)) for name in ("joules", "power_w")}
    return {"method": " ".join(method.split())[:100] if isinstance(method, str) else UNMETERED, **numbers}


def _read_number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < _MAX_NUMBER else None  # type: ignore[operator, arg-type]


class EnergyFiles:
    """The joules of the attempts that run, and the sum of those that have ended."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self._names = names
        self._method_file = root / "slurm" / "energy_method"
        try:
            self.method = self._method_file.read_text().strip() or UNMETERED
        except OSError:
            self.method = UNMETERED
        self._joules: dict[str, float | None] = {}  # by job, in its current attempt
        self._power: dict[AttemptRecord, float | None] = {}
        self._ended_j = 0.0

    def sample(self, attempts: Sequence[AttemptRecord]) -> None:
        """Read the files of all *attempts*."""
        for attempt in attempts:
            self._read(attempt)

    def _read(self, attempt: AttemptRecord) -> None:
        rows = [read_energy(attempt.folder, self._names[node]) for node, _ in attempt.allocation]
        methods = sorted({row["method"] for row in rows})
        metered = [row for row in rows if row["joules"] is not None]
        if len(metered) < len(rows):
            joules = power_w = None  # a part of its GPUs is not counted
        else:
            joules = sum(row["joules"] for row in metered) / max(len(attempt.jobs), 1)
            power_w = sum(row["power_w"] or 0.0 for row in metered)
            self._note_method(methods)
        self._power[attempt] = power_w
        for job in attempt.jobs:
            before = self._joules.get(job)
            self._joules[job] = joules if joules is None or before is None else max(joules, before)

    def _note_method(self, methods: Sequence[str]) -> None:
        method = " and ".join(methods)
        if method and method != self.method:
            self.method = method
            with suppress(OSError):  # the disk is full: it is found again
                replace_file(self._method_file, f"{method}\n".encode())

    def leave(self, attempt: AttemptRecord, job: str) -> float | None:
        """Return the joules of a job that leaves its attempt, and start its next one from zero."""
        self._read(attempt)
        joules = self._joules.pop(job, None)
        self._ended_j += joules or 0.0
        if attempt.jobs == [job]:
            self._power.pop(attempt, None)
        return joules

    def energy_j(self, job: str) -> float | None:
        """Return the joules of a job in its current attempt; None: unknown."""
        return self._joules.get(job, 0.0 if self.method != UNMETERED else None)

    def power_w(self, attempt: AttemptRecord) -> float | None:
        """Return the draw of an attempt's GPUs; None: unknown."""
        return self._power.get(attempt)

    def total_j(self) -> float | None:
        """Return the joules of all attempts; None: unmetered."""
        if self.method == UNMETERED:
            return None
        return self._ended_j + sum(joules or 0.0 for joules in self._joules.values())

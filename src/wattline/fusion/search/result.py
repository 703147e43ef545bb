"""What tuning has found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torch import Tensor

from wattline.errors import NotFound
from wattline.grid import grid


class State(StrEnum):
    """How a trial has ended."""

    COMPLETE = "complete"
    PRUNED = "pruned"
    FAILED = "failed"


@dataclass(frozen=True)
class Trial:
    """One configuration, and how it did.

    *history* has the value after each epoch, *value* is the last of them; *why* says what has failed. The
    weights (*state_dict*) are kept of the best trial only.
    """

    number: int
    config: Mapping[str, Any]
    state: State
    history: tuple[float, ...]
    why: str = ""
    state_dict: dict[str, Tensor] | None = field(default=None, repr=False, compare=False)

    @property
    def value(self) -> float:
        """After the last epoch; nan if there was none."""
        return self.history[-1] if self.history else math.nan

    @property
    def epochs(self) -> int:
        """For how long it was trained."""
        return len(self.history)


@dataclass(frozen=True)
class Result:
    """All trials by number; *sign* is -1 where more is better. Printed, it is a table, the best first."""

    trials: tuple[Trial, ...]
    sign: int = 1

    @property
    def best(self) -> Trial:
        """The best of those that were trained to the end."""
        if not (ended := [trial for trial in self.trials if trial.state is State.COMPLETE]):
            failed = next((trial for trial in self.trials if trial.why), None)
            hint = "" if failed is None else f"trial {failed.number} failed: {failed.why}"
            raise NotFound(f"none of {len(self.trials)} trials was completed", hint)
        return min(ended, key=lambda trial: (self.sign * trial.value, trial.number))

    def table(self, rows: int = 20) -> str:
        """The best *rows* trials: complete ones first, then pruned ones by how far they came, then failed."""
        order = {State.COMPLETE: 0, State.PRUNED: 1, State.FAILED: 2}
        ranked = sorted(
            self.trials,
            key=lambda t: (
                order[t.state],
                -t.epochs,
                0 if t.state is State.FAILED else self.sign * t.value,
                t.number,
            ),
        )
        names = list(dict.fromkeys(name for trial in self.trials for name in trial.config))
        lines = [["trial", *names, "epochs", "value", "state"]]
        for trial in ranked[:rows]:
            values = [_short(trial.config.get(name)) for name in names]
            lines.append([str(trial.number), *values, str(trial.epochs), _short(trial.value), _said(trial)])
        text = grid(lines, lambda column: "<" if column == len(names) + 3 else ">")
        more = len(self.trials) - rows
        return "\n".join([*text, *([f"and {more} more"] if more > 0 else [])])

    def __str__(self) -> str:
        return self.table()


@dataclass(frozen=True)
class Progress:
    """One epoch of one array: who was trained, and what it is worth now."""

    shared: Mapping[str, Any]  # what all members of the array have in common
    numbers: tuple[int, ...]  # of the trials
    epochs: tuple[int, ...]  # that each of them has had
    values: tuple[float, ...]
    ended: int  # how many trials have ended by now, of all arrays
    waiting: int  # how many are waiting, in all partitions

    @property
    def width(self) -> int:
        """How many trials were trained together."""
        return len(self.numbers)


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _said(trial: Trial) -> str:
    return f"{trial.state.value}: {trial.why}" if trial.why else trial.state.value

"""Results of a hyper-parameter search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torch import Tensor

from wattline.errors import NotFound
from wattline.text_table import format_table


class TrialState(StrEnum):
    """The final state of a trial."""

    COMPLETE = "complete"
    PRUNED = "pruned"
    FAILED = "failed"


@dataclass(frozen=True)
class Trial:
    """One configuration and its result.

    *history* has the value after each epoch, *value* is the last of them; *why* is the reason of a failure.
    Only the best trial keeps its weights (*state_dict*).
    """

    number: int
    config: Mapping[str, Any]
    state: TrialState
    history: tuple[float, ...]
    why: str = ""
    state_dict: dict[str, Tensor] | None = field(default=None, repr=False, compare=False)

    @property
    def value(self) -> float:
        """Value after the last epoch; nan without epochs."""
        return self.history[-1] if self.history else math.nan

    @property
    def epochs(self) -> int:
        """Number of trained epochs."""
        return len(self.history)


@dataclass(frozen=True)
class Result:
    """All trials by number; *sign* is -1 for maximisation. It prints as a table, the best trial first."""

    trials: tuple[Trial, ...]
    sign: int = 1

    @property
    def best(self) -> Trial:
        """The best of the completed trials."""
        if not (ended := [trial for trial in self.trials if trial.state is TrialState.COMPLETE]):
            failed = next((trial for trial in self.trials if trial.why), None)
            hint = "" if failed is None else f"trial {failed.number} failed: {failed.why}"
            raise NotFound(f"none of {len(self.trials)} trials completed", hint)
        return min(ended, key=lambda trial: (self.sign * trial.value, trial.number))

    def table(self, rows: int = 20) -> str:
        """Return the best *rows* trials: complete ones, then pruned ones by epochs, then failed ones."""
        order = {TrialState.COMPLETE: 0, TrialState.PRUNED: 1, TrialState.FAILED: 2}
        ranked = sorted(
            self.trials,
            key=lambda t: (
                order[t.state],
                -t.epochs,
                0 if t.state is TrialState.FAILED else self.sign * t.value,
                t.number,
            ),
        )
        names = list(dict.fromkeys(name for trial in self.trials for name in trial.config))
        header = ["trial", *names, "epochs", "value", "state"]
        lines = []
        for trial in ranked[:rows]:
            values = [_short(trial.config.get(name)) for name in names]
            lines.append(
                [str(trial.number), *values, str(trial.epochs), _short(trial.value), _describe_state(trial)]
            )
        text = format_table(header, lines, right=range(len(names) + 3))
        more = len(self.trials) - rows
        return "\n".join([*text, *([f"and {more} more"] if more > 0 else [])])

    def __str__(self) -> str:
        return self.table()


@dataclass(frozen=True)
class Progress:
    """One epoch of one array: the trained trials and their values."""

    shared: Mapping[str, Any]  # configuration shared by all members of the array
    numbers: tuple[int, ...]  # of the trials
    epochs: tuple[int, ...]  # trained so far, by trial
    values: tuple[float, ...]
    ended: int  # number of trials that have ended, in all arrays
    waiting: int  # number of trials waiting, in all partitions

    @property
    def width(self) -> int:
        """Number of trials trained together."""
        return len(self.numbers)


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _describe_state(trial: Trial) -> str:
    return f"{trial.state.value}: {trial.why}" if trial.why else trial.state.value

"""Learning-rate schedules: one ordinary scheduler of torch for each member."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wattline.errors import ConfigError
from wattline.fusion.optim import ArrayOptimizer
from wattline.fusion.optim.hyperparameters import for_all, joining, per_member


class Schedule:
    """A scheduler of torch for every member of an array.

    >>> Schedule(optimiser, StepLR, step_size=[10, 20, 30], gamma=0.5)
    >>> Schedule(optimiser, MultiStepLR, milestones=[[10, 20], [5, 25], [7, 8]])
    >>> Schedule(optimiser, lambda one, member: ExponentialLR(one, gamma=0.9 - 0.1 * member))

    Arguments are one for all members, or a list of one per member; a value that is a list itself is given
    once per member. Any scheduler will do, because each runs on a stand-in: an optimiser of one member with
    its hyper-parameters, which are read from the array before every step and written to it after.
    """

    def __init__(self, optimiser: ArrayOptimizer, kind: Callable[..., Any], **given: Any) -> None:
        self.optimiser = optimiser
        self._kind = kind
        self._given = for_all(given)
        self._members: list[tuple[_StandIn, Any]] = []
        self.keys = frozenset(given)
        self._join(optimiser.width, given)
        optimiser.followers.add(self)

    def __len__(self) -> int:
        return len(self._members)

    def member(self, member: int) -> Any:
        """The ordinary scheduler of one member."""
        return self._members[member][1]

    def step(self, metrics: Sequence[float] | Tensor | None = None) -> None:
        """Step every member's scheduler; *metrics*, one per member, are what ReduceLROnPlateau looks at."""
        self._agree()
        if metrics is not None and len(metrics) != len(self):
            raise ConfigError(f"metrics has {len(metrics)} values, expected {len(self)} (one per member)")
        self.optimiser.hyper()
        for member, (one, scheduler) in enumerate(self._members):
            self._read(one, member)
            one.step()  # schedulers complain of an optimiser that has not stepped
            scheduler.step(*([] if metrics is None else [float(metrics[member])]))
            self._write(one, member)

    def get_last_lr(self) -> list[Tensor]:
        """For each parameter group the learning rates of all members, [B]."""
        last = [[float(rate) for rate in scheduler.get_last_lr()] for _, scheduler in self._members]
        return [torch.tensor(rates, dtype=torch.float64) for rates in zip(*last, strict=True)]

    def keep(self, rows: Sequence[int]) -> None:
        """Keep the members *rows*, in that order; the optimiser has done so before."""
        self._members = [self._members[row] for row in rows]
        self._agree()

    def check_joining(self, count: int, given: Mapping[str, Any]) -> None:
        """Complains unless *count* members may join with these arguments of their own."""
        own = joining(self._given, {key: given[key] for key in given if key in self.keys})
        _rows(own, count)

    def extend(self, count: int, **given: Any) -> None:
        """Let *count* members join, after the optimiser: with arguments of their own, or those for all."""
        self._join(count, joining(self._given, given))

    def state_dict(self) -> dict[str, Any]:
        """The state of every scheduler, and what it keeps in the groups of its optimiser."""
        members = [
            {
                "scheduler": scheduler.state_dict(),
                "groups": [
                    {key: group[key] for key in group if key != "params"} for group in one.param_groups
                ],
            }
            for one, scheduler in self._members
        ]
        return {"members": members}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict()` of as many members. Rates are the optimiser's to restore."""
        saved = state["members"]
        if len(saved) != len(self):
            raise ConfigError(f"the saved state has {len(saved)} members, this schedule has {len(self)}")
        for (one, scheduler), values in zip(self._members, saved, strict=True):
            scheduler.load_state_dict(values["scheduler"])
            for group, kept in zip(one.param_groups, values["groups"], strict=True):
                group.update(kept)

    def _join(self, count: int, given: dict[str, Any]) -> None:
        rows = _rows(given, count)
        self.optimiser.hyper()
        for index in range(count):
            member = len(self)
            one = _StandIn(
                [self.optimiser.member_hyper(group, member) for group in self.optimiser.param_groups]
            )
            own = {**given, **{name: _plain(row[index]) for name, row in rows.items()}}
            which = [] if isinstance(self._kind, type) else [member]
            self._members.append((one, self._kind(one, *which, **own)))
            self._write(one, member)
        self._agree()

    def _agree(self) -> None:
        if len(self) != self.optimiser.width:
            raise ConfigError(f"the schedule has {len(self)} members, its optimiser {self.optimiser.width}")

    def _read(self, one: _StandIn, member: int) -> None:
        for group, own in zip(self.optimiser.param_groups, one.param_groups, strict=True):
            own.update(self.optimiser.member_hyper(group, member))

    def _write(self, one: _StandIn, member: int) -> None:
        for group, own in zip(self.optimiser.param_groups, one.param_groups, strict=True):
            self.optimiser.write_member(group, member, own)


class _StandIn(torch.optim.Optimizer):
    """An optimiser of one member and nothing to optimise."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__([{"params": [torch.zeros(())], **group} for group in groups], dict(groups[0]))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do nothing."""


def _rows(given: Mapping[str, Any], count: int) -> dict[str, list[Any]]:
    """The arguments that are one per member."""
    rows = {name: list(value) for name, value in given.items() if per_member(value)}
    for name, row in rows.items():
        if len(row) != count:
            raise ConfigError(
                f"{name} has {len(row)} values, expected one or {count} (one per member)",
                "a value that is itself a list must be given once per member",
            )
    return rows


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.ndim == 0 else value

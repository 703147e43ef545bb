"""Learning-rate schedules: one ordinary PyTorch scheduler for each member."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from wattline.errors import ConfigError
from wattline.fusion.optim import ArrayOptimizer
from wattline.fusion.optim.hyperparameters import is_per_member, mark_varying, merge_joining
from wattline.fusion.optim.optimizer import require_array_optimiser


class Schedule:
    """A PyTorch scheduler for every member of an array.

    >>> Schedule(optimiser, StepLR, step_size=[10, 20, 30], gamma=0.5)
    >>> Schedule(optimiser, MultiStepLR, milestones=[[10, 20], [5, 25], [7, 8]])
    >>> Schedule(optimiser, lambda one, member: ExponentialLR(one, gamma=0.9 - 0.1 * member))

    Arguments are one value for all members, or a list of one per member; a value that is itself a list is
    passed once per member. Any scheduler works, because each runs on an optimiser of one member, with its
    hyper-parameters read from the array before every step and written back after it.
    """

    def __init__(self, optimiser: ArrayOptimizer, kind: Callable[..., Any], **arguments: Any) -> None:
        require_array_optimiser(optimiser)
        if not callable(kind):
            raise ConfigError(
                f"got {kind!r}, expected a class of torch.optim.lr_scheduler or a function of (one, member)",
                "pass the class and its arguments: Schedule(optimiser, StepLR, step_size=10)",
            )
        self.optimiser = optimiser
        self._kind = kind
        self._initial_values = mark_varying(arguments)
        self._members: list[tuple[_MemberOptimizer, Any]] = []
        self.keys = frozenset(arguments)
        self._join(optimiser.width, arguments)
        optimiser.followers.add(self)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def optimizer(self) -> ArrayOptimizer:
        """The optimiser, under the name that PyTorch's schedulers give it and Lightning asks for."""
        return self.optimiser

    def member(self, member: int) -> Any:
        """Return the ordinary scheduler of one member."""
        return self._members[member][1]

    def step(self, metrics: Sequence[float] | Tensor | None = None) -> None:
        """Step every member's scheduler; *metrics*, one per member, are passed to ReduceLROnPlateau."""
        self._check_width()
        if metrics is not None and not is_per_member(metrics):
            raise ConfigError(f"metrics is {metrics!r}, expected {len(self)} values (one per member)")
        if metrics is not None and len(metrics) != len(self):
            raise ConfigError(f"metrics has {len(metrics)} values, expected {len(self)} (one per member)")
        if metrics is None and any(isinstance(own, ReduceLROnPlateau) for _, own in self._members):
            raise ConfigError(
                "ReduceLROnPlateau needs a metric of every member, got none",
                "pass them: schedule.step(losses)",
            )
        self.optimiser.hyper_tensors()
        for member, (member_optimiser, scheduler) in enumerate(self._members):
            self._read(member_optimiser, member)
            member_optimiser.step()  # schedulers warn if their optimiser has not stepped
            scheduler.step(*([] if metrics is None else [float(metrics[member])]))
            self._write(member_optimiser, member)

    def get_last_lr(self) -> list[Tensor]:
        """Return for each parameter group the learning rates of all members, [B]."""
        last = [[float(rate) for rate in scheduler.get_last_lr()] for _, scheduler in self._members]
        return [torch.tensor(rates, dtype=torch.float64) for rates in zip(*last, strict=True)]

    def keep(self, rows: Sequence[int]) -> None:
        """Keep the members *rows*, in that order; call after the optimiser's `keep`."""
        self._members = [self._members[row] for row in rows]
        self._check_width()

    def check_joining(self, count: int, arguments: Mapping[str, Any]) -> None:
        """Raise `ConfigError` unless *count* members can join with these arguments."""
        member_arguments = merge_joining(
            self._initial_values, {key: arguments[key] for key in arguments if key in self.keys}
        )
        _rows(member_arguments, count)

    def extend(self, count: int, **arguments: Any) -> None:
        """Add *count* members, after the optimiser, with arguments of their own or those for all."""
        self._join(count, merge_joining(self._initial_values, arguments))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every scheduler and of its optimiser's parameter groups."""
        members = [
            {
                "scheduler": scheduler.state_dict(),
                "groups": [
                    {key: group[key] for key in group if key != "params"}
                    for group in member_optimiser.param_groups
                ],
            }
            for member_optimiser, scheduler in self._members
        ]
        return {"members": members}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict()` of the same number of members; the optimiser restores the rates."""
        saved = state.get("members") if isinstance(state, Mapping) else None
        if saved is None or any(not {"scheduler", "groups"} <= set(values) for values in saved):
            raise ConfigError(
                "the saved state has no scheduler and groups for each of its members, "
                "expected a state_dict() of fusion.Schedule",
                "the state of an ordinary scheduler of one member: schedule.member(i).load_state_dict(state)",
            )
        if len(saved) != len(self):
            raise ConfigError(f"the saved state has {len(saved)} members, this schedule has {len(self)}")
        count = len(self.optimiser.param_groups)
        if wrong := [len(values["groups"]) for values in saved if len(values["groups"]) != count]:
            raise ConfigError(f"the saved state has {wrong[0]} parameter groups, the optimiser has {count}")
        for (member_optimiser, scheduler), values in zip(self._members, saved, strict=True):
            scheduler.load_state_dict(values["scheduler"])
            for group, saved_group in zip(member_optimiser.param_groups, values["groups"], strict=True):
                group.update(saved_group)

    def _join(self, count: int, arguments: dict[str, Any]) -> None:
        rows = _rows(arguments, count)
        self.optimiser.hyper_tensors()
        for index in range(count):
            member = len(self)
            member_optimiser = _MemberOptimizer(
                [self.optimiser.member_hyper(group, member) for group in self.optimiser.param_groups]
            )
            member_arguments = {**arguments, **{name: _plain(row[index]) for name, row in rows.items()}}
            which = [] if isinstance(self._kind, type) else [member]
            scheduler = self._kind(member_optimiser, *which, **member_arguments)
            if not hasattr(scheduler, "step"):
                raise ConfigError(
                    f"the scheduler of member {member} is {scheduler!r}, expected an object with step()",
                    "return the scheduler from the function",
                )
            self._members.append((member_optimiser, scheduler))
            self._write(member_optimiser, member)
        self._check_width()

    def _check_width(self) -> None:
        if len(self) != self.optimiser.width:
            raise ConfigError(
                f"the schedule has {len(self)} members, but its optimiser has {self.optimiser.width}"
            )

    def _read(self, member_optimiser: _MemberOptimizer, member: int) -> None:
        for group, member_arguments in zip(
            self.optimiser.param_groups, member_optimiser.param_groups, strict=True
        ):
            member_arguments.update(self.optimiser.member_hyper(group, member))

    def _write(self, member_optimiser: _MemberOptimizer, member: int) -> None:
        for group, member_arguments in zip(
            self.optimiser.param_groups, member_optimiser.param_groups, strict=True
        ):
            self.optimiser.write_member(group, member, member_arguments)


class _MemberOptimizer(torch.optim.Optimizer):
    """An optimiser of one member without parameters to train."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__([{"params": [torch.zeros(())], **group} for group in groups], dict(groups[0]))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do nothing."""


def _rows(arguments: Mapping[str, Any], count: int) -> dict[str, list[Any]]:
    """Return the arguments that have one value per member."""
    rows = {name: list(value) for name, value in arguments.items() if is_per_member(value)}
    for name, row in rows.items():
        if len(row) != count:
            raise ConfigError(
                f"{name} has {len(row)} values, expected one or {count} (one per member)",
                "a value that is itself a list must be passed once per member",
            )
    return rows


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.ndim == 0 else value

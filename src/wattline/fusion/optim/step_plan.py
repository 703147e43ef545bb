"""`StepPlan`: what `ArrayOptimizer.step` needs besides gradients, kept from one step to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING, Any

from torch import Tensor

from wattline.fusion.optim.param_groups import Group
from wattline.fusion.optim.update import Update

if TYPE_CHECKING:
    from wattline.fusion.optim.optimizer import ArrayOptimizer

DECIDING = ("weight_decay", "momentum")
"""Hyper-parameters of which an update depends on whether they are zero."""


@dataclass(frozen=True)
class StepPlan:
    """The update of an optimiser's parameters, and all that it was built from."""

    params: list[Tensor]
    states: list[Mapping[str, Tensor]]  # of each parameter
    values: list[Tensor]  # of all states
    tensors: list[Tensor]  # each of them once, in the order of the update
    hyper: list[dict[str, Tensor]]
    update: Update
    settings: list[tuple[Group, str, Any]]  # hyper-parameters and switches in parameter groups
    versions: list[tuple[Tensor, int]]  # of the deciding hyper-parameters

    def is_current(self, params: Sequence[Tensor], state: Mapping[Tensor, Any]) -> bool:
        """Return whether nothing has been replaced since the plan was made."""
        return (
            len(params) == len(self.params)
            and all(map(is_, params, self.params))
            and all(map(is_, map(state.get, params), self.states))
            and all(group.get(name) is value for group, name, value in self.settings)
            and all(vector._version == version for vector, version in self.versions)
            and all(map(is_, [t for own in self.states for t in own.values()], self.values))
        )


def make_plan(optimiser: ArrayOptimizer, params: list[Tensor], idle: list[Tensor]) -> StepPlan:
    """Return the plan of the next step, in which *idle* parameters have no gradient; create missing state."""
    hyper = optimiser.hyper_tensors()
    optimiser.init_state(idle)
    states = [optimiser.state[param] for param in params]
    names = (*optimiser.keys, *optimiser.switches)
    return StepPlan(
        params,
        states,
        [tensor for own in states for tensor in own.values()],
        optimiser.state_tensors(),
        hyper,
        optimiser.build_update(),
        [(group, name, group[name]) for group in optimiser.param_groups for name in names],
        [(h[name], h[name]._version) for h in hyper for name in DECIDING if name in h],
    )

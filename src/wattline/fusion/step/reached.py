"""Arrays, optimisers and scalers that a function reaches through its variables and arguments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wattline.fusion.array import FusedArray
from wattline.fusion.module_state import named_tensors
from wattline.fusion.optim import ArrayOptimizer, find_optimisers
from wattline.fusion.optim.loss_scale import Scaler
from wattline.fusion.optim.schedule import Schedule
from wattline.fusion.step.guards import Guards
from wattline.fusion.step.places import Place
from wattline.fusion.step.traced import TracingError

_KNOWN = (FusedArray, ArrayOptimizer, Scaler, Schedule)
_STATEFUL = ("Session", "Step")  # by name, because importing them here would be circular


@dataclass(frozen=True)
class Reached:
    """The objects that a function trains with, and where they were found.

    *foreign* are tensors that require gradients and belong to no array and no optimiser of arrays.
    """

    places: tuple[tuple[Place, Any], ...]
    arrays: tuple[FusedArray, ...]
    optimisers: tuple[ArrayOptimizer, ...]
    scalers: tuple[Scaler, ...]
    foreign: tuple[tuple[Place, Tensor], ...]
    ordinary_optimisers: tuple[tuple[Place, torch.optim.Optimizer], ...]

    def is_current(self) -> bool:
        """Return whether the same objects are in the same places."""
        return all(place.get() is value for place, value in (*self.places, *self.foreign))

    @property
    def key(self) -> tuple[int, ...]:
        """Identities of all objects."""
        return tuple(
            id(v) for v in (*self.arrays, *self.optimisers, *self.scalers, *dict(self.foreign).values())
        )

    def parameters(self) -> list[Tensor]:
        """Return the trained parameters of the arrays and optimisers, each once."""
        arrays = (p for array in self.arrays for p in array.parameters() if p.requires_grad)
        optimisers = (p for optimiser in self.optimisers for p in optimiser.parameters())
        return list({id(p): p for p in (*arrays, *optimisers)}.values())


def find_reached(guards: Guards) -> Reached:
    """Return the objects that *guards* have met; raise `TracingError` for one that cannot be traced."""
    found = [(place, value) for place, value in guards.objects if isinstance(value, _KNOWN)]
    for place, value in guards.objects:
        if type(value).__module__.startswith("wattline.") and type(value).__name__ in _STATEFUL:
            raise TracingError(f"it uses {place}, a {type(value).__name__}, which keeps values of its own")
    arrays = _unique(v for _, v in found if isinstance(v, FusedArray))
    own = [p for array in arrays for p in array.parameters()]
    optimisers = _unique((*(v for _, v in found if isinstance(v, ArrayOptimizer)), *find_optimisers(own)))
    known = {id(t) for array in arrays for t in named_tensors(array.body).values()}
    known |= {id(p) for optimiser in optimisers for group in optimiser.param_groups for p in group["params"]}
    foreign = []
    for place, tensor in guards.current_tensors().items():
        if tensor.requires_grad and id(tensor) not in known:
            if not tensor.is_leaf:
                raise TracingError(f"{place} was computed with gradients outside of it")
            foreign.append((place, tensor))
    return Reached(
        tuple(found),
        tuple(arrays),
        tuple(optimisers),
        tuple(_unique(v for _, v in found if isinstance(v, Scaler))),
        tuple(foreign),
        tuple(
            (place, value)
            for place, value in guards.objects
            if isinstance(value, torch.optim.Optimizer) and not isinstance(value, ArrayOptimizer)
        ),
    )


def _unique(values: Iterable[Any]) -> list[Any]:
    return list({id(value): value for value in values}.values())

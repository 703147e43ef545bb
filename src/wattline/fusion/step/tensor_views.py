"""Views of the tensors that a step reads and writes, split into the members trained at a time."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from wattline.fusion.array import FusedArray
from wattline.fusion.optim import ArrayOptimizer


class TensorViews:
    """Views of the tensors of an array and its optimiser, valid until one of those is replaced."""

    def __init__(self, array: FusedArray, optimiser: ArrayOptimizer) -> None:
        self.array = array
        self.optimiser = optimiser
        self.size = len(array)
        self.stacked = {name: t.detach() for name, t in array.stacked.items()}
        self.common = {name: t.detach() for name, t in array.common.items()}
        optimiser.init_state()
        self.tensors = optimiser.state_tensors()
        names = {id(p): name for name, p in array.body.named_parameters()}
        self.trained = tuple(names[id(p)] for p in optimiser.parameters())
        self._places = [
            (mapping, name, tensor, tensor.data_ptr(), tensor.requires_grad)
            for module in array.body.modules()
            for mapping in (module._parameters, module._buffers)
            for name, tensor in mapping.items()
            if tensor is not None
        ]
        self._pointers = [t.data_ptr() for t in self.tensors]
        self._member_tensors: dict[tuple[int, int], list[Tensor]] = {}

    def is_current(self) -> bool:
        """Return whether the array and its optimiser still have the same tensors."""
        return (
            len(self.array) == self.size
            and all(
                m.get(n) is t and t.data_ptr() == at and t.requires_grad == trained
                for m, n, t, at, trained in self._places
            )
            and [t.data_ptr() for t in self.optimiser.state_tensors()] == self._pointers
        )

    def member_tensors(self, part: slice) -> list[Tensor]:
        """Return the tensors of these members, in the order of `MemberRows`."""
        key = (part.start, part.stop)
        if key not in self._member_tensors:
            own = [*(t[part] for t in self.stacked.values()), *self.common.values()]
            self._member_tensors[key] = [*own, *(t[part] for t in self.tensors)]
        return self._member_tensors[key]

    def slices(self, width: int | None) -> Iterator[slice]:
        """Yield slices of the members to train at a time."""
        step_width = self.size if width is None else min(width, self.size)
        for first in range(0, self.size, step_width):
            yield slice(first, min(first + step_width, self.size))

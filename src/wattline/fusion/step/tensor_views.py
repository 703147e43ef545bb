"""The tensors that a step of an array reads and writes, cut into the members that are trained at a time."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from wattline.fusion.array import FusedArray
from wattline.fusion.module_state import settings_of
from wattline.fusion.optim import ArrayOptimizer


class Bound:
    """Views into the tensors of an array and its optimiser, good while nobody replaces those."""

    def __init__(self, array: FusedArray, optimiser: ArrayOptimizer) -> None:
        self.array = array
        self.optimiser = optimiser
        self.size = len(array)
        self.stacked = {name: t.detach() for name, t in array.stacked.items()}
        self.common = {name: t.detach() for name, t in array.common.items()}
        optimiser.init_state()
        self.tensors = optimiser.tensors()
        names = {id(p): name for name, p in array.body.named_parameters()}
        self.trained = tuple(names[id(p)] for p in optimiser.parameters())
        modules = zip(array.body.modules(), settings_of(array.body), strict=True)
        self._settings = [(vars(m), name, value) for m, own in modules for name, value in own.items()]
        self.settings = tuple(value for _, _, value in self._settings)
        self._places = [
            (mapping, name, tensor, tensor.data_ptr(), tensor.requires_grad)
            for module in array.body.modules()
            for mapping in (module._parameters, module._buffers)
            for name, tensor in mapping.items()
            if tensor is not None
        ]
        self._pointers = [t.data_ptr() for t in self.tensors]
        self._fixed: dict[tuple[int, int], list[Tensor]] = {}

    def holds(self) -> bool:
        """Whether the array and its optimiser still have the tensors that were bound, and the settings."""
        return (
            len(self.array) == self.size
            and all(
                m.get(n) is t and t.data_ptr() == at and t.requires_grad == trained
                for m, n, t, at, trained in self._places
            )
            and all(of.get(name) == value for of, name, value in self._settings)
            and [t.data_ptr() for t in self.optimiser.tensors()] == self._pointers
        )

    def fixed(self, part: slice) -> list[Tensor]:
        """The tensors of these members, in the order of `Rows`."""
        key = (part.start, part.stop)
        if key not in self._fixed:
            own = [*(t[part] for t in self.stacked.values()), *self.common.values()]
            self._fixed[key] = [*own, *(t[part] for t in self.tensors)]
        return self._fixed[key]

    def parts(self, width: int | None) -> Iterator[slice]:
        """Which members are trained at a time."""
        wide = self.size if width is None else min(width, self.size)
        for first in range(0, self.size, wide):
            yield slice(first, min(first + wide, self.size))

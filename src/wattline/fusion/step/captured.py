"""Values from outside a step that are inputs of its trace: tensors, and numbers that keep changing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from wattline.fusion.step.executed_code import call_unrecorded
from wattline.fusion.step.places import Place
from wattline.fusion.torch_internals import tree_map_only


@dataclass(frozen=True)
class CapturedValues:
    """The places of tensors and numbers that are inputs."""

    tensors: tuple[Place, ...]
    numbers: tuple[Place, ...]
    dtype: torch.dtype  # of floating-point numbers

    def read(self) -> list[Tensor]:
        """Return the present values as tensors; a number is one without dimensions."""
        numbers = (place.get() for place in self.numbers)
        return [
            *(place.get().detach() for place in self.tensors),
            *(torch.tensor(n, dtype=self.dtype if isinstance(n, float) else torch.int64) for n in numbers),
        ]

    def current_tensors(self) -> list[Tensor]:
        """Return the tensors that are inputs."""
        return [place.get() for place in self.tensors]

    def select(self, used: Sequence[bool]) -> CapturedValues:
        """Return those that are *used*, in the order of `read`."""
        count = len(self.tensors)
        return CapturedValues(
            tuple(place for place, yes in zip(self.tensors, used[:count], strict=True) if yes),
            tuple(place for place, yes in zip(self.numbers, used[count:], strict=True) if yes),
            self.dtype,
        )

    def find(self, tensors: Sequence[str], numbers: Sequence[str]) -> CapturedValues:
        """Return those with these names, in this order; raise `KeyError` for one that is not there."""
        by_name = ({str(place): place for place in own} for own in (self.tensors, self.numbers))
        own_tensors, own_numbers = by_name
        return CapturedValues(
            tuple(own_tensors[name] for name in tensors),
            tuple(own_numbers[name] for name in numbers),
            self.dtype,
        )

    @contextmanager
    def replaced_by(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Let code inside the `with` block see *values*, in the order of `read`, and not the present ones."""
        count = len(self.tensors)
        inputs = {id(p.get()): value for p, value in zip(self.tensors, values[:count], strict=True)}
        before = [place.get() for place in self.numbers]
        try:
            for place, value in zip(self.numbers, values[count:], strict=True):
                place.set(value)
            with TensorReplacement(inputs):
                yield
        finally:
            for place, number in zip(self.numbers, before, strict=True):
                place.set(number)


class TensorReplacement(TorchFunctionMode):
    """Torch function mode that replaces tensors in the arguments of operators."""

    def __init__(self, inputs: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.inputs = inputs

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        def replace(tensor: Tensor) -> Tensor:
            return self.inputs.get(id(tensor), tensor)

        if self.inputs:
            args, kwargs = tree_map_only(Tensor, replace, (args, kwargs or {}))
        return call_unrecorded(func, args, kwargs or {})

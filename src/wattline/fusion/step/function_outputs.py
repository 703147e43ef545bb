"""Results of a compiled function: what it returns, and the gradients that it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wattline.fusion.module_state import flatten_tree
from wattline.fusion.step.function_state import FunctionState
from wattline.fusion.step.traced import CompiledGraph, TracingError
from wattline.fusion.torch_internals import FakeTensor, tree_unflatten


@dataclass(frozen=True)
class _Result:
    """Index of a result of the graph."""

    index: int


@dataclass(frozen=True)
class _Input:
    """Index of an input of the graph."""

    index: int


class FunctionOutputs:
    """Sources of the parts of a function's result: results of the graph, inputs, or constants."""

    def __init__(self, state: FunctionState, argument_count: int) -> None:
        self._state: FunctionState | None = state  # until the trace has been made
        self._argument_count = argument_count
        self._leaves: list[Any] = []
        self._spec: Any = None
        self._grads: list[_Result | _Input | None] = []

    def trace(
        self, flat: Sequence[Tensor], leaf_flags: Sequence[bool], call: Callable[[], Any]
    ) -> list[Tensor]:
        """Run *call* with *flat* in place of the state's tensors; return all tensors that it computes.

        *leaf_flags* tell which of the arguments require gradients.
        """
        state = self._state
        assert state is not None
        count = len(state.tensors)
        arguments = flat[count:]
        for argument, flag in zip(arguments, leaf_flags, strict=True):
            argument.requires_grad_(flag)
        with state.replaced_by(flat[:count]) as parameters:
            out = call()
        for argument, flag in zip(arguments, leaf_flags, strict=True):
            if argument.requires_grad != flag:
                raise TracingError("it changes requires_grad of an argument; use x.detach().requires_grad_()")
            if argument.grad is not None:
                raise TracingError("it computes gradients of an argument")
        try:
            leaves, self._spec = flatten_tree(out)
        except TypeError as error:
            raise TracingError(f"of what it returns: {error}") from None
        if any(isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool) for leaf in leaves):
            raise TracingError("it returns a number that is read from a tensor (.item() or the like)")
        inputs = {id(t): at for at, t in enumerate(flat)}
        inputs |= {id(t): at for at, t in enumerate(state.tensors)}
        results: dict[int, Tensor] = {}

        def locate(tensor: Tensor) -> _Result | _Input:
            if (at := inputs.get(id(tensor))) is not None:
                return _Input(at)
            if not isinstance(tensor, FakeTensor):
                raise TracingError("it returns a tensor that it has not computed")
            results.setdefault(id(tensor), tensor)
            return _Result(list(results).index(id(tensor)))

        self._leaves = [locate(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._grads = [None if p.grad is None else locate(p.grad) for p in parameters]
        return [t.detach() for t in results.values()]

    def store(self) -> Any:
        """Return what the compile cache stores."""
        return self._leaves, self._spec, self._grads

    def restore(self, stored: Any) -> None:
        """Continue from what `store` has returned."""
        self._leaves, self._spec, self._grads = stored

    def run(self, version: CompiledGraph, state: FunctionState, arguments: Sequence[Tensor]) -> Any:
        """Call the compiled *version*; set gradients and return what the function would."""
        self._state = None
        inputs = [*state.tensors, *arguments]
        results = version([t.detach() for t in inputs])

        def find(place: Any) -> Any:
            if isinstance(place, _Result):
                return results[place.index]
            return inputs[place.index] if isinstance(place, _Input) else place

        for param, before, grad in zip(state.parameters, state.grads, self._grads, strict=True):
            if (now := find(grad)) is not before:
                param.grad = now
        return tree_unflatten([find(leaf) for leaf in self._leaves], self._spec)

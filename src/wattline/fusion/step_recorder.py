"""Record the steps of a training script: the calls of its array, the losses, the optimiser and the times."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from wattline.fusion.array import FusedArray
from wattline.fusion.module_state import flatten_tree
from wattline.fusion.optim import ArrayOptimizer
from wattline.fusion.step.train_step import Step
from wattline.fusion.torch_internals import tree_map_only

Clock = Callable[[], float]


@dataclass(frozen=True)
class OutputOf:
    """An argument that is the output of an earlier call of the step, or one *leaf* of it."""

    call: int
    leaf: int | None = None


@dataclass(frozen=True)
class RecordedCall:
    """A call of the model (*function* None) or of a function of each member; *flags* as in `array.each`."""

    function: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    flags: tuple[bool, ...]
    keyword_flag: bool = False


@dataclass(frozen=True)
class RecordedStep:
    """One step of an array, from its forward to the update; *roots* are the calls that backward starts from.

    *has_loss* is false if the script computes its loss outside of `array.loss` and `array.each`.
    """

    calls: tuple[RecordedCall, ...]
    roots: tuple[int, ...]
    has_loss: bool
    optimiser: ArrayOptimizer
    seconds: float
    is_compiled: bool = False
    amp: torch.dtype | None = None
    clip_norm: Any = None
    is_scaled: bool = False


class StepRecorder:
    """Recorder of the steps of one array; *on_step* is called after each.

    Steps are those of `train_step` and those of the script's own loops: from the first forward with
    gradients to the step of an optimiser. Time between steps, as for loading a batch, is not counted.
    """

    def __init__(self, array: FusedArray, clock: Clock, on_step: Callable[[RecordedStep], None]) -> None:
        self._array, self._clock, self._on_step = array, clock, on_step
        self._is_inside_step = False
        self._forget()

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record inside the `with` block."""
        hook = register_optimizer_step_post_hook(self._end_own_step)
        with ExitStack() as stack:
            stack.callback(hook.remove)
            for owner, name, make in (
                (FusedArray, "forward", self._wrap_forward),
                (FusedArray, "each", self._wrap_each),
                (Step, "__call__", self._wrap_step),
            ):
                original = getattr(owner, name)
                setattr(owner, name, functools.wraps(original)(make(original)))
                stack.callback(setattr, owner, name, original)
            yield

    def _forget(self) -> None:
        self._calls: list[RecordedCall] = []
        self._outputs: list[tuple[Any, list[Any]]] = []  # of each call: the output and its leaves
        self._start_s = 0.0
        self._amp: torch.dtype | None = None

    def _wrap_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(array: FusedArray, *args: Any, members: Any = False, **kwargs: Any) -> Any:
            is_recorded = self._is_recorded(array)
            if is_recorded and not self._calls:
                device = next(array.parameters()).device.type
                self._amp = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
                self._start_s = self._clock()
            out = original(array, *args, members=members, **kwargs)
            if is_recorded:
                self._add_call(None, args, kwargs, members, out)
            return out

        return forward

    def _wrap_each(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def each(array: FusedArray, fn: Callable[..., Any], *args: Any, members: Any = True) -> Any:
            out = original(array, fn, *args, members=members)
            if self._calls and self._is_recorded(array):
                self._add_call(fn, args, {}, members, out)
            return out

        return each

    def _wrap_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(step: Step, *batch: Any, members: Any = False, **kwargs: Any) -> Any:
            if step.array is not self._array or self._is_inside_step:
                return original(step, *batch, members=members, **kwargs)
            self._is_inside_step = True
            start_s = self._clock()
            try:
                losses = original(step, *batch, members=members, **kwargs)
                seconds = self._clock() - start_s
            finally:
                self._is_inside_step = False
            self._on_step(_describe_step(step, batch, kwargs, members, seconds))
            return losses

        return call

    def _is_recorded(self, array: FusedArray) -> bool:
        return array is self._array and not self._is_inside_step and torch.is_grad_enabled()

    def _add_call(
        self, function: Callable[..., Any] | None, args: Any, kwargs: dict[str, Any], members: Any, out: Any
    ) -> None:
        flags = (members,) * len(args) if isinstance(members, bool) else tuple(members)
        args = tuple(self._find_outputs(arg) for arg in args)
        kwargs = {name: self._find_outputs(value) for name, value in kwargs.items()}
        if function is not None and any(_has_graph(leaf) for leaf in flatten_tree(args)[0]):
            return  # the script has computed with the outputs in between, which cannot be repeated
        args, kwargs = tree_map_only(Tensor, lambda t: t.detach() if _has_graph(t) else t, (args, kwargs))
        self._calls.append(RecordedCall(function, args, kwargs, flags, members is True))
        self._outputs.append((out, flatten_tree(out)[0]))

    def _find_outputs(self, value: Any) -> Any:
        """Return *value* with references in the place of outputs of earlier calls."""
        for index, (out, _) in enumerate(self._outputs):
            if value is out:
                return OutputOf(index)
        known = {
            id(tensor): OutputOf(index, leaf)
            for index, (_, leaves) in enumerate(self._outputs)
            for leaf, tensor in enumerate(leaves)
        }
        flatten_tree(value)  # makes dataclasses known to PyTorch
        return tree_map_only(Tensor, lambda tensor: known.get(id(tensor), tensor), value)

    def _end_own_step(self, optimiser: Any, args: Any, kwargs: Any) -> None:
        """Complete the step of a script's own loop, after an optimiser of the array has made its step."""
        if self._is_inside_step or not isinstance(optimiser, ArrayOptimizer):
            return
        own = {id(param) for param in self._array.parameters()}
        if not self._calls or not any(id(param) in own for param in optimiser.parameters()):
            return
        seconds = self._clock() - self._start_s
        roots = self._find_roots(is_loss=True)
        has_loss = bool(roots)
        roots = roots or self._find_roots(is_loss=False)
        step = RecordedStep(tuple(self._calls), roots, has_loss, optimiser, seconds, amp=self._amp)
        self._forget()
        self._on_step(step)

    def _find_roots(self, is_loss: bool) -> tuple[int, ...]:
        """Return the calls with gradients that no later call uses: losses of [B], or outputs of the model."""
        used = {
            leaf.call
            for call in self._calls
            for leaf in flatten_tree((call.args, call.kwargs))[0]
            if isinstance(leaf, OutputOf)
        }
        return tuple(
            index
            for index, (call, (out, leaves)) in enumerate(zip(self._calls, self._outputs, strict=True))
            if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves)
            and (
                (call.function is not None and index not in used and getattr(out, "ndim", 0) == 1)
                if is_loss
                else call.function is None
            )
        )


def _has_graph(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.grad_fn is not None


def _describe_step(
    step: Step, batch: Sequence[Any], kwargs: dict[str, Any], members: Any, seconds: float
) -> RecordedStep:
    first = batch[0] if batch else ()
    model_args = first if isinstance(first, tuple) else (first,)
    flags = [members] * len(batch) if isinstance(members, bool) else list(members)
    forward = RecordedCall(None, model_args, kwargs, tuple(flags[:1] * len(model_args)), members is True)
    loss = RecordedCall(step.loss, (OutputOf(0), *batch[1:]), {}, (True, *flags[1:]))
    return RecordedStep(
        (forward, loss),
        (1,),
        True,
        step.optimiser,
        seconds,
        step.way.compiled,
        step._amp,
        step._clip,
        step._scaler is not None,
    )

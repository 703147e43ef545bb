"""Tensors that a function reads and writes through arrays, optimisers and scalers, as inputs of its trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from wattline.fusion.array import FusedArray
from wattline.fusion.lowering.forward import map_members, map_members_one_by_one, run_forward
from wattline.fusion.lowering.inputs import Inputs
from wattline.fusion.lowering.layout import ModelLayout
from wattline.fusion.lowering.per_member import per_member_reason
from wattline.fusion.member_numbers import MARK
from wattline.fusion.module_state import named_tensors, replace_tensors
from wattline.fusion.optim import ArrayOptimizer
from wattline.fusion.optim.loss_scale import Scaler
from wattline.fusion.optim.optimizer import _OPTIMISERS as ALL_OPTIMISERS
from wattline.fusion.optim.schedule import Schedule
from wattline.fusion.step.captured import TensorReplacement
from wattline.fusion.step.places import Place
from wattline.fusion.step.reached import Reached
from wattline.fusion.step.traced import TracingError
from wattline.fusion.torch_internals import tree_flatten


def describe_array(array: FusedArray) -> tuple[Any, ...]:
    """Return what a trace of an array depends on besides its tensors and the values that its code reads."""
    separate = [path for path, m in array.body.named_modules() if per_member_reason(m) is not None]
    functions = [
        getattr(fn, "__qualname__", type(fn).__qualname__) for fn in (*array._separate, *array._warned)
    ]
    names = list(named_tensors(array.body))
    numbers = [(path, vars(m)[MARK]) for path, m in array.body.named_modules() if MARK in vars(m)]
    common = sorted(array._common)
    return (len(array), names, numbers, common, separate, functions, array.ways, array.training)


class FunctionState:
    """The tensors of *reached* objects at the start of a call, in a fixed order.

    `parameters` are the trained ones and `grads` their gradients, None where there is none. `tensors` are
    the inputs of a trace: all tensors once, and the gradients that are present.
    """

    def __init__(self, reached: Reached) -> None:
        self.reached = reached
        self.parameters = reached.parameters()
        self.grads = [p.grad for p in self.parameters]
        for optimiser in reached.optimisers:
            optimiser.init_state()
        self.updates = [optimiser.build_update() for optimiser in reached.optimisers]
        self._states = [optimiser.state_tensors() for optimiser in reached.optimisers]
        self._hyper = [optimiser.hyper_tensors() for optimiser in reached.optimisers]
        tensors = [
            *self.parameters,
            *(t for array in reached.arrays for t in named_tensors(array.body).values()),
            *(t for _, t in reached.foreign),
            *(t for own in self._states for t in own),
            *tree_flatten(self._hyper)[0],
            *(t for s in reached.scalers for t in (s.scales, s.streaks, *s.numbers.values())),
            *(g for g in self.grads if g is not None),
        ]
        self.tensors = list({id(t): t for t in tensors}.values())

    def key(self) -> tuple[Any, ...]:
        """Return what a trace depends on besides the values of tensors."""
        forms = tuple((t.shape, t.dtype, t.device, t.requires_grad) for t in self.tensors)
        grads = tuple(g is not None for g in self.grads)
        return (self.reached.key, forms, grads, tuple(self.updates))

    def form(self) -> tuple[Any, ...]:
        """Return the same without identities, for the compile cache."""
        arrays = [describe_array(array) for array in self.reached.arrays]
        places = sorted((str(place), type(value).__name__) for place, value in self.reached.places)
        positions = {id(t): at for at, t in enumerate(self.tensors)}
        states = [[positions[id(t)] for t in own] for own in self._states]
        params = [[positions[id(p)] for p in o.parameters()] for o in self.reached.optimisers]
        grads = tuple(g is not None for g in self.grads)
        return (arrays, places, states, params, grads, tuple(self.updates))

    def check(self) -> None:
        """Raise `TracingError` if the objects are in a state that no trace starts from."""
        if any(array.carries for array in self.reached.arrays):
            raise TracingError("modules keep tensors from one call to the next")
        if any(scaler._overflowed or scaler._stepped for scaler in self.reached.scalers):
            raise TracingError("a scaler has unscaled gradients, but update() was not called")
        if given := [place for place, tensor in self.reached.foreign if tensor.grad is not None]:
            raise TracingError(f"{given[0]} has a gradient, and belongs to no array")

    @contextmanager
    def replaced_by(self, values: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        """Let arrays, optimisers and scalers use *values* in place of `tensors`; yield the parameters."""
        own = {id(t): value for t, value in zip(self.tensors, values, strict=True)}
        leaves = [own[id(p)] for p in self.parameters]
        trained: list[Place] = []
        for place, tensor in self.reached.foreign:
            own[id(tensor)].requires_grad_().register_hook(lambda _, place=place: trained.append(place))
        for leaf, grad in zip(leaves, self.grads, strict=True):
            leaf.requires_grad_()
            setattr(leaf, "_is_param", True)  # noqa: B010  # makes it an nn.Parameter for isinstance
            leaf.grad = None if grad is None else own[id(grad)]
        with ExitStack() as stack:
            stack.enter_context(_traced_arrays(self.reached.arrays))
            for array in self.reached.arrays:
                stack.enter_context(_replaced_body(array, own))
            for scaler in self.reached.scalers:
                stack.enter_context(_replaced_scaler(scaler, own))
            stack.enter_context(self._traced_optimisers(own))
            stack.enter_context(TensorReplacement(own))
            yield leaves
        if trained:
            raise TracingError(f"it computes gradients of {trained[0]}, which belongs to no array")

    @contextmanager
    def _traced_optimisers(self, own: dict[int, Tensor]) -> Iterator[None]:
        """Let optimisers update *own* tensors; any other optimiser raises `TracingError`."""
        replaced: list[tuple[dict[str, Any], dict[str, Any]]] = []
        reached = {id(optimiser): at for at, optimiser in enumerate(self.reached.optimisers)}
        try:
            for optimiser in list(ALL_OPTIMISERS):
                patch = self._traced_methods(reached.get(id(optimiser)), optimiser, own)
                replaced.append((vars(optimiser), _patch(vars(optimiser), patch)))
            for place, other in self.reached.ordinary_optimisers:
                refuse = _refuse(f"{place} is an ordinary optimiser, {type(other).__name__} of torch.optim")
                replaced.append((vars(other), _patch(vars(other), {"step": refuse})))
            yield
        finally:
            for attributes, before in reversed(replaced):
                _restore(attributes, before)

    def _traced_methods(
        self, at: int | None, optimiser: ArrayOptimizer, own: dict[int, Tensor]
    ) -> dict[str, Any]:
        if at is None:
            refuse = _refuse(f"no variable of it leads to the optimiser {type(optimiser).__name__}")
            return {"step": refuse, "zero_grad": refuse}
        params = [own[id(p)] for p in optimiser.parameters()]
        state = [own[id(t)] for t in self._states[at]]
        hyper = [{name: own[id(t)] for name, t in group.items()} for group in self._hyper[at]]
        update = self.updates[at]

        def step(closure: Any = None, active: Tensor | None = None) -> None:
            if closure is not None:
                raise TracingError("it passes a closure to an optimiser's step()")
            grads = [p.grad for p in params]
            idle = [p for p, grad in zip(optimiser.parameters(), grads, strict=True) if grad is None]
            if _shares_counters(optimiser, idle):
                raise TracingError("some parameters have no gradient in this call, and had one before")
            update(params, grads, state, hyper, active)

        def zero_grad(set_to_none: bool = True) -> None:
            for param in params:
                if set_to_none:
                    param.grad = None
                elif param.grad is not None:
                    param.grad.zero_()

        return {"step": step, "zero_grad": zero_grad}


def _shares_counters(optimiser: ArrayOptimizer, idle: Sequence[Tensor]) -> bool:
    """Return whether *idle* parameters share step counters with others, from which a step separates them."""
    idle_ids = {id(p) for p in idle}
    counters: tuple[set[int], set[int]] = (set(), set())
    for param in optimiser.parameters():
        own = optimiser.state.get(param, {})
        if "step" in own:
            counters[id(param) in idle_ids].add(id(own["step"]))
    return bool(counters[0] & counters[1])


@contextmanager
def _replaced_body(array: FusedArray, own: dict[int, Tensor]) -> Iterator[None]:
    tensors = {name: own[id(t)] for name, t in named_tensors(array.body).items()}
    before = dict(tensors)
    with replace_tensors(array.body, tensors):
        yield
    if changed := [name for name, t in tensors.items() if t is not before[name]]:
        raise TracingError(f"it replaces {changed[0]} of an array")


@contextmanager
def _replaced_scaler(scaler: Scaler, own: dict[int, Tensor]) -> Iterator[None]:
    patch = {
        "scales": own[id(scaler.scales)],
        "streaks": own[id(scaler.streaks)],
        "numbers": {name: own[id(t)] for name, t in scaler.numbers.items()},
        "_overflowed": {},
        "_stepped": set(),
    }
    before = _patch(vars(scaler), patch)
    try:
        yield
        if scaler._overflowed or scaler._stepped:
            raise TracingError("it unscales gradients without scaler.update()")
    finally:
        _restore(vars(scaler), before)


@contextmanager
def _traced_arrays(arrays: Sequence[FusedArray]) -> Iterator[None]:
    """Let arrays run without their fallbacks, which would take an error of tracing for one of fusing."""

    def check(array: FusedArray) -> None:
        if not any(array is own for own in arrays):
            raise TracingError(f"no variable of it leads to an array of {len(array)} members")

    def forward(array: FusedArray, *args: Any, members: Any = False, **kwargs: Any) -> Any:
        check(array)
        inputs = Inputs.from_call(args, kwargs, members, len(array))
        carried: dict[Any, Tensor] = {}
        out = run_forward(ModelLayout(array.body), array.stacked, {}, carried, inputs, array.ways)
        if carried:
            raise TracingError("modules keep tensors from one call to the next")
        return out

    def each(array: FusedArray, fn: Any, *args: Any, members: Any = True) -> Any:
        check(array)
        if fn in array._separate or fn in array._warned:
            return map_members_one_by_one(fn, args, members, len(array))
        return map_members(fn, args, members, len(array), array.ways)

    # Every schedule checks its width first, also if it is called by a bound method that was read before.
    refuse = _refuse("it calls Schedule.step(); call that after the function")
    patches = (
        (FusedArray, "forward", forward),
        (FusedArray, "each", each),
        (Schedule, "_check_width", refuse),
    )
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    try:
        for owner, name, function in patches:
            setattr(owner, name, function)
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def _refuse(reason: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> None:
        raise TracingError(reason)

    return call


def _patch(attributes: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Set *attributes*; return the former values, with a marker for those that did not exist."""
    before = {name: attributes.get(name, _ABSENT) for name in patch}
    attributes.update(patch)
    return before


def _restore(attributes: dict[str, Any], before: dict[str, Any]) -> None:
    for name, value in before.items():
        if value is _ABSENT:
            attributes.pop(name, None)
        else:
            attributes[name] = value


_ABSENT = object()

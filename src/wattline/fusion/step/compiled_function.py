"""`compile`: any training step that is written with arrays, compiled as a whole where possible."""

from __future__ import annotations

import functools
import time
import types
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from wattline.errors import ConfigError
from wattline.fusion.lowering.fallback import FusionWarning
from wattline.fusion.lowering.host_random import host_rng_state, is_same_rng_state
from wattline.fusion.module_state import flatten_tree
from wattline.fusion.step.executed_code import is_recording, user_stacklevel
from wattline.fusion.step.function_outputs import FunctionOutputs
from wattline.fusion.step.function_state import FunctionState
from wattline.fusion.step.function_verification import run_and_compare_function
from wattline.fusion.step.guards import Guards
from wattline.fusion.step.options import read_torch_settings
from wattline.fusion.step.places import Root
from wattline.fusion.step.reached import Reached, find_reached
from wattline.fusion.step.traced import CompiledGraph, TracingError
from wattline.fusion.step.tracer import MAX_VERSIONS, CacheCounters, Tracer
from wattline.fusion.step.verification import Verification
from wattline.fusion.step.width_choice import COMPILE_S
from wattline.fusion.torch_internals import get_proxy_mode, tree_flatten, tree_unflatten


def compile(
    fn: Callable[..., Any] | None = None, *, backend: str = "inductor"
) -> CompiledFunction | Callable[[Callable[..., Any]], CompiledFunction]:
    """Return *fn*, a training step written with arrays, as a `CompiledFunction`; also a decorator.

    All that *fn* does with arrays, their optimisers and scalers is traced and compiled as one: forward,
    `backward()`, clipping, `optimiser.step()`. Where that is impossible *fn* runs as it is, and a warning
    says why. *backend* "graph" runs the traced operators one by one, to look for errors.
    """
    if backend not in ("inductor", "graph"):
        raise ConfigError(f'backend is {backend!r}, expected "inductor" or "graph"')
    if fn is None:
        return functools.partial(CompiledFunction, backend=backend)
    if not callable(fn) or isinstance(fn, torch.nn.Module | torch.optim.Optimizer | type):
        raise ConfigError(
            f"got a {type(fn).__name__}, expected a function that makes a training step",
            "write def step(x, y): ... with forward, backward() and optimiser.step(), and compile that",
        )
    return CompiledFunction(fn, backend=backend)


class CompiledFunction(CacheCounters):
    """A training step made by `compile`; it is called like the function.

    The first call runs as written, to find out which code runs; the second compiles, or the third if that
    code may change something besides tensors. Tensors that it returns are detached. `compile_s` is the time
    spent compiling so far, `is_compiled` false once calls run as written for good.
    """

    def __init__(self, fn: Callable[..., Any], backend: str) -> None:
        functools.update_wrapper(self, fn)
        self.compile_s = 0.0
        self.is_compiled = True
        self._fn = fn
        self._is_graph = backend == "graph"
        self._others: list[Any] = []  # arguments of the present call that are not tensors
        self._tracer = Tracer(
            (
                Root("the function", lambda: self._fn, None),
                Root("the arguments", lambda: self._others, None),
                Root("PyTorch's settings", read_torch_settings, None),
            ),
            torch.float32,
            backend,
        )
        self._reached: Reached | None = None
        self._pending: dict[Hashable, list[Guards]] = {}  # values of uncompiled calls, by form of arguments
        self._outputs: WeakKeyDictionary[CompiledGraph, FunctionOutputs] = WeakKeyDictionary()
        self._has_checked_effects = False
        self._verification = Verification()
        self._spent_s: dict[Hashable, float] = {}
        self._compiled_forms: set[Hashable] = set()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return the compiled method of *instance*."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make one step; arguments and result are those of the function."""
        if not self.is_compiled or is_recording() or get_proxy_mode() is not None:  # inside of another one
            return self._fn(*args, **kwargs)
        leaves, spec = _flatten_arguments((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self._others[:] = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        is_tensor = tuple(isinstance(leaf, Tensor) for leaf in leaves)
        forms = tuple((t.shape, t.dtype, t.device, t.requires_grad) for t in tensors)
        form = (spec, is_tensor, forms, torch.is_grad_enabled())
        try:
            prepared = self._prepare(form, tensors, (spec, is_tensor))
        except TracingError as why:
            self._stop(f"the function cannot be compiled: {why}")
            return self._fn(*args, **kwargs)
        if prepared is None:
            return self._run_recorded(form, args, kwargs)
        version, state = prepared
        if self._verification.is_due(version):
            return self._compare(version, state, tensors, args, kwargs)
        return self._outputs[version].run(version, state, tensors)

    def _prepare(
        self, form: Hashable, tensors: Sequence[Tensor], structure: Any
    ) -> tuple[CompiledGraph, FunctionState] | None:
        """Return the compiled version for the present values; None if this call is to run as written.

        Raise `TracingError` if it cannot be compiled.
        """
        if not self._tracer.executed.codes:
            return None
        state = self._read_state()
        state.check()
        key = (form, state.key())
        version = self._tracer.find_version(key)
        if version is None:
            if not self._is_due(form):
                return None
            version = self._compile(key, state, tensors, structure)
            self._compiled_forms.add(form)
        return version, state

    def _read_state(self) -> FunctionState:
        if self._reached is None or not self._reached.is_current():
            self._reached = find_reached(self._tracer.build_guards())
            if not self._reached.arrays and not self._reached.optimisers:
                raise TracingError("it uses no array")
        return FunctionState(self._reached)

    def _is_due(self, form: Hashable) -> bool:
        """Return whether to compile for the present values: after a call that ran as written with them."""
        if not self._has_checked_effects and self._tracer.executed.may_have_effects:
            return False
        pending = self._pending.setdefault(form, [])
        for at, guards in enumerate(pending):
            if guards.find_changed() is None:
                if not self._is_worth(form):
                    return False
                del pending[at]
                return True
        if pending and self._tracer.make_input(pending[-1]):
            pending.clear()
            return True
        if len(pending) >= MAX_VERSIONS:
            raise TracingError(f"{pending[-1].find_changed()} has another value in nearly every call")
        return False

    def _is_worth(self, form: Hashable) -> bool:
        """Return whether calls with arguments of this form have taken as long as compiling."""
        compiled = self._tracer.count
        if self._is_graph or not compiled or form in self._compiled_forms:
            return True
        return self._spent_s.get(form, 0.0) >= (self.compile_s / compiled or COMPILE_S)

    def _compile(
        self, key: Hashable, state: FunctionState, tensors: Sequence[Tensor], structure: Any
    ) -> CompiledGraph:
        outputs = FunctionOutputs(state, len(tensors))
        spec, is_tensor = structure

        def run(flat: Sequence[Tensor]) -> list[Tensor]:
            remaining = iter(flat[len(state.tensors) :])
            leaves = [next(remaining) if yes else o for o, yes in zip(self._others, is_tensor, strict=True)]
            args, kwargs = tree_unflatten(leaves, spec)
            return outputs.trace(flat, [t.requires_grad for t in tensors], lambda: self._fn(*args, **kwargs))

        start_s, rng_state = time.perf_counter(), host_rng_state()
        known = [*state.tensors, *tensors]
        form = (structure, [t.requires_grad for t in tensors], torch.is_grad_enabled(), state.form())
        kept_count = len(state.tensors) - sum(grad is not None for grad in state.grads)
        version = self._tracer.add_version(key, run, known, known, form, outputs, kept_count)
        if not is_same_rng_state(rng_state, host_rng_state()):
            raise TracingError("it draws random numbers from Python or NumPy")
        self._outputs[version] = outputs
        self.compile_s += time.perf_counter() - start_s
        return version

    def _run_recorded(self, form: Hashable, args: Any, kwargs: Any) -> Any:
        """Run the function as written, to find out which code runs and whether it has effects."""
        tracer, guards, tensors = self._tracer, None, {}
        rng_state = host_rng_state()
        try:
            if tracer.executed.codes:
                guards = tracer.build_guards()
                tensors = guards.current_tensors()
        except TracingError as why:
            self._stop(f"the function cannot be compiled: {why}")
            return self._fn(*args, **kwargs)
        start_s, count = time.perf_counter(), len(tracer.executed.codes)
        with tracer.record():
            out = self._fn(*args, **kwargs)
        self._spent_s[form] = self._spent_s.get(form, 0.0) + time.perf_counter() - start_s
        try:
            if not is_same_rng_state(rng_state, host_rng_state()):
                raise TracingError("it draws random numbers from Python or NumPy")
            if guards is not None and (effect := guards.find_effect(tensors)) is not None:
                raise TracingError(f"it {effect}")
            self._has_checked_effects |= guards is not None
            if guards is None or len(tracer.executed.codes) > count:
                guards, self._reached = tracer.build_guards(), None
            self._pending.setdefault(form, []).append(guards)
        except TracingError as why:
            self._stop(f"the function cannot be compiled: {why}")
        return out

    def _compare(
        self, version: CompiledGraph, state: FunctionState, tensors: Sequence[Tensor], args: Any, kwargs: Any
    ) -> Any:
        result, agree = run_and_compare_function(
            lambda: self._outputs[version].run(version, state, tensors),
            lambda: self._fn(*args, **kwargs),
            state,
            [*tensors, *version.captured.current_tensors()],
            self._tracer.lowering(),
        )
        if not agree:
            version.forget()
            self._stop(
                "the compiled function differs from the uncompiled one beyond rounding; "
                f"up to {self._verification.unverified} calls before this one may differ too, "
                "and further calls run as written"
            )
        return result

    def _stop(self, message: str) -> None:
        """Run all further calls as written, and announce it."""
        warnings.warn(message, FusionWarning, stacklevel=user_stacklevel())
        self.is_compiled = False


def _flatten_arguments(arguments: Any) -> tuple[list[Any], Any]:
    """Return the leaves and the structure of *arguments*; an object with tensors inside may be a leaf."""
    try:
        return flatten_tree(arguments)
    except TypeError:
        return tree_flatten(arguments)

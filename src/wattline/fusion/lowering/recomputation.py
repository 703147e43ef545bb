"""`torch.utils.checkpoint` inside arrays: parts of a forward that backward computes a second time.

Backward runs outside of vmap, without the lowering rules, and with the array's own tensors in the modules.
A part that is recomputed therefore gets back the modules' attributes and tensors, the modes and the vmap of
the forward. Random numbers and autocast are restored by PyTorch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor, nn

from wattline.errors import NotFusible
from wattline.fusion.lowering.fallback import FusionWarning
from wattline.fusion.lowering.number_mode import MemberNumberMode
from wattline.fusion.lowering.rules import LoweringMode
from wattline.fusion.module_state import replaced_modules
from wattline.fusion.torch_internals import (
    add_batch_dim,
    allowed_saved_tensor_hooks,
    checkpoint_module,
    current_function_modes,
    entered_vmap,
    find_vmap,
    get_batch_dim,
    get_level,
    get_proxy_mode,
    get_unwrapped,
    is_batchedtensor,
    noop_context_fn,
    pop_vmap,
    push_vmap,
    torch_checkpoint_generator,
    tree_flatten,
    tree_unflatten,
)

_GENERATOR, _REENTRANT = "_checkpoint_without_reentrant_generator", "CheckpointFunction"


@contextmanager
def supported_recomputation() -> Iterator[None]:
    """Let `torch.utils.checkpoint` recompute parts of arrays inside the `with` block."""
    before = {name: getattr(checkpoint_module, name) for name in (_GENERATOR, _REENTRANT)}
    setattr(checkpoint_module, _GENERATOR, _run_checkpointed)
    setattr(checkpoint_module, _REENTRANT, _Reentrant)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(checkpoint_module, name, value)


@contextmanager
def refused_recomputation() -> Iterator[None]:
    """Raise `NotFusible` for a part that is recomputed and traced inside the `with` block.

    A step that need not be compiled is better not traced then, since traces keep all tensors.
    """
    _refusing.append(True)
    try:
        yield
    finally:
        _refusing.pop()


_refusing: list[bool] = []


class _Reentrant:
    """Stand-in for PyTorch's function of reentrant checkpoints."""

    @staticmethod
    def apply(*_: Any) -> NoReturn:
        """Raise `NotFusible`."""
        raise NotFusible(
            "the model recomputes parts with torch.utils.checkpoint and use_reentrant=True, "
            "which arrays do not support",
            "pass use_reentrant=False; in Hugging Face "
            'gradient_checkpointing_enable({"use_reentrant": False})',
        )


def _run_checkpointed(
    fn: Callable[..., Any],
    preserve_rng_state: bool,
    context_fn: Callable[..., Any],
    determinism_check: str,
    debug: bool,
    early_stop: bool,
    *args: Any,
    **kwargs: Any,
) -> Generator[None, None, None]:
    """Prepare for a checkpointed call of *fn*, let it run at the `yield`, and end the preparation.

    It has the arguments of PyTorch's generator, which gets the tensors of all members.
    """
    if get_proxy_mode() is not None:
        if _refusing:
            raise NotFusible("a part of the model is recomputed")
        warnings.warn(
            "compiled steps keep the tensors that torch.utils.checkpoint would recompute; "
            "train_step(…, compile=False) recomputes them",
            FusionWarning,
            stacklevel=3,
        )
        yield
        return
    if context_fn is not noop_context_fn:
        raise NotFusible("torch.utils.checkpoint has a context_fn, which arrays do not support")
    leaves, spec = tree_flatten((args, kwargs))
    at_tensors = [at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    wrappers = {at: _Wrapper.of(leaves[at]) for at in at_tensors}
    surroundings = _Surroundings.capture()

    def recompute(*tensors: Tensor) -> None:
        with surroundings.restored():
            again = list(leaves)
            for at, tensor in zip(at_tensors, tensors, strict=True):
                again[at] = wrappers[at].wrap(tensor)
            args_, kwargs_ = tree_unflatten(again, spec)
            fn(*args_, **kwargs_)

    options = (preserve_rng_state, context_fn, determinism_check, debug, early_stop)
    physical = [wrappers[at].unwrap(leaves[at]) for at in at_tensors]
    inner = torch_checkpoint_generator(recompute, *options, *physical)
    with allowed_saved_tensor_hooks():
        with _left_vmap():
            next(inner)
        leaves = [None if at in wrappers else leaf for at, leaf in enumerate(leaves)]  # PyTorch keeps them
        try:
            yield
        except BaseException as error:
            inner.throw(error)
            raise
        with _left_vmap():
            next(inner, None)


@contextmanager
def _left_vmap() -> Iterator[None]:
    """Leave vmap for the `with` block, in which functions of autograd without a rule for it run."""
    if find_vmap() is None:
        yield
        return
    vmap = pop_vmap()
    try:
        yield
    finally:
        push_vmap(vmap)


@dataclass(frozen=True)
class _Wrapper:
    """Conversion between the tensor of one member and that of all; *dim* None: members share it."""

    dim: int | None
    level: int

    @classmethod
    def of(cls, tensor: Tensor) -> _Wrapper:
        if not is_batchedtensor(tensor):
            return cls(None, 0)
        return cls(get_batch_dim(tensor), get_level(tensor))

    def unwrap(self, tensor: Tensor) -> Tensor:
        return tensor if self.dim is None else get_unwrapped(tensor)

    def wrap(self, tensor: Tensor) -> Tensor:
        return tensor if self.dim is None else add_batch_dim(tensor, self.dim, self.level)


@dataclass(frozen=True)
class _Surroundings:
    """The state in which a part of a forward runs: vmap, the modes, attributes and tensors of modules."""

    size: int | None  # of vmap; None: not in vmap
    level: int
    modes: list[Any]
    modules: list[tuple[nn.Module, dict[str, Any]]]

    @classmethod
    def capture(cls) -> _Surroundings:
        vmap = find_vmap()
        modes = [m for m in current_function_modes() if isinstance(m, LoweringMode | MemberNumberMode)]
        parts = {id(m): m for module in replaced_modules for m in module.modules()}
        return cls(
            None if vmap is None else vmap.size,
            0 if vmap is None else vmap.level,
            modes,
            [(m, _copy_attributes(m)) for m in parts.values()],
        )

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Run the `with` block as if it were in the forward."""
        before = [(module, _copy_attributes(module)) for module, _ in self.modules]
        with ExitStack() as stack:
            stack.enter_context(supported_recomputation())
            stack.callback(_set_attributes, before)
            _set_attributes(self.modules)
            for mode in self.modes:
                stack.enter_context(mode)
            if self.size is not None and stack.enter_context(entered_vmap(self.size)) != self.level:
                raise NotFusible(
                    "backward of a part that is recomputed runs inside a transform of torch.func"
                )
            yield


def _copy_attributes(module: nn.Module) -> dict[str, Any]:
    own = dict(vars(module))
    own["_parameters"], own["_buffers"] = dict(module._parameters), dict(module._buffers)
    return own


def _set_attributes(modules: list[tuple[nn.Module, dict[str, Any]]]) -> None:
    """Set all attributes of modules; the dicts of parameters and buffers stay the same objects."""
    for module, attributes in modules:
        now = vars(module)
        for name in [n for n in now if n not in attributes]:
            del now[name]
        for name, value in attributes.items():
            if name in ("_parameters", "_buffers"):
                now[name].clear()
                now[name].update(value)
            else:
                now[name] = value

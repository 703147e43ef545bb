"""A part of a model that cannot be fused: run once for each member."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.utils._pytree import tree_unflatten

from wattline.errors import NotFusible
from wattline.fusion.architecture_check import is_same
from wattline.fusion.lowering.rules import Many, run_for_all
from wattline.fusion.module_state import (
    Attributes,
    attributes_of,
    call_with,
    flatten,
    put_attributes,
    state_of,
)


class OfMember(Exception):  # told apart from errors of fusing
    """A member's own forward raised."""

    def __init__(self, member: int, error: Exception) -> None:
        super().__init__(member, error)
        self.member = member
        self.error = error


class Alone:
    """Takes the place of a module's `forward` inside of an array: one call for each member.

    *whole*: it is the model itself: nobody sees what it writes into its inputs, and its hooks run inside.
    """

    def __init__(self, module: nn.Module, why: str, *, whole: bool = False) -> None:
        self.module = module
        self.why = why
        self.whole = whole

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What all members answer."""
        state = state_of(self.module)
        begin = attributes_of(self.module)
        kept = [(m, n, t) for m, own in begin for n, t in own.items() if _is_many(t)]
        leaves, spec = flatten((dict(state), [t for *_, t in kept], args, kwargs))
        if not any(map(_is_many, leaves)):
            with _forward_of(self.module, self.whole):
                return self.module(*args, **kwargs)
        shape: list[Any] = []
        given = len(state) + len(kept)  # leaves in front of the arguments

        def call(size: int, shown: list[Any]) -> tuple[Many, ...]:
            outs, ends = [], []
            for member in range(size):
                own = [_own(leaf, member, clone=at >= given) for at, leaf in enumerate(shown)]
                tensors, mine, args_, kwargs_ = tree_unflatten(own, spec)
                put_attributes(begin)
                for (module, name, _), value in zip(kept, mine, strict=True):
                    vars(module)[name] = value
                before = dict(tensors)
                try:
                    with _forward_of(self.module, self.whole):
                        out = call_with(self.module, tensors, args_, kwargs_)
                except Exception as error:
                    raise OfMember(member, error) from error
                for at, name in enumerate(before):  # a buffer that was replaced rather than written to
                    if tensors[name] is not before[name]:
                        _own(shown[at], member, clone=False).copy_(tensors[name])
                if not self.whole and any(
                    _wrote(leaf, mine) for leaf, mine in zip(shown[given:], own[given:], strict=True)
                ):
                    raise RuntimeError("it writes into a tensor that members share")
                outs.append(flatten(out))
                ends.append(attributes_of(self.module))
            flat, out_spec = outs[0]
            try:
                _check_alike(outs)
                left = _left(begin, ends, kept)
            except NotFusible as error:
                if self.whole:
                    raise
                raise RuntimeError(str(error)) from error  # what is around it may put it together
            shape[:] = [flat, out_spec, [at for at, _ in left]]
            columns = [*zip(*(flat for flat, _ in outs), strict=True), *(column for _, column in left)]
            return tuple(Many(torch.stack(col), 0) for col in columns if isinstance(col[0], Tensor))

        found = iter(run_for_all(call, leaves))
        flat, out_spec, left = shape
        out = [next(found) if isinstance(leaf, Tensor) else leaf for leaf in flat]
        for (module, name), value in zip(left, found, strict=True):
            vars(module)[name] = value
        return tree_unflatten(out, out_spec)


def _is_many(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(is_batchedtensor(value))


def why_alone(module: nn.Module) -> str | None:
    """Why a module runs for each member by itself; None: it does not."""
    forward = module.__dict__.get("forward")
    return forward.why if isinstance(forward, Alone) else None


def _own(leaf: Any, member: int, *, clone: bool) -> Any:
    """What a member has of a leaf; of what members share a copy, so that nobody writes to another's."""
    if isinstance(leaf, Many):
        return leaf.values.select(leaf.at, member)
    return leaf.clone() if clone and isinstance(leaf, Tensor) else leaf


def _wrote(shown: Any, own: Any) -> bool:
    """Whether a member has written to its copy of what members share."""
    return isinstance(shown, Tensor) and not own.is_inference() and own._version > 0


def _check_alike(outs: Sequence[tuple[list[Any], Any]]) -> None:
    """Only tensors of one shape, and what is the same for all, can be put together again."""
    flat, spec = outs[0]
    for member, (other, other_spec) in enumerate(outs[1:], 1):
        if other_spec != spec:
            raise NotFusible(f"member {member} answers in another structure than member 0")
        for a, b in zip(flat, other, strict=True):
            if isinstance(a, Tensor) and isinstance(b, Tensor):
                if a.shape != b.shape:
                    shapes = f"{tuple(b.shape)}, expected {tuple(a.shape)} as of member 0"
                    raise NotFusible(f"member {member} answers with the shape {shapes}")
            elif not is_same(a, b):
                raise NotFusible(f"member {member} answers {b!r}, expected {a!r} as of member 0")


def _left(begin: Attributes, ends: list[Attributes], kept: list[tuple[nn.Module, str, Tensor]]) -> list[Any]:
    """Attributes that hold tensors of each member now: where, and what of each."""
    found: list[Any] = []
    were = {(id(m), n) for m, n, _ in kept}
    for at, (module, old) in enumerate(begin):
        for name, value in ends[0][at][1].items():
            values = [end[at][1].get(name) for end in ends]
            if value is old.get(name) and (id(module), name) not in were:
                continue
            if all(isinstance(v, Tensor) and v.shape == value.shape for v in values):
                found.append(((module, name), values))
            elif not all(is_same(value, v) for v in values):
                place = f"{type(module).__name__}.{name}"
                raise NotFusible(
                    f"{place} is not the same for all members after the forward", "keep it in a buffer"
                )
    return found


@contextmanager
def bare(body: nn.Module) -> Iterator[None]:
    """All modules with their own forwards again: for one member that is not fused, and for copies."""
    alone = {
        m: m.__dict__.pop("forward") for m in body.modules() if isinstance(m.__dict__.get("forward"), Alone)
    }
    try:
        yield
    finally:
        for module, forward in alone.items():
            module.__dict__["forward"] = forward


@contextmanager
def _forward_of(module: nn.Module, whole: bool) -> Iterator[None]:
    """The forwards of the module and of all inside; no hooks of its own: those have run around the whole."""
    with bare(module):
        hooks = module._forward_hooks, module._forward_pre_hooks
        if not whole:
            module._forward_hooks, module._forward_pre_hooks = type(hooks[0])(), type(hooks[1])()
        try:
            yield
        finally:
            module._forward_hooks, module._forward_pre_hooks = hooks

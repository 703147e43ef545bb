"""One forward for all members: a member's own, under vmap, with the rules of this folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch._C._functorch import is_batchedtensor
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten

from wattline.errors import NotFusible
from wattline.fusion import ops  # noqa: F401  # registers the rules
from wattline.fusion.lowering.inputs import Inputs, opened
from wattline.fusion.lowering.per_member import why_alone
from wattline.fusion.lowering.rules import Lowering, Ways
from wattline.fusion.module_state import FRAME, call_with, flatten, swapped

_warn_of_loops: Callable[[bool], None] = getattr(_functorch, "_set_vmap_fallback_warning_enabled")  # noqa: B009
Tensors = dict[str, Tensor]
Where = tuple[str, str]  # the path of a module, the name of an attribute


def run(
    body: nn.Module,
    stacked: Tensors,
    common: Tensors,
    carried: dict[Where, Tensor],
    inputs: Inputs,
    ways: Ways,
    seen: Callable[[Callable[..., Any], bool], None] | None = None,
    slow: set[str] | None = None,
) -> Any:
    """What all members put out, members in front; *stacked* buffers are updated.

    *carried* are tensors that modules keep in plain attributes from one call to the next; it is updated too.
    *slow* gets the names of operators that vmap runs for each member by itself.
    """
    shape: list[Any] = []
    where: list[Where] = []

    def one(tensors: Tensors, state: dict[str, Tensor], given: tuple[Tensor, ...]) -> tuple[Any, ...]:
        for at, value in zip(carried, state.values(), strict=True):
            body.get_submodule(at[0]).__dict__[at[1]] = value
        args, kwargs = inputs.build(given)
        together = {**tensors, **common}
        out = _called(body, together, args, kwargs)
        new = {name: t for name, t in together.items() if name in tensors and t is not tensors[name]}
        leaves, spec = opened(lambda: flatten(out))
        shape[:] = [new.keys(), spec, [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]]
        kept = _left(body)
        where[:] = kept.keys()
        return (
            tuple(leaf for leaf in leaves if isinstance(leaf, Tensor)),
            tuple(new.values()),
            tuple(kept.values()),
        )

    dims = (
        dict.fromkeys(stacked, 0),
        {str(at): 0 for at in carried},
        tuple(0 if own else None for own in inputs.own),
    )
    state = {str(at): t for at, t in carried.items()}
    before = [(vars(m), dict(vars(m))) for m in body.modules()]
    try:
        with Lowering(ways, seen), _listening(slow), disable_saved_tensors_hooks("not in an array"):
            outs, new, kept = torch.vmap(one, in_dims=dims, randomness="different")(
                stacked, state, inputs.tensors
            )
    finally:
        _put_back(before)
    names, spec, others = shape
    for name, tensor in zip(names, new, strict=True):
        with torch.no_grad():
            stacked[name].copy_(tensor)
    carried.clear()
    carried.update(zip(where, kept, strict=True))
    found = iter(outs)
    return tree_unflatten([next(found) if other is None else other[0] for other in others], spec)


@contextmanager
def _listening(slow: set[str] | None) -> Iterator[None]:
    """vmap warns of operators that it runs for each member by itself: their names go to *slow*, if given."""
    if slow is None:
        _warn_of_loops(False)
        try:
            yield
        finally:
            _warn_of_loops(True)
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    for one in said:
        _, sign, name = str(one.message).partition("batching rule for ")
        if sign:
            slow.add(name.split(". ")[0])
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno, source=one.source)


def each(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    members: bool | Sequence[bool],
    size: int,
    ways: Ways,
    slow: set[str] | None = None,
) -> Any:
    """`fn(*args)` for each member, members in front; *slow* is that of `run`."""
    inputs = Inputs.of(args, {}, members, size)

    def one(*given: Tensor) -> Any:
        return fn(*inputs.build(given)[0])

    dims = tuple(0 if own else None for own in inputs.own)
    with Lowering(ways), _listening(slow):
        return torch.vmap(one, in_dims=dims, randomness="different")(*inputs.tensors)


def each_alone(
    fn: Callable[..., Any], args: tuple[Any, ...], members: bool | Sequence[bool], size: int
) -> Any:
    """The same, one member after another."""
    inputs = Inputs.of(args, {}, members, size)
    outs = []
    for member in range(size):
        own = zip(inputs.tensors, inputs.own, strict=True)
        outs.append(tree_flatten(fn(*inputs.build([t[member] if mine else t for t, mine in own])[0])))
    columns = zip(*(leaves for leaves, _ in outs), strict=True)
    return tree_unflatten([torch.stack(column) for column in columns], outs[0][1])


def _called(body: nn.Module, tensors: Tensors, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the body answers; hooks of one that runs for each member by itself run inside."""
    if why_alone(body) is None:
        return call_with(body, tensors, args, kwargs)
    with swapped(body, tensors):
        return body.__dict__["forward"](*args, **kwargs)


def _left(body: nn.Module) -> dict[Where, Tensor]:
    """Tensors of members that the forward has left in plain attributes of modules."""
    found = {}
    for path, module in body.named_modules():
        for name, value in vars(module).items():
            if name in FRAME or not _has_members(value):
                continue
            if isinstance(value, Tensor):
                found[path, name] = value
            else:
                raise NotFusible(
                    f"{path or type(module).__name__}.{name} keeps tensors of a call in a "
                    f"{type(value).__name__}",
                    "keep each in an attribute of its own, or in a buffer",
                )
    return found


def _has_members(value: Any) -> bool:
    if isinstance(value, Tensor):
        return bool(is_batchedtensor(value))
    return isinstance(value, list | tuple | dict) and any(map(_has_members, tree_flatten(value)[0]))


def _put_back(before: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """No tensor of a call stays behind in an attribute; `run` carries them to the next."""
    for attributes, old in before:
        for name, value in list(attributes.items()):
            if name == "_flat_weights" or (name not in FRAME and _has_members(value)):
                if name in old:
                    attributes[name] = old[name]
                else:
                    del attributes[name]

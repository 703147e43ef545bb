"""Forward of all members: the forward of one member under vmap, with the lowering rules."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks

from wattline.errors import NotFusible
from wattline.fusion import ops  # noqa: F401  # registers the rules
from wattline.fusion.lowering.inputs import Inputs, flatten_inputs
from wattline.fusion.lowering.per_member import per_member_reason
from wattline.fusion.lowering.rules import LoweringMode, Ways
from wattline.fusion.module_state import TORCH_ATTRIBUTES, call_with_tensors, replace_tensors
from wattline.fusion.torch_internals import (
    is_batchedtensor,
    run_batched,
    set_vmap_warnings,
    tree_flatten,
    tree_unflatten,
)

Tensors = dict[str, Tensor]
AttributePath = tuple[str, str]  # path of a module, name of an attribute


def run_forward(
    body: nn.Module,
    stacked: Tensors,
    common: Tensors,
    carried: dict[AttributePath, Tensor],
    inputs: Inputs,
    ways: Ways,
    on_operator: Callable[[Callable[..., Any], bool], None] | None = None,
    unbatched: set[str] | None = None,
) -> Any:
    """Return the outputs of all members, with a leading member dimension; update *stacked* buffers.

    *carried* are tensors that modules keep in plain attributes from one call to the next; it is updated too.
    *unbatched* receives the names of operators that vmap runs separately for each member.
    """
    structure: list[Any] = []
    names, places = list(stacked), list(carried)
    first_input = len(names) + len(places)

    def one(*values: Tensor) -> list[Tensor]:
        tensors = dict(zip(names, values, strict=False))
        for (path, name), value in zip(places, values[len(names) : first_input], strict=True):
            body.get_submodule(path).__dict__[name] = value
        args, kwargs = inputs.build(values[first_input:])
        all_tensors = {**tensors, **common}
        out = _call_body(body, all_tensors, args, kwargs)
        new = {name: t for name, t in all_tensors.items() if name in tensors and t is not tensors[name]}
        leaves, spec = flatten_inputs(out)
        attributes = _collect_batched_attributes(body)
        others = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]
        structure[:] = [list(new), spec, others, list(attributes)]
        return [*(t for t in leaves if isinstance(t, Tensor)), *new.values(), *attributes.values()]

    before = [(vars(m), dict(vars(m))) for m in body.modules()]
    try:
        with (
            LoweringMode(ways, on_operator),
            _collect_unbatched(unbatched),
            disable_saved_tensors_hooks("not in an array"),
        ):
            tensors = [*stacked.values(), *carried.values(), *inputs.tensors]
            flags = [*[True] * first_input, *inputs.per_member]
            results = run_batched(one, tensors, flags, _find_size(tensors, flags))
    finally:
        _restore_attributes(before)
    new_names, spec, others, paths = structure
    outs, results = results[: others.count(None)], results[others.count(None) :]
    for name, tensor in zip(new_names, results, strict=False):
        with torch.no_grad():
            stacked[name].copy_(tensor)
    carried.clear()
    carried.update(zip(paths, results[len(new_names) :], strict=True))
    remaining = iter(outs)
    return tree_unflatten([next(remaining) if other is None else other[0] for other in others], spec)


def _find_size(tensors: Sequence[Tensor], flags: Sequence[bool]) -> int:
    """Return the number of members: the first dimension of a tensor with a row for each."""
    return next(len(tensor) for tensor, own in zip(tensors, flags, strict=True) if own)


@contextmanager
def _collect_unbatched(unbatched: set[str] | None) -> Iterator[None]:
    """Turn vmap's warnings about operators without a batched form into names in *unbatched*, if given."""
    if unbatched is None:
        set_vmap_warnings(False)
        try:
            yield
        finally:
            set_vmap_warnings(True)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        _, sign, name = str(warning.message).partition("batching rule for ")
        if sign:
            unbatched.add(name.split(". ")[0])
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno, source=warning.source
            )


def map_members(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    members: bool | Sequence[bool],
    size: int,
    ways: Ways,
    unbatched: set[str] | None = None,
) -> Any:
    """Return `fn(*args)` of each member, with a leading member dimension; *unbatched* as in `run_forward`."""
    inputs = Inputs.from_call(args, {}, members, size)
    structure: list[Any] = []

    def one(*values: Tensor) -> list[Tensor]:
        leaves, spec = tree_flatten(fn(*inputs.build(values)[0]))
        structure[:] = [spec]
        if not all(isinstance(leaf, Tensor) for leaf in leaves):
            raise TypeError(f"{getattr(fn, '__name__', fn)} returns {leaves}, expected tensors")
        return leaves

    with LoweringMode(ways), _collect_unbatched(unbatched):
        outs = run_batched(one, inputs.tensors, inputs.per_member, size)
    return tree_unflatten(outs, structure[0])


def map_members_one_by_one(
    fn: Callable[..., Any], args: tuple[Any, ...], members: bool | Sequence[bool], size: int
) -> Any:
    """Return the same as `map_members`, computed one member after another."""
    inputs = Inputs.from_call(args, {}, members, size)
    outs = []
    for member in range(size):
        own = zip(inputs.tensors, inputs.per_member, strict=True)
        outs.append(tree_flatten(fn(*inputs.build([t[member] if mine else t for t, mine in own])[0])))
    if wrong := [leaf for leaf in outs[0][0] if not isinstance(leaf, Tensor)]:
        raise NotFusible(
            f"{getattr(fn, '__name__', type(fn).__name__)} returns {wrong[0]!r}, expected a tensor",
            "return the tensor itself, without .item(), and nothing else",
        )
    columns = zip(*(leaves for leaves, _ in outs), strict=True)
    return tree_unflatten([torch.stack(column) for column in columns], outs[0][1])


def _call_body(body: nn.Module, tensors: Tensors, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call *body*; hooks of a body that runs separately for each member run inside it."""
    if per_member_reason(body) is None:
        return call_with_tensors(body, tensors, args, kwargs)
    with replace_tensors(body, tensors):
        return body.__dict__["forward"](*args, **kwargs)


def _collect_batched_attributes(body: nn.Module) -> dict[AttributePath, Tensor]:
    """Return batched tensors that the forward has left in plain attributes of modules."""
    batched = {}
    for path, module in body.named_modules():
        for name, value in vars(module).items():
            if name in TORCH_ATTRIBUTES or not _is_batched(value):
                continue
            if isinstance(value, Tensor):
                batched[path, name] = value
            else:
                raise NotFusible(
                    f"{path or type(module).__name__}.{name} keeps tensors of a call in a "
                    f"{type(value).__name__}",
                    "store each in a separate attribute, or in a buffer",
                )
    return batched


def _is_batched(value: Any) -> bool:
    if isinstance(value, Tensor):
        return bool(is_batchedtensor(value))
    return isinstance(value, list | tuple | dict) and any(map(_is_batched, tree_flatten(value)[0]))


def _restore_attributes(before: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Remove batched tensors from attributes; `run_forward` carries them to the next call."""
    for attributes, old in before:
        for name, value in list(attributes.items()):
            if name == "_flat_weights" or (name not in TORCH_ATTRIBUTES and _is_batched(value)):
                if name in old:
                    attributes[name] = old[name]
                else:
                    del attributes[name]

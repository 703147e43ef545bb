"""Forward of all members: the forward of one member under vmap, with the lowering rules."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from wattline.errors import NotFusible
from wattline.fusion import ops  # noqa: F401  # registers the rules
from wattline.fusion.lowering.inputs import Inputs, flatten_inputs
from wattline.fusion.lowering.layout import ModelLayout
from wattline.fusion.lowering.number_mode import MemberNumberMode
from wattline.fusion.lowering.per_member import per_member_reason
from wattline.fusion.lowering.recomputation import supported_recomputation
from wattline.fusion.lowering.rules import (
    BatchedTensor,
    LoweringMode,
    Rule,
    RuleNotApplicable,
    Ways,
    find_rule,
)
from wattline.fusion.module_state import TORCH_ATTRIBUTES, replaced_modules
from wattline.fusion.torch_internals import (
    forbidden_saved_tensor_hooks,
    is_batchedtensor,
    run_batched,
    set_vmap_warnings,
    tree_flatten,
    tree_unflatten,
)

Tensors = dict[str, Tensor]
AttributePath = tuple[str, str]  # path of a module, name of an attribute


def run_forward(
    layout: ModelLayout,
    stacked: Tensors,
    common: Tensors,
    carried: dict[AttributePath, Tensor],
    inputs: Inputs,
    ways: Ways,
    on_operator: Callable[[Callable[..., Any], bool], None] | None = None,
    unbatched: set[str] | None = None,
) -> Any:
    """Return the outputs of all members, with a leading member dimension; update *stacked* buffers.

    *stacked* are the members' tensors, *common* those that replace the model's shared ones, if any.
    *carried* are tensors that modules keep in plain attributes from one call to the next; it is updated too.
    *unbatched* receives the names of operators that vmap runs separately for each member.
    """
    structure: list[Any] = []
    names, places = list(stacked), list(carried)
    first_input = len(names) + len(places)

    def one(*values: Tensor) -> list[Tensor]:
        tensors = dict(zip(names, values, strict=False))
        for (path, name), value in zip(places, values[len(names) : first_input], strict=True):
            layout.body.get_submodule(path).__dict__[name] = value
        args, kwargs = inputs.build(values[first_input:])
        replacing = {**tensors, **common} if common else tensors
        replaced_modules.append(layout.body)
        try:
            layout.put(replacing)
            out = _call_body(layout, args, kwargs)
            new = {name: t for name, t in layout.find_replaced(replacing).items() if name in tensors}
        finally:
            layout.reset()
            replaced_modules.pop()
        leaves, spec = ([out], None) if isinstance(out, Tensor) else flatten_inputs(out)
        attributes = _collect_batched_attributes(layout)
        others = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]
        structure[:] = [list(new), spec, others, list(attributes)]
        return [*(t for t in leaves if isinstance(t, Tensor)), *new.values(), *attributes.values()]

    layout.note_attributes()
    tensors = [*stacked.values(), *carried.values(), *inputs.tensors]
    flags = [*[True] * first_input, *inputs.per_member]
    size = _find_size(tensors, flags)  # here, because operators on tensors cost more inside of the mode
    try:
        with (
            LoweringMode(ways, on_operator),
            _collect_unbatched(unbatched),
            forbidden_saved_tensor_hooks("hooks of saved tensors would get the tensors of all members"),
            supported_recomputation(),
        ):
            results = run_batched(one, tensors, flags, size)
    finally:
        _restore_attributes(layout)
    new_names, spec, others, paths = structure
    outs, results = results[: others.count(None)], results[others.count(None) :]
    for name, tensor in zip(new_names, results, strict=False):
        with torch.no_grad():
            stacked[name].copy_(tensor)
    carried.clear()
    carried.update(zip(paths, results[len(new_names) :], strict=True))
    if spec is None:
        return outs[0]
    remaining = iter(outs)
    return tree_unflatten([next(remaining) if other is None else other[0] for other in others], spec)


def _find_size(tensors: Sequence[Tensor], flags: Sequence[bool]) -> int:
    """Return the number of members: the first dimension of a tensor with a row for each."""
    return next(tensor.shape[0] for tensor, own in zip(tensors, flags, strict=True) if own)


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
    if (rule := find_rule(fn)) is not None and inputs.spec[0] is None:
        try:
            return _call_rule(rule, inputs, size, ways)
        except RuleNotApplicable:
            pass
    structure: list[Any] = []

    def one(*values: Tensor) -> list[Tensor]:
        out = fn(*inputs.build(values)[0])
        if isinstance(out, Tensor):
            return [out]
        leaves, spec = tree_flatten(out)
        structure[:] = [spec]
        if not all(isinstance(leaf, Tensor) for leaf in leaves):
            raise TypeError(f"{getattr(fn, '__name__', fn)} returns {leaves}, expected tensors")
        return leaves

    with LoweringMode(ways), _collect_unbatched(unbatched), supported_recomputation():
        outs = run_batched(one, inputs.tensors, inputs.per_member, size)
    return tree_unflatten(outs, structure[0]) if structure else outs[0]


def _call_rule(rule: Rule, inputs: Inputs, size: int, ways: Ways) -> Tensor:
    """Return the result of an operator's rule, without vmap; the operator itself is the whole function."""
    own = [
        BatchedTensor(t, 0) if mine else t for t, mine in zip(inputs.tensors, inputs.per_member, strict=True)
    ]
    result = rule(size, ways, *inputs.build(own)[0])
    if not isinstance(result, BatchedTensor):
        raise RuleNotApplicable
    return result.members_first


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


def _call_body(layout: ModelLayout, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the body; hooks of a body that runs separately for each member run inside it."""
    if per_member_reason(layout.body) is None:
        if not layout.has_numbers:
            return layout.body(*args, **kwargs)
        with MemberNumberMode():
            return layout.body(*args, **kwargs)
    return layout.body.__dict__["forward"](*args, **kwargs)


def _collect_batched_attributes(layout: ModelLayout) -> dict[AttributePath, Tensor]:
    """Return batched tensors that the forward has left in plain attributes of modules."""
    batched = {}
    for path, now, _ in layout.find_changed():
        for name, value in now.items():
            if name in TORCH_ATTRIBUTES or not _is_batched(value):
                continue
            if isinstance(value, Tensor):
                batched[path, name] = value
            else:
                raise NotFusible(
                    f"{path or type(layout.body).__name__}.{name} keeps tensors of a call in a "
                    f"{type(value).__name__}",
                    "store each in a separate attribute, or in a buffer",
                )
    return batched


def _is_batched(value: Any) -> bool:
    if isinstance(value, Tensor):
        return bool(is_batchedtensor(value))
    return isinstance(value, list | tuple | dict) and any(map(_is_batched, tree_flatten(value)[0]))


def _restore_attributes(layout: ModelLayout) -> None:
    """Remove batched tensors from attributes; `run_forward` carries them to the next call."""
    for _, now, old in layout.find_changed():
        for name, value in list(now.items()):
            if name == "_flat_weights" or (name not in TORCH_ATTRIBUTES and _is_batched(value)):
                if name in old:
                    now[name] = old[name]
                else:
                    del now[name]

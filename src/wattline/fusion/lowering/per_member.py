"""Execution of a module that cannot be fused: one call for each member."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from wattline.errors import NotFusible
from wattline.fusion.architecture_check import is_equivalent
from wattline.fusion.lowering.error_kinds import is_fusing_error
from wattline.fusion.lowering.rules import BatchedTensor, call_outside_vmap
from wattline.fusion.member_numbers import ordinary_numbers
from wattline.fusion.module_state import (
    Attributes,
    call_with_tensors,
    copy_attributes,
    flatten_tree,
    named_tensors,
    restore_attributes,
)
from wattline.fusion.torch_internals import is_batchedtensor, tree_unflatten


class MemberError(Exception):  # caught in fallback.py
    """An error raised by a member's own forward, as opposed to an error of fusing."""

    def __init__(self, member: int, error: Exception) -> None:
        super().__init__(member, error)
        self.member = member
        self.error = error


class PerMemberForward:
    """Replacement of a module's `forward` inside an array: one call for each member.

    *is_model*: the module is the model itself. Then writes into its inputs have no effect on other modules,
    and its hooks run inside.
    """

    def __init__(self, module: nn.Module, reason: str, *, is_model: bool = False) -> None:
        self.module = module
        self.reason = reason
        self.is_model = is_model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of all members."""
        state = named_tensors(self.module)
        attributes_before = copy_attributes(self.module)
        batched_attributes = [
            (m, n, t) for m, own in attributes_before for n, t in own.items() if _is_batched(t)
        ]
        leaves, spec = flatten_tree((dict(state), [t for *_, t in batched_attributes], args, kwargs))
        if not any(map(_is_batched, leaves)):
            with _original_forward(self.module, self.is_model):
                return self.module(*args, **kwargs)
        structure: list[Any] = []
        first_argument = len(state) + len(batched_attributes)  # index of the first leaf of the arguments

        def call(size: int, values: list[Any]) -> tuple[BatchedTensor, ...]:
            outs, attributes_after = [], []
            for member in range(size):
                own = [
                    _member_value(leaf, member, clone=at >= first_argument) for at, leaf in enumerate(values)
                ]
                tensors, own_attributes, args_, kwargs_ = tree_unflatten(own, spec)
                restore_attributes(attributes_before)
                for (module, name, _), value in zip(batched_attributes, own_attributes, strict=True):
                    vars(module)[name] = value
                out = self._run_member(member, values, tensors, args_, kwargs_)
                self._check_not_written(values[first_argument:], own[first_argument:])
                outs.append(flatten_tree(out))
                attributes_after.append(copy_attributes(self.module))
            flat, out_spec = outs[0]
            try:
                _check_same_structure(outs)
                new_attributes = _collect_new_attributes(
                    attributes_before, attributes_after, batched_attributes
                )
            except NotFusible as error:
                if self.is_model:
                    raise
                raise RuntimeError(str(error)) from error  # the enclosing module may succeed per member
            structure[:] = [flat, out_spec, [at for at, _ in new_attributes]]
            columns = [
                *zip(*(flat for flat, _ in outs), strict=True),
                *(column for _, column in new_attributes),
            ]
            return tuple(BatchedTensor(torch.stack(col), 0) for col in columns if isinstance(col[0], Tensor))

        outputs = iter(call_outside_vmap(call, leaves))
        flat, out_spec, new_attributes = structure
        result = [next(outputs) if isinstance(leaf, Tensor) else leaf for leaf in flat]
        for (module, name), value in zip(new_attributes, outputs, strict=True):
            vars(module)[name] = value
        return tree_unflatten(result, out_spec)

    def _run_member(
        self, member: int, values: list[Any], tensors: dict[str, Tensor], args: Any, kwargs: Any
    ) -> Any:
        """Return the output of one member; buffers that it replaces are written to *values*."""
        before = dict(tensors)
        try:
            with _original_forward(self.module, self.is_model), ordinary_numbers(self.module, tensors):
                out = call_with_tensors(self.module, tensors, args, kwargs)
        except Exception as error:
            if not is_fusing_error(error):
                raise
            raise MemberError(member, error) from error
        for at, name in enumerate(before):  # a buffer that was replaced, not written to
            if tensors[name] is not before[name]:
                _member_value(values[at], member, clone=False).copy_(tensors[name])
        return out

    def _check_not_written(self, shared: list[Any], copies: list[Any]) -> None:
        """Raise `RuntimeError` if a member has written to its copy of a shared argument."""
        if self.is_model:
            return
        if any(_wrote_to_copy(leaf, own) for leaf, own in zip(shared, copies, strict=True)):
            raise RuntimeError("it writes into a tensor that members share")


def _is_batched(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(is_batchedtensor(value))


def per_member_reason(module: nn.Module) -> str | None:
    """Return why a module runs separately for each member; None if it is fused."""
    forward = module.__dict__.get("forward")
    return forward.reason if isinstance(forward, PerMemberForward) else None


def _member_value(leaf: Any, member: int, *, clone: bool) -> Any:
    """Return a member's value of a leaf; a tensor that members share is copied if *clone* is true."""
    if isinstance(leaf, BatchedTensor):
        return leaf.values.select(leaf.member_dim, member)
    return leaf.clone() if clone and isinstance(leaf, Tensor) else leaf


def _wrote_to_copy(values: Any, own: Any) -> bool:
    """Return whether a member has written to its copy of a shared tensor."""
    return isinstance(values, Tensor) and not own.is_inference() and own._version > 0


def _check_same_structure(outs: Sequence[tuple[list[Any], Any]]) -> None:
    """Raise `NotFusible` unless outputs agree in structure, tensor shapes and all other values."""
    flat, spec = outs[0]
    for member, (other, other_spec) in enumerate(outs[1:], 1):
        if other_spec != spec:
            raise NotFusible(f"member {member} returns another structure than member 0")
        for a, b in zip(flat, other, strict=True):
            if isinstance(a, Tensor) and isinstance(b, Tensor):
                if a.shape != b.shape:
                    shapes = f"{tuple(b.shape)}, expected {tuple(a.shape)} as in member 0"
                    raise NotFusible(f"member {member} returns the shape {shapes}")
            elif not is_equivalent(a, b):
                raise NotFusible(f"member {member} returns {b!r}, expected {a!r} as in member 0")


def _collect_new_attributes(
    attributes_before: Attributes,
    attributes_after: list[Attributes],
    batched_attributes: list[tuple[nn.Module, str, Tensor]],
) -> list[Any]:
    """Return the attributes that now hold a tensor of each member: (module, name) and the tensors."""
    collected: list[Any] = []
    known = {(id(m), n) for m, n, _ in batched_attributes}
    for at, (module, old) in enumerate(attributes_before):
        for name, value in attributes_after[0][at][1].items():
            values = [end[at][1].get(name) for end in attributes_after]
            if value is old.get(name) and (id(module), name) not in known:
                continue
            if all(isinstance(v, Tensor) and v.shape == value.shape for v in values):
                collected.append(((module, name), values))
            elif not all(is_equivalent(value, v) for v in values):
                place = f"{type(module).__name__}.{name}"
                raise NotFusible(
                    f"{place} is not the same for all members after the forward", "store it in a buffer"
                )
    return collected


@contextmanager
def original_forwards(body: nn.Module) -> Iterator[None]:
    """Restore the modules' own forwards, to run one member alone or to copy the model."""
    replaced = {
        m: m.__dict__.pop("forward")
        for m in body.modules()
        if isinstance(m.__dict__.get("forward"), PerMemberForward)
    }
    try:
        yield
    finally:
        for module, forward in replaced.items():
            module.__dict__["forward"] = forward


@contextmanager
def _original_forward(module: nn.Module, is_model: bool) -> Iterator[None]:
    """Restore the forwards of the module and its submodules; its own hooks have already run outside."""
    with original_forwards(module):
        hooks = module._forward_hooks, module._forward_pre_hooks
        if not is_model:
            module._forward_hooks, module._forward_pre_hooks = type(hooks[0])(), type(hooks[1])()
        try:
            yield
        finally:
            module._forward_hooks, module._forward_pre_hooks = hooks

"""Registry of lowering rules: batched operators that replace the operators of single members.

An array runs the forward of one member under `torch.func.vmap`, which batches every operator over the
members. Where PyTorch's batching is slow, a rule of `wattline.fusion.ops` is used instead: it gets the
stacked tensors and chooses the computation and the memory layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from wattline.fusion.torch_internals import (
    TransformType,
    add_batch_dim,
    current_interpreter,
    get_batch_dim,
    get_interpreter_stack,
    get_level,
    get_unwrapped,
    is_batchedtensor,
    tree_flatten,
    tree_unflatten,
)


class BatchedTensor(NamedTuple):
    """The tensors of all members stacked in one; *member_dim* is the dimension that counts members."""

    values: Tensor
    member_dim: int

    @property
    def members_first(self) -> Tensor:
        """The tensor with members in front: [B, …]."""
        return self.values.movedim(self.member_dim, 0)

    @property
    def members_second(self) -> Tensor:
        """The tensor with members after the batch: [N, B, …]."""
        return self.values.movedim(self.member_dim, 1)

    @property
    def ndim(self) -> int:
        """Number of dimensions of one member's tensor."""
        return self.values.dim() - 1


class RuleNotApplicable(Exception):  # caught by LoweringMode
    """The rule does not support these arguments; vmap is used."""


@dataclass(frozen=True)
class Ways:
    """Choice between equivalent computations of an operator; the fastest depends on the machine.

    *last*: images are stored channels-last. *pointwise*: convolutions with kernel 1 are matrix products.
    """

    last: bool = False
    pointwise: bool = True

    def __str__(self) -> str:
        choices = ["channels last"] * self.last + ["kernel 1 as matrix products"] * self.pointwise
        return ", ".join(choices) or "default layout"


Rule = Callable[..., Any]
_RULES: dict[Callable[..., Any], tuple[Rule, str]] = {}
_REWRITES: dict[Callable[..., Any], tuple[Rule, str]] = {}


def lowering_rule(*functions: Callable[..., Any], description: str) -> Callable[[Rule], Rule]:
    """Register a rule that computes *functions* for all members at once.

    It is called as `rule(size, ways, *args)`, with a `BatchedTensor` for each tensor that differs by member.
    """

    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(functions, (rule, description)))
        return rule

    return register


def rewrite_rule(*functions: Callable[..., Any], description: str) -> Callable[[Rule], Rule]:
    """Register a rule that rewrites *functions*, for one member, in terms of operators that have rules."""

    def register(rule: Rule) -> Rule:
        _REWRITES.update(dict.fromkeys(functions, (rule, description)))
        return rule

    return register


def has_lowering_rule(function: Callable[..., Any]) -> bool:
    """Return whether a rule computes *function* for all members at once."""
    return function in _RULES


def describe_lowering(function: Callable[..., Any]) -> str | None:
    """Return a description of how *function* is computed for all members; None: by vmap."""
    registered = _RULES.get(function) or _REWRITES.get(function)
    return None if registered is None else registered[1]


class LoweringMode(TorchFunctionMode):
    """Torch function mode that applies the lowering rules to operators on batched tensors."""

    def __init__(
        self, ways: Ways, on_operator: Callable[[Callable[..., Any], bool], None] | None = None
    ) -> None:
        super().__init__()
        self.ways = ways
        self.on_operator = on_operator

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = {} if kwargs is None else dict(kwargs)
        property_name = _AUTOGRAD_PROPERTIES.get(func)
        if property_name is not None and is_batchedtensor(args[0]):  # vmap hides autograd properties
            return getattr(_unwrap(args[0]), property_name)
        rewrite, rule = _REWRITES.get(func), _RULES.get(func)
        if rule is None and rewrite is None:
            if self.on_operator is not None:
                self.on_operator(func, False)
            return func(*args, **keywords)
        leaves, spec = tree_flatten((args, keywords))
        if not any(isinstance(leaf, Tensor) and is_batchedtensor(leaf) for leaf in leaves) or not _in_vmap():
            return func(*args, **keywords)
        try:
            if rule is not None:
                result = call_outside_vmap(_RuleCall(rule[0], self.ways, spec), leaves)
            else:
                assert rewrite is not None
                with self:
                    result = rewrite[0](*args, **keywords)
        except RuleNotApplicable:
            if self.on_operator is not None:
                self.on_operator(func, False)
            return func(*args, **keywords)
        if self.on_operator is not None:
            self.on_operator(func, True)
        return result


_AUTOGRAD_PROPERTIES: dict[Any, str] = {
    getattr(torch.Tensor, name).__get__: name for name in ("requires_grad", "is_leaf", "grad_fn")
}


def _unwrap(tensor: Tensor) -> Tensor:
    while is_batchedtensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def _in_vmap() -> bool:
    """Return whether vmap is the only active transform; `torch.func.grad` may run inside a forward."""
    stack = get_interpreter_stack()
    return stack is not None and all(i.key() == TransformType.Vmap for i in stack)


@dataclass(frozen=True)
class _RuleCall:
    """One call of an operator, without its tensors."""

    rule: Rule
    ways: Ways
    spec: Any

    def __call__(self, size: int, leaves: list[Any]) -> Any:
        args, keywords = tree_unflatten(leaves, self.spec)
        return self.rule(size, self.ways, *args, **keywords)


def call_outside_vmap(call: Callable[[int, list[Any]], Any], leaves: list[Any]) -> Any:
    """Return `call(size, leaves)`, with a `BatchedTensor` for each leaf that differs by member."""
    vmap = current_interpreter()
    level = vmap.level()
    values = [
        BatchedTensor(get_unwrapped(leaf), get_batch_dim(leaf))
        if isinstance(leaf, Tensor) and is_batchedtensor(leaf) and get_level(leaf) == level
        else leaf
        for leaf in leaves
    ]
    with vmap.lower():
        result = call(vmap.batch_size(), values)
    if isinstance(result, BatchedTensor):
        return add_batch_dim(result.values, result.member_dim, level)
    if isinstance(result, Tensor):
        return result
    return tuple(
        add_batch_dim(out.values, out.member_dim, level) if isinstance(out, BatchedTensor) else out
        for out in result
    )


def expand_to_members(x: Tensor | BatchedTensor, size: int) -> BatchedTensor:
    """Return *x* as a batched tensor; a tensor that members share is expanded without a copy."""
    return x if isinstance(x, BatchedTensor) else BatchedTensor(x.expand(size, *x.shape), 0)


def require_member_rows(x: Tensor | BatchedTensor | None) -> Tensor | None:
    """Return the weights of all members, [B, …], or None; raise `RuleNotApplicable` if members share them."""
    if x is None:
        return None
    if not isinstance(x, BatchedTensor):
        raise RuleNotApplicable
    return x.members_first

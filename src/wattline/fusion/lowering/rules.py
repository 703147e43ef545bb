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
    get_batch_dim,
    get_interpreter_stack,
    get_level,
    get_unwrapped,
    is_batchedtensor,
    pop_vmap,
    push_vmap,
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
        return self.values if self.member_dim == 0 else self.values.movedim(self.member_dim, 0)

    @property
    def members_second(self) -> Tensor:
        """The tensor with members after the batch: [N, B, …]."""
        return self.values if self.member_dim == 1 else self.values.movedim(self.member_dim, 1)

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


class _Registered(NamedTuple):
    """The rules of one operator: one for all members at once, and one that rewrites it for a single one."""

    rule: Rule | None
    rewrite: Rule | None
    description: str


_RULES: dict[Callable[..., Any], _Registered] = {}


def lowering_rule(*functions: Callable[..., Any], description: str) -> Callable[[Rule], Rule]:
    """Register a rule that computes *functions* for all members at once.

    It is called as `rule(size, ways, *args)`, with a `BatchedTensor` for each tensor that differs by member.
    """

    def register(rule: Rule) -> Rule:
        for function in functions:
            known = _RULES.get(function)
            _RULES[function] = _Registered(rule, None if known is None else known.rewrite, description)
        return rule

    return register


def rewrite_rule(*functions: Callable[..., Any], description: str) -> Callable[[Rule], Rule]:
    """Register a rule that rewrites *functions*, for one member, in terms of operators that have rules.

    Where there is also a lowering rule, it is tried first.
    """

    def register(rule: Rule) -> Rule:
        for function in functions:
            known = _RULES.get(function, _Registered(None, None, description))
            _RULES[function] = known._replace(rewrite=rule)
        return rule

    return register


def find_rule(function: Any) -> Rule | None:
    """Return the rule that computes *function* for all members at once, or None."""
    try:
        registered = _RULES.get(function)
    except TypeError:  # not hashable
        return None
    return None if registered is None else registered.rule


def describe_lowering(function: Callable[..., Any]) -> str | None:
    """Return a description of how *function* is computed for all members; None: by vmap."""
    registered = _RULES.get(function)
    return None if registered is None else registered.description


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
        keywords = {} if kwargs is None else kwargs
        registered = _RULES.get(func)
        if registered is None:
            if func in _AUTOGRAD_PROPERTIES and is_batchedtensor(args[0]):  # vmap hides autograd properties
                return getattr(_unwrap(args[0]), _AUTOGRAD_PROPERTIES[func])
            if self.on_operator is not None:
                self.on_operator(func, False)
            return func(*args, **keywords)
        leaves, spec = _flatten_arguments(args, keywords)
        if not any(isinstance(leaf, Tensor) and is_batchedtensor(leaf) for leaf in leaves) or not _in_vmap():
            return func(*args, **keywords)
        try:
            result = self._apply(registered, leaves, spec, args, keywords)
        except RuleNotApplicable:
            if self.on_operator is not None:
                self.on_operator(func, False)
            return func(*args, **keywords)
        if self.on_operator is not None:
            self.on_operator(func, True)
        return result

    def _apply(
        self,
        registered: _Registered,
        leaves: list[Any],
        spec: Any,
        args: tuple[Any, ...],
        keywords: Mapping[str, Any],
    ) -> Any:
        """Return the result of the rule, or of the rewritten operator where the rule does not apply."""
        if registered.rule is not None:
            try:
                return call_outside_vmap(self._bind(registered.rule, spec), leaves)
            except RuleNotApplicable:
                if registered.rewrite is None:
                    raise
        assert registered.rewrite is not None
        with self:
            return registered.rewrite(*args, **keywords)

    def _bind(self, rule: Rule, spec: Any) -> Callable[[int, list[Any]], Any]:
        """Return *rule* as a function of the number of members and the leaves of its arguments."""
        if spec == ():
            return lambda size, leaves: rule(size, self.ways, *leaves)

        def call(size: int, leaves: list[Any]) -> Any:
            if isinstance(spec, tuple):  # names of the arguments passed by keyword
                count = len(leaves) - len(spec)
                args, keywords = leaves[:count], dict(zip(spec, leaves[count:], strict=True))
            else:
                args, keywords = tree_unflatten(leaves, spec)
            return rule(size, self.ways, *args, **keywords)

        return call


def _flatten_arguments(args: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """Return the leaves of an operator's arguments and their structure.

    Most operators have no tensors inside containers; then the leaves are the arguments, and the structure
    is the names of those passed by keyword.
    """
    leaves = [*args, *keywords.values()]
    for leaf in leaves:
        if isinstance(leaf, tuple | list | dict) and not all(isinstance(item, int) for item in leaf):
            return tree_flatten((args, dict(keywords)))
    return leaves, tuple(keywords)


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


def call_outside_vmap(call: Callable[[int, list[Any]], Any], leaves: list[Any]) -> Any:
    """Return `call(size, leaves)`, with a `BatchedTensor` for each leaf that differs by member."""
    vmap = pop_vmap()
    try:
        level = vmap.level
        result = call(
            vmap.size,
            [
                BatchedTensor(get_unwrapped(leaf), get_batch_dim(leaf))
                if isinstance(leaf, Tensor) and is_batchedtensor(leaf) and get_level(leaf) == level
                else leaf
                for leaf in leaves
            ],
        )
    finally:
        push_vmap(vmap)
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

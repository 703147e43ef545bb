"""Which operator of an array takes the place of its members' operators.

An array runs the forward of one member under `torch.func.vmap`, which makes every operator one of all
members. Where PyTorch's own way to do that is slow, a rule of `wattline.fusion.ops` is asked instead: it sees
the stacked tensors and says what to compute, and in which layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import (  # no public names: what vmap runs its function with
    TransformType,
    get_interpreter_stack,
    get_unwrapped,
    is_batchedtensor,
)
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten


class Many(NamedTuple):
    """What every member has of its own, in one tensor; dimension *at* counts members."""

    values: Tensor
    at: int

    @property
    def first(self) -> Tensor:
        """With members in front: [B, …]."""
        return self.values.movedim(self.at, 0)

    @property
    def second(self) -> Tensor:
        """With members behind the batch: [N, B, …]."""
        return self.values.movedim(self.at, 1)

    @property
    def dim(self) -> int:
        """How many dimensions a member sees."""
        return self.values.dim() - 1


class Declined(Exception):  # a rule that does not fit; never leaves this folder
    """The rule does not know these arguments; vmap is asked."""


@dataclass(frozen=True)
class Ways:
    """How operators that can be computed in several ways are: which is fastest depends on the machine.

    *last*: images have their channels last in memory. *pointwise*: those of kernel 1 are matrix products.
    """

    last: bool = False
    pointwise: bool = True

    def __str__(self) -> str:
        words = ["channels last"] * self.last + ["kernel 1 as matrix products"] * self.pointwise
        return ", ".join(words) or "as they are"


Rule = Callable[..., Any]
_RULES: dict[Callable[..., Any], tuple[Rule, str]] = {}
_REWRITES: dict[Callable[..., Any], tuple[Rule, str]] = {}


def lowers(*functions: Callable[..., Any], how: str) -> Callable[[Rule], Rule]:
    """The rule computes *functions* for all members at once: `rule(size, ways, *args)` with `Many` for
    tensors that members have of their own."""

    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(functions, (rule, how)))
        return rule

    return register


def rewrites(*functions: Callable[..., Any], how: str) -> Callable[[Rule], Rule]:
    """The rule says what a member computes in place of *functions*, in operators that have rules."""

    def register(rule: Rule) -> Rule:
        _REWRITES.update(dict.fromkeys(functions, (rule, how)))
        return rule

    return register


def how_lowered(function: Callable[..., Any]) -> str | None:
    """In words, how *function* is computed for all members; None: by vmap."""
    found = _RULES.get(function) or _REWRITES.get(function)
    return None if found is None else found[1]


class Lowering(TorchFunctionMode):
    """While this is on, operators on what members have of their own are computed by their rules."""

    def __init__(self, ways: Ways, seen: Callable[[Callable[..., Any], bool], None] | None = None) -> None:
        super().__init__()
        self.ways = ways
        self.seen = seen

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        words = {} if kwargs is None else dict(kwargs)
        known = _OF_AUTOGRAD.get(func)
        if known is not None and is_batchedtensor(args[0]):  # vmap itself knows of no gradients
            return getattr(_bottom(args[0]), known)
        rewrite, rule = _REWRITES.get(func), _RULES.get(func)
        if rule is None and rewrite is None:
            if self.seen is not None:
                self.seen(func, False)
            return func(*args, **words)
        leaves, spec = tree_flatten((args, words))
        if not any(isinstance(leaf, Tensor) and is_batchedtensor(leaf) for leaf in leaves) or not _in_vmap():
            return func(*args, **words)
        try:
            if rule is not None:
                found = run_for_all(_Call(rule[0], self.ways, spec), leaves)
            else:
                assert rewrite is not None
                with self:
                    found = rewrite[0](*args, **words)
        except Declined:
            if self.seen is not None:
                self.seen(func, False)
            return func(*args, **words)
        if self.seen is not None:
            self.seen(func, True)
        return found


_OF_AUTOGRAD: dict[Any, str] = {
    getattr(torch.Tensor, name).__get__: name for name in ("requires_grad", "is_leaf", "grad_fn")
}


def _bottom(tensor: Tensor) -> Tensor:
    while is_batchedtensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def _in_vmap() -> bool:
    """Whether nothing but vmap is going on, such as `torch.func.grad` inside of a forward."""
    stack = get_interpreter_stack()
    return stack is not None and all(i.key() == TransformType.Vmap for i in stack)


@dataclass(frozen=True)
class _Call:
    """One call of an operator: everything but its tensors."""

    rule: Rule
    ways: Ways
    spec: Any

    def __call__(self, size: int, leaves: list[Any]) -> Any:
        args, words = tree_unflatten(leaves, self.spec)
        return self.rule(size, self.ways, *args, **words)


def run_for_all(call: Callable[[int, list[Any]], Any], leaves: list[Any]) -> Any:
    """What `call(size, shown)` computes; *shown* are the leaves, `Many` for what is each member's own."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    others = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]

    def of_all(size: int, shown: Iterator[Any]) -> Any:
        return call(size, [next(shown) if other is None else other[0] for other in others])

    return _OfAll.apply(of_all, *tensors)


class _OfAll(torch.autograd.Function):
    """The way out of vmap and back: only `vmap` below is ever run, and autograd sees what it computes."""

    @staticmethod
    def forward(call: Any, *tensors: Tensor) -> Any:
        raise AssertionError("asked outside of vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: see `backward`."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise AssertionError("autograd follows the operators of the rule")

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Any, *tensors: Tensor) -> Any:
        pairs = zip(tensors, in_dims[1:], strict=True)
        found = call(info.batch_size, (values if at is None else Many(values, at) for values, at in pairs))
        is_one = isinstance(found, Many | Tensor)
        outs = (found,) if is_one else tuple(found)
        values = tuple(out.values if isinstance(out, Many) else out for out in outs)
        dims = tuple(out.at if isinstance(out, Many) else None for out in outs)
        return (values[0], dims[0]) if is_one else (values, dims)


def spread(x: Tensor | Many, size: int) -> Many:
    """What all members share, as if each had its own."""
    return x if isinstance(x, Many) else Many(x.expand(size, *x.shape), 0)


def rows(x: Tensor | Many | None) -> Tensor | None:
    """Weights of all members, [B, …]; None stays None. `Declined` where members share them."""
    if x is None:
        return None
    if not isinstance(x, Many):
        raise Declined
    return x.first

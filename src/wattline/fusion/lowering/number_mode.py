"""Operators with numbers of members in the place of Python numbers.

Under vmap such a number is a tensor without dimensions. PyTorch computes with it as with any tensor, which
differs in two ways from a Python number: it may change the type of the result, and options of operators
do not take tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from wattline.fusion.lowering.rules import RuleNotApplicable, find_rule
from wattline.fusion.member_numbers import MARK
from wattline.fusion.ops.attention import multi_head_attention
from wattline.fusion.torch_internals import is_batchedtensor, tree_flatten, tree_map_only

_HALF = (torch.bfloat16, torch.float16)
_TAKES_NUMBERS = frozenset((F.dropout, F.dropout1d, F.dropout2d, F.dropout3d))
_REWRITES: dict[Callable[..., Any], Callable[..., Any]] = {
    F.multi_head_attention_forward: multi_head_attention
}


class MemberNumberMode(TorchFunctionMode):
    """Torch function mode that lets operators treat numbers of members like Python numbers."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = {} if kwargs is None else dict(kwargs)
        tensors = [leaf for leaf in tree_flatten((args, keywords))[0] if isinstance(leaf, Tensor)]
        others = [tensor for tensor in tensors if not is_member_number(tensor)]
        if not others or len(others) == len(tensors):
            return func(*args, **keywords)
        if func in _REWRITES:
            try:
                with self:
                    return _REWRITES[func](*args, **keywords)
            except RuleNotApplicable:
                pass
        if find_rule(func) is not None and func not in _TAKES_NUMBERS:
            raise TypeError(f"{func.__name__} takes a number that differs between members")
        return _call_like_with_python_number(func, args, keywords, others)


def is_member_number(value: Any) -> bool:
    """Return whether *value* is a number under vmap: without dimensions and not differentiated."""
    return (
        isinstance(value, Tensor)
        and is_batchedtensor(value)
        and value.dtype == torch.float64
        and value.dim() == 0
        and not value.requires_grad
    )


def _call_like_with_python_number(
    func: Callable[..., Any], args: Any, kwargs: Any, others: list[Tensor]
) -> Any:
    """Call *func* with numbers in the type that operators on the *others* compute in."""
    kinds = [t.dtype for t in others if t.is_floating_point()]
    kind = torch.get_default_dtype() if not kinds else kinds[0]
    for other in kinds[1:]:
        kind = torch.promote_types(kind, other)
    if any(t.is_complex() for t in others):
        return func(*args, **kwargs)
    name = getattr(func, "__name__", "")
    is_inplace = name.endswith("_") and not name.endswith("__")
    wide = torch.float32 if kind in _HALF else kind

    def convert(tensor: Tensor) -> Tensor:
        if is_member_number(tensor):
            return tensor.to(wide)
        return tensor.to(wide) if kind in _HALF and tensor.dtype == kind and not is_inplace else tensor

    args, kwargs = tree_map_only(Tensor, convert, (args, kwargs))
    result = func(*args, **kwargs)
    if kind not in _HALF or is_inplace:
        return result
    return tree_map_only(Tensor, lambda t: t.to(kind) if t.dtype == wide else t, result)


def has_numbers(module: nn.Module) -> bool:
    """Return whether members have numbers of their own in *module*."""
    return any(MARK in vars(part) for part in module.modules())


def _rewrite(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(rewritten: Callable[..., Any]) -> Callable[..., Any]:
        _REWRITES[function] = rewritten
        return rewritten

    return register


@_rewrite(F.cross_entropy)
def _cross_entropy(*args: Any, **kwargs: Any) -> Any:
    """Mix the losses without smoothing and with smoothing 1: the loss is linear in the smoothing."""
    if len(args) > 7:
        args, kwargs = args[:7], {**kwargs, "label_smoothing": args[7]}
    smoothing: Any = kwargs.get("label_smoothing")
    if not is_member_number(smoothing):
        raise RuleNotApplicable
    plain = F.cross_entropy(*args, **{**kwargs, "label_smoothing": 0.0})
    uniform = F.cross_entropy(*args, **{**kwargs, "label_smoothing": 1.0})
    return (1 - smoothing) * plain + smoothing * uniform


@_rewrite(F.leaky_relu)
def _leaky_relu(input: Tensor, negative_slope: Any = 0.01, inplace: bool = False) -> Any:
    if inplace:
        raise RuleNotApplicable
    return torch.where(input > 0, input, input * negative_slope)


@_rewrite(F.elu)
def _elu(input: Tensor, alpha: Any = 1.0, inplace: bool = False) -> Any:
    if inplace:
        raise RuleNotApplicable
    return torch.where(input > 0, input, torch.expm1(input.clamp(max=0)) * alpha)


@_rewrite(F.huber_loss)
def _huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: Any = 1.0, weight: Any = None
) -> Any:
    if weight is not None:
        raise RuleNotApplicable
    distance = (input - target).abs()
    return _reduce(
        torch.where(distance <= delta, 0.5 * distance.square(), (distance - delta * 0.5) * delta), reduction
    )


@_rewrite(F.smooth_l1_loss)
def _smooth_l1_loss(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, *args: Any, **kwargs: Any
) -> Any:
    options = dict(zip(("reduction", "beta"), args, strict=False)) | kwargs
    if size_average is not None or reduce is not None or options.keys() - {"reduction", "beta"}:
        raise RuleNotApplicable
    distance, beta = (input - target).abs(), options.get("beta", 1.0)
    small = torch.where(distance < beta, 0.5 * distance.square() / beta, distance - beta * 0.5)
    return _reduce(small, options.get("reduction", "mean"))


@_rewrite(F.scaled_dot_product_attention)
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: Any = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """Compute softmax(Q·Kᵀ · scale + mask) · V operator by operator."""
    if enable_gqa:
        raise RuleNotApplicable
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.mT
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    if attn_mask is not None:
        is_bool = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if is_bool else scores + attn_mask
    weights, p = scores.softmax(-1), dropout_p
    return (F.dropout(weights, p) if isinstance(p, Tensor) or p else weights) @ value  # type: ignore[arg-type]


def _reduce(losses: Tensor, reduction: str) -> Any:
    if reduction == "mean":
        return losses.mean()
    if reduction == "sum":
        return losses.sum()
    if reduction == "none":
        return losses
    raise RuleNotApplicable  # PyTorch raises the error

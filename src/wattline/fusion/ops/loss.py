"""Losses for which vmap has no batched form, or that vmap computes in less precision under autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from wattline.fusion.lowering.rules import (
    BatchedTensor,
    RuleNotApplicable,
    Ways,
    expand_to_members,
    lowering_rule,
    rewrite_rule,
)
from wattline.fusion.torch_internals import tree_flatten, tree_map_only


@lowering_rule(F.cross_entropy, description="one sum over the samples of all members")
def cross_entropy(
    size: int,
    ways: Ways,
    input: Tensor | BatchedTensor,
    target: Tensor | BatchedTensor,
    weight: Any = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> BatchedTensor:
    """Compute −Σ log p of the target classes of each member, divided by their number for "mean"."""
    is_plain = weight is None and size_average is None and reduce is None and label_smoothing == 0.0
    if not is_plain or reduction not in ("mean", "sum") or not isinstance(input, BatchedTensor):
        raise RuleNotApplicable
    classes = target.values if isinstance(target, BatchedTensor) else target
    if classes.is_floating_point() or input.ndim < 2 or classes.dim() == 0:
        raise RuleNotApplicable  # probabilities of classes, or one sample without a dimension for samples
    logits, y = input.members_first, expand_to_members(target, size).members_first
    if _loses_precision(logits):
        logits = logits.float()
    losses = F.cross_entropy(
        logits.flatten(0, 1), y.flatten(0, 1), ignore_index=ignore_index, reduction="none"
    )
    sums = losses.view(size, -1).sum(1)
    if reduction == "mean":
        is_own = isinstance(target, BatchedTensor)
        sums = sums / ((y.flatten(1) != ignore_index).sum(1) if is_own else (classes != ignore_index).sum())
    return BatchedTensor(sums, 0)


@rewrite_rule(F.kl_div, description="the same sums in simpler operators")
def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """Compute Σ p · (log p − log q)."""
    if size_average is not None or reduce is not None or reduction not in ("none", "sum", "batchmean"):
        raise RuleNotApplicable  # PyTorch handles these arguments
    if _loses_precision(input, target):
        input, target = input.float(), target.float()
    terms = target.exp() * (target - input) if log_target else torch.xlogy(target, target) - target * input
    if reduction == "none":
        return terms
    return terms.sum() / (input.shape[0] if reduction == "batchmean" and input.dim() else 1)


def _loses_precision(*args: Any) -> bool:
    """Return whether autocast is on and some arguments have half precision, which losses must not."""
    tensors = [leaf for leaf in tree_flatten(args)[0] if isinstance(leaf, Tensor)]
    return any(
        tensor.dtype in (torch.bfloat16, torch.float16) and torch.is_autocast_enabled(tensor.device.type)
        for tensor in tensors
    )


def _compute_in_float32(loss: Callable[..., Tensor]) -> None:
    """Register a rule that converts the arguments of *loss* as autocast does outside of vmap.

    vmap takes these losses apart before autocast sees them, and the parts would run in half precision.
    """

    def rewritten(*args: Any, **kwargs: Any) -> Tensor:
        if not _loses_precision(args, kwargs):
            raise RuleNotApplicable
        args, kwargs = tree_map_only(
            Tensor, lambda t: t.float() if t.is_floating_point() else t, (args, kwargs)
        )
        return loss(*args, **kwargs)

    rewrite_rule(loss, description="by vmap, in float32 under autocast")(rewritten)


for _loss in (
    F.binary_cross_entropy_with_logits,
    F.cosine_embedding_loss,
    F.cross_entropy,
    F.hinge_embedding_loss,
    F.l1_loss,
    F.margin_ranking_loss,
    F.nll_loss,
    F.poisson_nll_loss,
    F.triplet_margin_loss,
):
    _compute_in_float32(_loss)

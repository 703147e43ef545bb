"""Losses for which vmap has no batched form."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from wattline.fusion.lowering.rules import RuleNotApplicable, rewrite_rule


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
    terms = target.exp() * (target - input) if log_target else torch.xlogy(target, target) - target * input
    if reduction == "none":
        return terms
    return terms.sum() / (input.shape[0] if reduction == "batchmean" and input.dim() else 1)

"""Switches of autograd, which vmap refuses although they are those of the stacked tensor."""

from __future__ import annotations

from torch import Tensor

from wattline.fusion.lowering.rules import BatchedTensor, RuleNotApplicable, Ways, lowering_rule


@lowering_rule(Tensor.requires_grad_, description="the switch of the stacked tensor")
def requires_grad_(
    size: int, ways: Ways, input: Tensor | BatchedTensor, requires_grad: bool = True
) -> BatchedTensor:
    """Switch gradients on or off; Hugging Face does so to recompute parts after frozen embeddings."""
    if not isinstance(input, BatchedTensor):
        raise RuleNotApplicable
    return BatchedTensor(input.values.requires_grad_(requires_grad), input.member_dim)

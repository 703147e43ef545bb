"""Attention of all members: projections as linear layers, heads of all members side by side."""

from __future__ import annotations

import math
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
from wattline.fusion.ops.dropout import drop


@lowering_rule(F.scaled_dot_product_attention, description="one attention over the samples of all members")
def scaled_dot_product_attention(
    size: int,
    ways: Ways,
    query: Tensor | BatchedTensor,
    key: Tensor | BatchedTensor,
    value: Tensor | BatchedTensor,
    attn_mask: Tensor | BatchedTensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> BatchedTensor:
    """Compute the attention of all members as [B·N, H, L, D]."""
    q, k, v = (expand_to_members(t, size).members_first for t in (query, key, value))
    if q.dim() != 5:
        raise RuleNotApplicable
    if dropout_p and attn_mask is None and not is_causal and not enable_gqa:
        scores = (q * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)) @ k.mT
        return BatchedTensor(drop(scores.softmax(-1), dropout_p) @ v, 0)
    mask = attn_mask
    if mask is not None:
        own = expand_to_members(mask, size).members_first
        while own.dim() < 5:
            own = own.unsqueeze(1)
        mask = own.expand(size, q.shape[1], *own.shape[2:]).flatten(0, 1)
    y = F.scaled_dot_product_attention(
        q.flatten(0, 1),
        k.flatten(0, 1),
        v.flatten(0, 1),
        mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )
    return BatchedTensor(y.unflatten(0, (size, -1)), 0)


@rewrite_rule(
    F.multi_head_attention_forward,
    description="projections as batched matrix products, heads of all members side by side",
)
def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute softmax(Q·Kᵀ / √D + mask) · V for every head, from [L, N, E] to [L, N, E]."""
    unsupported = (bias_k, bias_v, static_k, static_v)
    if query.dim() != 3 or add_zero_attn or any(t is not None for t in unsupported):
        raise RuleNotApplicable
    if is_causal and attn_mask is None:
        raise RuleNotApplicable  # PyTorch raises the error
    q, k, v = _project_inputs(
        (query, key, value),
        in_proj_weight,
        in_proj_bias,
        (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None,
    )
    samples, length = q.shape[0], q.shape[1]

    def heads(t: Tensor) -> Tensor:
        return t.reshape(samples, t.shape[1], num_heads, -1).transpose(1, 2)

    q, k, v = heads(q), heads(k), heads(v)
    use_causal_hint = (
        is_causal and key_padding_mask is None and not need_weights
    )  # PyTorch, too, then ignores the mask
    attn_mask = None if use_causal_hint else attn_mask
    mask = _merge_masks(attn_mask, key_padding_mask, samples, num_heads, q.dtype)
    drop = dropout_p if training else 0.0
    if need_weights:
        scores = (q / math.sqrt(q.shape[-1])) @ k.mT
        weights = F.softmax(scores if mask is None else scores + mask, dim=-1)
        weights = F.dropout(weights, drop) if isinstance(drop, Tensor) or drop else weights
        mixed = weights @ v
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, mask, drop, use_causal_hint)
    merged_heads = mixed.transpose(1, 2).reshape(samples, length, -1)
    out = F.linear(merged_heads, out_proj_weight, out_proj_bias).transpose(0, 1)
    if not need_weights:
        return out, None
    return out, weights.mean(dim=1) if average_attn_weights else weights


def _project_inputs(
    inputs: tuple[Tensor, Tensor, Tensor], weight: Tensor | None, bias: Tensor | None, separate: Any
) -> tuple[Tensor, ...]:
    """Return queries, keys and values [N, L, E], from one product if they have one input."""
    query, key, value = inputs
    if separate is None and query is key and key is value:
        assert weight is not None
        return F.linear(query.transpose(0, 1), weight, bias).chunk(3, dim=-1)
    if separate is not None:
        weights = separate
    else:
        assert weight is not None
        weights = weight.chunk(3)
    biases = (None, None, None) if bias is None else bias.chunk(3)
    if separate is None and key is value:
        assert weight is not None
        size = query.shape[-1]
        parts = (None, None) if bias is None else (bias[:size], bias[size:])
        q = F.linear(query.transpose(0, 1), weight[:size], parts[0])
        return q, *F.linear(key.transpose(0, 1), weight[size:], parts[1]).chunk(2, dim=-1)
    return tuple(F.linear(t.transpose(0, 1), w, b) for t, w, b in zip(inputs, weights, biases, strict=True))


def _merge_masks(
    attention: Tensor | None, padding: Tensor | None, samples: int, heads: int, dtype: torch.dtype
) -> Tensor | None:
    """Return the mask to add to the scores [N, H, L, S]; None without masks."""

    def to_additive(mask: Tensor) -> Tensor:
        if mask.dtype != torch.bool:
            if mask.dtype != dtype:
                raise RuleNotApplicable  # PyTorch raises the error
            return mask
        return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)

    merged = None
    if attention is not None:
        merged = to_additive(attention)
        if merged.dim() == 3:
            merged = merged.reshape(samples, heads, *merged.shape[1:])
    if padding is not None:
        pads = to_additive(padding).reshape(samples, 1, 1, -1)
        merged = pads if merged is None else merged + pads
    return merged

"""Cases of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from support.fusion_equality import normal_tensor
from support.operator_cases.base import CustomCall, case


def attention_module(call: Callable[..., Any], **options: Any) -> Callable[[], nn.Module]:
    return lambda: CustomCall(nn.MultiheadAttention(4, 2, **options), call)


PADS = torch.tensor([[False, False, True], [False, False, False]])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(3, dtype=torch.float64)
SOFT = normal_tensor(3, 3, seed=7)
SOFT3 = normal_tensor(4, 3, 3, seed=8)


def self_attention(**kwargs: Any) -> Callable[..., Any]:
    return lambda m, x: m(x, x, x, **kwargs)


ATTENTION = [
    case("self-attention", attention_module(self_attention()), normal_tensor(3, 2, 4)),
    case(
        "self-attention, batch first",
        attention_module(self_attention(), batch_first=True),
        normal_tensor(2, 3, 4),
    ),
    case(
        "without weights",
        attention_module(self_attention(need_weights=False), batch_first=True),
        normal_tensor(2, 3, 4),
    ),
    case(
        "with the weights of each head",
        attention_module(self_attention(average_attn_weights=False), batch_first=True),
        normal_tensor(2, 3, 4),
    ),
    *(
        case(
            f"{name}, weights {need}",
            attention_module(self_attention(need_weights=need, **kwargs), batch_first=True),
            normal_tensor(2, 3, 4),
        )
        for need in (True, False)
        for name, kwargs in (
            ("padding", {"key_padding_mask": PADS}),
            ("padding as numbers", {"key_padding_mask": normal_tensor(2, 3, seed=3)}),
            ("a mask", {"attn_mask": SOFT}),
            ("a mask of yes and no", {"attn_mask": CAUSAL != 0}),
            ("a mask of each head", {"attn_mask": SOFT3}),
            ("both masks", {"attn_mask": SOFT3, "key_padding_mask": normal_tensor(2, 3, seed=3)}),
            ("a causal mask", {"attn_mask": CAUSAL, "is_causal": True}),
            (
                "a causal mask and padding",
                {"attn_mask": CAUSAL != 0, "is_causal": True, "key_padding_mask": PADS},
            ),
            ("a causal hint with another mask", {"attn_mask": SOFT, "is_causal": True}),
        )
    ),
    case(
        "cross-attention",
        attention_module(lambda m, x, y: m(x, y, y)),
        normal_tensor(3, 2, 4),
        normal_tensor(5, 2, 4),
    ),
    case(
        "cross-attention, without weights",
        attention_module(lambda m, x, y: m(x, y, y, need_weights=False)),
        normal_tensor(3, 2, 4),
        normal_tensor(5, 2, 4),
    ),
    case(
        "three inputs",
        attention_module(lambda m, x, y, z: m(x, y, z)),
        normal_tensor(3, 2, 4),
        normal_tensor(5, 2, 4),
        normal_tensor(5, 2, 4, seed=1),
    ),
    case(
        "keys and values of other widths",
        attention_module(lambda m, x, y, z: m(x, y, z), kdim=3, vdim=5),
        normal_tensor(3, 2, 4),
        normal_tensor(6, 2, 3),
        normal_tensor(6, 2, 5),
    ),
    case("without bias", attention_module(self_attention(), bias=False), normal_tensor(3, 2, 4)),
    case(
        "cross-attention without bias",
        attention_module(lambda m, x, y: m(x, y, y), bias=False),
        normal_tensor(3, 2, 4),
        normal_tensor(5, 2, 4),
    ),
    case(
        "with bias in keys and values",
        attention_module(self_attention(), add_bias_kv=True),
        normal_tensor(3, 2, 4),
    ),
    case(
        "with zero attention", attention_module(self_attention(), add_zero_attn=True), normal_tensor(3, 2, 4)
    ),
    case(
        "with both and padding",
        attention_module(self_attention(key_padding_mask=PADS), add_zero_attn=True, add_bias_kv=True),
        normal_tensor(3, 2, 4),
    ),
    case("of one sample", attention_module(self_attention()), normal_tensor(3, 4)),
    case(
        "evaluated",
        attention_module(self_attention(), batch_first=True),
        normal_tensor(2, 3, 4),
        evaluate=True,
    ),
    case(
        "evaluated without weights",
        attention_module(self_attention(need_weights=False), batch_first=True),
        normal_tensor(2, 3, 4),
        evaluate=True,
    ),
    *(
        case(
            f"dot-product attention {name}",
            lambda kwargs=kwargs: CustomCall(
                nn.Linear(4, 12),
                lambda m, x, kwargs=kwargs: F.scaled_dot_product_attention(
                    *m(x).reshape(2, 3, 3, 2, 2).permute(2, 0, 3, 1, 4), **kwargs
                ),
            ),
            normal_tensor(2, 3, 4),
        )
        for name, kwargs in (
            ("plain", {}),
            ("causal", {"is_causal": True}),
            ("scaled", {"scale": 0.3}),
            ("masked", {"attn_mask": CAUSAL}),
            ("masked by yes and no", {"attn_mask": CAUSAL == 0}),
            ("masked per head", {"attn_mask": normal_tensor(2, 3, 3)}),
            ("masked per sample", {"attn_mask": normal_tensor(2, 1, 3, 3)}),
        )
    ),
    case(
        "dot-product attention without heads",
        lambda: CustomCall(nn.Linear(4, 12), lambda m, x: F.scaled_dot_product_attention(*m(x).chunk(3, -1))),
        normal_tensor(2, 3, 4),
    ),
    case(
        "dot-product attention of grouped queries",
        lambda: CustomCall(
            nn.Linear(4, 16),
            lambda m, x: F.scaled_dot_product_attention(
                m(x)[..., :8].reshape(2, 3, 4, 2).transpose(1, 2),
                *m(x)[..., 8:].reshape(2, 3, 2, 2, 2).permute(2, 0, 3, 1, 4),
                enable_gqa=True,
            ),
        ),
        normal_tensor(2, 3, 4),
    ),
]

"""Cases of transformer layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from support.fusion_equality import normal_tensor
from support.operator_cases.attention import CAUSAL, PADS
from support.operator_cases.base import case


def encoder(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, **options)


def stack(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, **options)


TRANSFORMERS = [
    *(
        case(
            f"encoder layer {options}, evaluated {evaluate}",
            encoder(**options),
            normal_tensor(2, 3, 4),
            evaluate=evaluate,
        )
        for options in ({}, {"norm_first": True}, {"activation": "gelu"}, {"bias": False})
        for evaluate in (False, True)
    ),
    *(
        case(
            f"encoder {list(kwargs)}, evaluated {evaluate}",
            lambda: stack(enable_nested_tensor=False),
            normal_tensor(2, 3, 4),
            kwargs=kwargs,
            evaluate=evaluate,
        )
        for kwargs in (
            {},
            {"mask": CAUSAL},
            {"src_key_padding_mask": PADS},
            {"mask": CAUSAL, "is_causal": True},
        )
        for evaluate in (False, True)
    ),
    case(
        "encoder with nested tensors, evaluated",
        stack,
        normal_tensor(2, 3, 4),
        kwargs={"src_key_padding_mask": PADS},
        evaluate=True,
    ),
    case(
        "encoder with a last norm",
        lambda: stack(norm=nn.LayerNorm(4), enable_nested_tensor=False),
        normal_tensor(2, 3, 4),
    ),
    *(
        case(
            f"decoder layer {options}",
            lambda options=options: nn.TransformerDecoderLayer(4, 2, 6, dropout=0.0, **options),
            normal_tensor(3, 2, 4),
            normal_tensor(5, 2, 4),
            kwargs={"tgt_mask": CAUSAL},
        )
        for options in ({}, {"norm_first": True, "activation": "gelu"})
    ),
    case(
        "decoder",
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 6, dropout=0.0), 2),
        normal_tensor(3, 2, 4),
        normal_tensor(5, 2, 4),
    ),
    *(
        case(
            f"transformer, evaluated {evaluate}",
            lambda: nn.Transformer(4, 2, 1, 1, 6, dropout=0.0, batch_first=True),
            normal_tensor(2, 3, 4),
            normal_tensor(2, 5, 4),
            evaluate=evaluate,
        )
        for evaluate in (False, True)
    ),
]
for _case in TRANSFORMERS:
    _case.options.setdefault("kwargs", {})

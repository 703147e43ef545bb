"""Test cases of every operator and its options, by kind."""

from __future__ import annotations

from support.operator_cases.activation import ACTIVATIONS
from support.operator_cases.attention import ATTENTION
from support.operator_cases.convolution import CONVOLUTIONS
from support.operator_cases.embedding import EMBEDDINGS
from support.operator_cases.linear import LINEAR
from support.operator_cases.norm import NORMS
from support.operator_cases.pool import POOLS
from support.operator_cases.recurrent import RECURRENT
from support.operator_cases.shape import SHAPES
from support.operator_cases.transformer import TRANSFORMERS

ALL_CASES = [
    *LINEAR,
    *CONVOLUTIONS,
    *NORMS,
    *EMBEDDINGS,
    *POOLS,
    *SHAPES,
    *ATTENTION,
    *TRANSFORMERS,
    *RECURRENT,
    *ACTIVATIONS,
]

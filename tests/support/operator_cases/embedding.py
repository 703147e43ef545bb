"""Cases of embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from support.fusion_equality import integer_tensor
from support.operator_cases.base import CustomCall, case

EMBEDDINGS = [
    case("embedding", lambda: nn.Embedding(5, 3), integer_tensor(5, 4, 6)),
    case("embedding of one index", lambda: nn.Embedding(5, 3), torch.tensor(2)),
    case("embedding with padding", lambda: nn.Embedding(5, 3, padding_idx=2), integer_tensor(5, 4, 6)),
    case(
        "embedding with padding at the end",
        lambda: nn.Embedding(5, 3, padding_idx=-1),
        integer_tensor(5, 4, 6),
    ),
    case(
        "embedding function with padding at the end",
        lambda: CustomCall(nn.Embedding(5, 3), lambda m, i: F.embedding(i, m.weight, padding_idx=-1)),
        integer_tensor(5, 4, 6),
    ),
    case(
        "embedding by frequency", lambda: nn.Embedding(5, 3, scale_grad_by_freq=True), integer_tensor(5, 4, 6)
    ),
    case(
        "embedding by frequency with padding",
        lambda: nn.Embedding(5, 3, scale_grad_by_freq=True, padding_idx=0),
        integer_tensor(5, 4, 6),
    ),
    case("embedding of 32-bit indices", lambda: nn.Embedding(5, 3), integer_tensor(5, 4, 6).int()),
    case(
        "embedding twice",
        lambda: CustomCall(nn.Embedding(5, 3), lambda m, i: m(i) @ m.weight.T),
        integer_tensor(5, 4),
    ),
    case(
        "one-hot",
        lambda: CustomCall(nn.Linear(5, 3), lambda m, i: m(F.one_hot(i, 5).double())),
        integer_tensor(5, 4),
    ),
    case(
        "embedding of limited norm",
        lambda: nn.Embedding(5, 3, max_norm=0.5),
        integer_tensor(5, 4, 6),
        warning="embedding_renorm_",
    ),
    case("embedding with sparse gradients", lambda: nn.Embedding(5, 3, sparse=True), integer_tensor(5, 4, 6)),
    case("bag of rows", lambda: nn.EmbeddingBag(5, 3), integer_tensor(5, 4, 6), warning="embedding_bag"),
    case(
        "bag of rows, summed",
        lambda: nn.EmbeddingBag(5, 3, mode="sum", padding_idx=1),
        integer_tensor(5, 4, 6),
        warning="embedding_bag",
    ),
    case(
        "bag of rows, largest",
        lambda: nn.EmbeddingBag(5, 3, mode="max"),
        integer_tensor(5, 4, 6),
        warning="embedding_bag",
    ),
    case(
        "bag of rows with offsets",
        lambda: CustomCall(nn.EmbeddingBag(5, 3), lambda m, i: m(i, torch.tensor([0, 2]))),
        integer_tensor(5, 6),
        warning="embedding_bag",
    ),
]

"""HFTA's way of fusing: operators written by hand for B members.

Written from the rules of the paper (MLSys'21, arXiv 2102.02344), not from its code. Modules take *B* in the
constructor. Every parameter has a leading axis of B members. Convolutions, batch norm and pooling work on
[N, B*C, …], linear layers, layer norm, embedding and attention on [B, N, …]; `to_linear` and `to_conv`
convert. Everything runs eagerly, like the original. Where the paper leaves a choice, the faster one is
taken, so that the baseline is not weak: linear weights are stored as [B, in, out], so that their gradient
needs no copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def to_conv(x: Tensor) -> Tensor:
    """[B, N, C, …] → [N, B*C, …]."""
    return x.transpose(0, 1).flatten(1, 2)


def to_linear(x: Tensor, members: int) -> Tensor:
    """[N, B*C, …] → [B, N, C*…]."""
    return x.reshape(x.shape[0], members, -1).transpose(0, 1)


def _stack(layers: Sequence[nn.Module], name: str) -> nn.Parameter:
    return nn.Parameter(torch.stack([layer.get_parameter(name).detach() for layer in layers]))


class HandLinear(nn.Module):
    """`nn.Linear` of B members as one baddbmm: [B, N, in] → [B, N, out]."""

    transposed = ("weight",)  # stored as [B, in, out]

    def __init__(self, B: int, features: int, out_features: int) -> None:  # noqa: N803
        super().__init__()
        layers = [nn.Linear(features, out_features) for _ in range(B)]
        self.weight = nn.Parameter(_stack(layers, "weight").detach().transpose(1, 2).contiguous())
        self.bias = _stack(layers, "bias")

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, in] → [B, N, out]."""
        return torch.baddbmm(self.bias.unsqueeze(1), x, self.weight)


class _HandConv(nn.Module):
    """A grouped convolution with a group for each group of each member."""

    layer: type[nn.Module]

    def __init__(self, B: int, channels: int, out_channels: int, kernel: int, padding: int = 0) -> None:  # noqa: N803
        super().__init__()
        layers = [self.layer(channels, out_channels, kernel) for _ in range(B)]
        self.weight, self.bias = _stack(layers, "weight"), _stack(layers, "bias")
        self.members, self.padding = B, padding


class HandConv1d(_HandConv):
    """`nn.Conv1d` of B members."""

    layer = nn.Conv1d

    def forward(self, x: Tensor) -> Tensor:
        """[N, B*C, L] → [N, B*C', L']."""
        weight, bias = self.weight.flatten(0, 1), self.bias.flatten()
        return F.conv1d(x, weight, bias, padding=self.padding, groups=self.members)


class HandConv2d(_HandConv):
    """`nn.Conv2d` of B members."""

    layer = nn.Conv2d

    def forward(self, x: Tensor) -> Tensor:
        """[N, B*C, H, W] → [N, B*C', H', W']."""
        weight, bias = self.weight.flatten(0, 1), self.bias.flatten()
        return F.conv2d(x, weight, bias, padding=self.padding, groups=self.members)


class HandBatchNorm(nn.Module):
    """`nn.BatchNorm1d` and `nn.BatchNorm2d` of B members: one batch norm over B*C channels."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, B: int, channels: int) -> None:  # noqa: N803
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(B, channels)), nn.Parameter(torch.zeros(B, channels))
        self.register_buffer("running_mean", torch.zeros(B, channels))
        self.register_buffer("running_var", torch.ones(B, channels))

    def forward(self, x: Tensor) -> Tensor:
        """[N, B*C, …] → the same."""
        mean, variance = self.running_mean.view(-1), self.running_var.view(-1)
        return F.batch_norm(x, mean, variance, self.weight.view(-1), self.bias.view(-1), self.training)


class HandLayerNorm(nn.Module):
    """`nn.LayerNorm` of B members: normalise, then scale and shift by member."""

    def __init__(self, B: int, features: int) -> None:  # noqa: N803
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(B, features)), nn.Parameter(torch.zeros(B, features))

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, F] → the same."""
        x = F.layer_norm(x, x.shape[-1:])
        return torch.addcmul(self.bias.unsqueeze(1), x, self.weight.unsqueeze(1))


class HandEmbedding(nn.Module):
    """`nn.Embedding` of B members: one table of B*V rows, member b reads rows index + b*V."""

    offsets: Tensor

    def __init__(self, B: int, rows: int, features: int) -> None:  # noqa: N803
        super().__init__()
        self.weight = _stack([nn.Embedding(rows, features) for _ in range(B)], "weight")
        self.register_buffer("offsets", (torch.arange(B) * rows)[:, None, None], persistent=False)

    def forward(self, index: Tensor) -> Tensor:
        """[B, N, L], or [N, L] for all members, → [B, N, L, E]."""
        return F.embedding(index + self.offsets, self.weight.flatten(0, 1))


class HandMultiheadAttention(nn.Module):
    """`nn.MultiheadAttention` of a sequence with itself, of B members: batched products over B*N*H heads."""

    transposed = ("in_proj_weight",)  # stored as [B, in, out]

    def __init__(self, B: int, features: int, heads: int, dropout: float) -> None:  # noqa: N803
        super().__init__()
        layers = [nn.MultiheadAttention(features, heads) for _ in range(B)]
        self.in_proj_weight = nn.Parameter(
            _stack(layers, "in_proj_weight").detach().transpose(1, 2).contiguous()
        )
        self.in_proj_bias = _stack(layers, "in_proj_bias")
        self.out_proj = HandLinear(B, features, features)
        self.heads, self.dropout = heads, dropout

    def forward(self, x: Tensor, length: int) -> Tensor:
        """[B, N*length, E] → the same."""
        members, rows, features = x.shape
        projected = torch.baddbmm(self.in_proj_bias.unsqueeze(1), x, self.in_proj_weight)
        # [B*N, L, 3, H, E/H] → [3, B*N, H, L, E/H]
        parts = projected.view(-1, length, 3, self.heads, features // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = (part.flatten(0, 1) for part in parts.unbind(0))
        scores = torch.bmm(query * (1 / math.sqrt(query.shape[-1])), key.transpose(1, 2)).softmax(-1)
        if self.dropout:
            scores = F.dropout(scores, self.dropout, self.training)
        mixed = torch.bmm(scores, value).view(-1, self.heads, length, features // self.heads)
        return self.out_proj(mixed.transpose(1, 2).reshape(members, rows, features))


class HandEncoderLayer(nn.Module):
    """`nn.TransformerEncoderLayer` of B members, with the norm after each part and ReLU."""

    def __init__(self, B: int, features: int, heads: int, hidden: int, dropout: float = 0.1) -> None:  # noqa: N803
        super().__init__()
        self.self_attn = HandMultiheadAttention(B, features, heads, dropout)
        self.linear1, self.linear2 = HandLinear(B, features, hidden), HandLinear(B, hidden, features)
        self.norm1, self.norm2 = HandLayerNorm(B, features), HandLayerNorm(B, features)
        self.drop, self.drop1, self.drop2 = nn.Dropout(dropout), nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x: Tensor, length: int) -> Tensor:
        """[B, N*length, E] → the same."""
        x = self.norm1(x + self.drop1(self.self_attn(x, length)))
        return self.norm2(x + self.drop2(self.linear2(self.drop(F.relu(self.linear1(x))))))


class HandEncoderStack(nn.Module):
    """`nn.TransformerEncoder` of B members."""

    def __init__(self, B: int, layers: int, features: int, heads: int, hidden: int) -> None:  # noqa: N803
        super().__init__()
        self.layers = nn.ModuleList(HandEncoderLayer(B, features, heads, hidden) for _ in range(layers))

    def forward(self, x: Tensor, length: int) -> Tensor:
        """[B, N*length, E] → the same."""
        for layer in self.layers:
            x = layer(x, length)
        return x


class ToLinear(nn.Module):
    """`nn.Flatten` between the layouts: [N, B*C, …] → [B, N, C*…]."""

    def __init__(self, B: int) -> None:  # noqa: N803
        super().__init__()
        self.members = B

    def forward(self, x: Tensor) -> Tensor:
        """[N, B*C, …] → [B, N, C*…]."""
        return to_linear(x, self.members)

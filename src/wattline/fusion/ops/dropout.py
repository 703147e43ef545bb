"""Dropout of all members, each with its own mask."""

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
)
from wattline.fusion.lowering.target import is_for_compiler
from wattline.fusion.torch_internals import get_proxy_mode


@lowering_rule(F.dropout, description="one dropout with a mask of its own for each member")
def dropout(
    size: int,
    ways: Ways,
    input: Tensor | BatchedTensor,
    p: float | BatchedTensor = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> BatchedTensor | Tensor:
    """Draw random numbers for all members together."""
    if not training or p == 0:
        return input
    if inplace and isinstance(input, Tensor):
        raise RuleNotApplicable
    own = expand_to_members(input, size)
    if isinstance(p, BatchedTensor):
        if inplace:
            raise RuleNotApplicable
        return BatchedTensor(_drop_by_member(own.values, _lift(p, own)), own.member_dim)
    if inplace:
        return BatchedTensor(F.dropout(own.values, p, True, True), own.member_dim)
    return BatchedTensor(drop(own.values, p), own.member_dim)


def drop(x: Tensor, p: float) -> Tensor:
    """Apply dropout; for a compiler with random numbers that it can fuse into other loops."""
    if p == 1:
        return x * 0.0
    if not is_for_compiler() or x.numel() >= 2**31:
        mask = torch.rand(x.shape, device=x.device) >= p  # in float32: 16 bits are too few for small p
    else:
        mask = _hash_random_bits(x) >= int(p * 2**31)
    return x * mask * (1.0 / (1.0 - p))


def _lift(p: BatchedTensor, x: BatchedTensor) -> Tensor:
    """Return the probabilities in float32, with dimensions of length 1 beside that of the members."""
    rows = p.members_first
    if get_proxy_mode() is None and not bool(((rows >= 0) & (rows <= 1)).all()):
        raise RuleNotApplicable  # PyTorch raises the error
    return rows.float().reshape([-1 if at == x.member_dim else 1 for at in range(x.values.dim())])


def _drop_by_member(x: Tensor, p: Tensor) -> Tensor:
    """Apply dropout with the probabilities *p*, which broadcast against *x*."""
    if not is_for_compiler() or x.numel() >= 2**31:
        mask = torch.rand(x.shape, device=x.device) >= p
    else:
        mask = _hash_random_bits(x) >= (p.double() * 2**31).to(torch.int64)
    return x * mask * _scale(p).to(x.dtype)


def _scale(p: Tensor) -> Tensor:
    """Return 1 / (1 − p), and 0 for p = 1."""
    return torch.where(p < 1, 1 / (1 - p), torch.zeros_like(p))


def _hash_random_bits(x: Tensor) -> Tensor:
    """Return a number below 2^31 for each entry of x: its index and two keys, mixed as in MurmurHash3.

    PyTorch's generators cost six times as much on a CPU, more than the rest of some transformers. The keys
    come from PyTorch's generator, so that seeds have their usual effect.
    """
    keys = torch.randint(-(2**31), 2**31, (2,), device=x.device).to(torch.int32)
    h = torch.arange(x.numel(), device=x.device, dtype=torch.int32).reshape(x.shape) * -1640531527 + keys[0]
    h = (h ^ ((h >> 16) & 0xFFFF)) * -2048144789
    h = (h ^ ((h >> 13) & 0x7FFFF) ^ keys[1]) * -1028477387
    return (h ^ ((h >> 16) & 0xFFFF)) & 0x7FFFFFFF


def _register_channel_dropout(function: Callable[..., Tensor], spatial: int) -> None:
    @lowering_rule(function, description="one dropout of channels with a mask of its own for each member")
    def rule(
        size: int,
        ways: Ways,
        input: Tensor | BatchedTensor,
        p: float | BatchedTensor = 0.5,
        training: bool = True,
        inplace: Any = False,
    ) -> BatchedTensor | Tensor:
        """Draw a random number per sample, member and channel."""
        if not training or p == 0:
            return input
        own = expand_to_members(input, size)
        if own.ndim != spatial + 2 or inplace:
            raise RuleNotApplicable
        if isinstance(p, BatchedTensor):
            x = own.members_second
            probabilities = _lift(p, BatchedTensor(x, 1))
            mask = torch.rand(x.shape[:3], device=x.device).reshape(*x.shape[:3], *[1] * spatial)
            return BatchedTensor(x * (mask >= probabilities) * _scale(probabilities).to(x.dtype), 1)
        y = function(own.members_second.flatten(1, 2), p, True)
        return BatchedTensor(y.unflatten(1, (size, -1)), 1)


_register_channel_dropout(F.dropout1d, 1)
_register_channel_dropout(F.dropout2d, 2)
_register_channel_dropout(F.dropout3d, 3)

"""Dropout of all members: every member draws its own mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from wattline.fusion.lowering.rules import Declined, Many, Ways, lowers, spread


@lowers(F.dropout, how="one dropout with a mask of its own for each member")
def dropout(
    size: int, ways: Ways, input: Tensor | Many, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Many | Tensor:
    """As many random numbers as all members need together."""
    if not training or p == 0:
        return input
    if inplace and isinstance(input, Tensor):
        raise Declined
    own = spread(input, size)
    if inplace:
        return Many(F.dropout(own.values, p, True, True), own.at)
    return Many(drop(own.values, p), own.at)


def drop(x: Tensor, p: float) -> Tensor:
    """Dropout, by random numbers that compilers can draw inside of other loops, unlike PyTorch's own."""
    if p == 1:
        return x * 0.0
    if get_proxy_mode() is None or x.numel() >= 2**31:
        keeps = torch.rand(x.shape, device=x.device) >= p  # in float32: 16 bits are too few for small p
    else:
        keeps = _mixed(x) >= int(p * 2**31)
    return x * keeps * (1.0 / (1.0 - p))


def _mixed(x: Tensor) -> Tensor:
    """A number below 2^31 for each of x: its place and two keys of this call, mixed as MurmurHash3 ends.

    PyTorch's generators cost six times as much on a CPU, more than all the rest of some transformers. The
    keys are from PyTorch's generator, so that seeds hold.
    """
    keys = torch.randint(-(2**31), 2**31, (2,), device=x.device).to(torch.int32)
    h = torch.arange(x.numel(), device=x.device, dtype=torch.int32).reshape(x.shape) * -1640531527 + keys[0]
    h = (h ^ ((h >> 16) & 0xFFFF)) * -2048144789
    h = (h ^ ((h >> 13) & 0x7FFFF) ^ keys[1]) * -1028477387
    return (h ^ ((h >> 16) & 0xFFFF)) & 0x7FFFFFFF


def _channels(function: Callable[..., Tensor], spatial: int) -> None:
    @lowers(function, how="one dropout of channels with a mask of its own for each member")
    def rule(
        size: int,
        ways: Ways,
        input: Tensor | Many,
        p: float = 0.5,
        training: bool = True,
        inplace: Any = False,
    ) -> Many | Tensor:
        """A random number per sample, member and channel."""
        if not training or p == 0:
            return input
        own = spread(input, size)
        if own.dim != spatial + 2 or inplace:
            raise Declined
        y = function(own.second.flatten(1, 2), p, True)
        return Many(y.unflatten(1, (size, -1)), 1)


_channels(F.dropout1d, 1)
_channels(F.dropout2d, 2)
_channels(F.dropout3d, 3)

"""Building blocks of operator test cases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.fusion_equality import B, normal_tensor
from wattline.fusion import FusionWarning


class CustomCall(nn.Module):
    """A module with a custom call."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self.call = call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(self.module, *args, **kwargs)


class AfterLinear(nn.Module):
    """A module after weights, so that its input differs by member and has a gradient."""

    def __init__(self, module: nn.Module, features: int) -> None:
        super().__init__()
        self.mix = nn.Linear(features, features)
        self.module = module

    def forward(self, x: Tensor) -> Any:
        return self.module(self.mix(x))


@dataclass
class Case:
    name: str
    make: Callable[[], nn.Module]
    args: tuple[Any, ...]
    warning: str = ""  # the module named in a warning as run per member
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def expected_warning(self) -> AbstractContextManager[Any]:
        return pytest.warns(FusionWarning, match=self.warning) if self.warning else nullcontext()


def case(name: str, make: Callable[[], nn.Module], *args: Any, warning: str = "", **options: Any) -> Case:
    return Case(name, make, args, warning, options)


def own_rows(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the same arguments with different values for each member."""

    def rows(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        if t.is_floating_point() and t.isfinite().all():
            return torch.stack([t + 0.1 * normal_tensor(*t.shape, seed=m) for m in range(B)])
        if t.dtype == torch.int64 and t.dim():
            return torch.stack([t, t.flip(0), t.flip(-1)])
        return torch.stack([t] * B)

    return tuple(rows(t) for t in args)


def chain_two(first: Callable[[], nn.Module], second: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(first(), nn.Tanh(), second())

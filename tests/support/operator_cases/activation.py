"""Cases of activation functions."""

from __future__ import annotations

from typing import Any

from torch import nn

from support.fusion_equality import normal_tensor
from support.operator_cases.base import AfterLinear, case


def _constructor_arguments(module: nn.Module) -> dict[str, Any]:
    names = {n: getattr(module, n) for n in type(module).__init__.__annotations__ if hasattr(module, n)}
    return {n: v for n, v in names.items() if isinstance(v, int | float | str | bool)}


_MODULES = [
    nn.CELU(),
    nn.ELU(0.5),
    nn.GELU(),
    nn.GELU("tanh"),
    nn.Hardshrink(),
    nn.Hardsigmoid(),
    nn.Hardswish(),
    nn.Hardtanh(),
    nn.LeakyReLU(0.2),
    nn.LogSigmoid(),
    nn.Mish(),
    nn.PReLU(),
    nn.PReLU(4),
    nn.ReLU(),
    nn.ReLU6(),
    nn.SELU(),
    nn.SiLU(),
    nn.Sigmoid(),
    nn.Softplus(),
    nn.Softshrink(),
    nn.Softsign(),
    nn.Tanh(),
    nn.Tanhshrink(),
    nn.Threshold(0.1, 2.0),
    nn.GLU(),
    nn.Softmax(-1),
    nn.Softmax(0),
    nn.Softmin(1),
    nn.LogSoftmax(1),
    nn.ELU(inplace=True),
    nn.ReLU(inplace=True),
    nn.SiLU(inplace=True),
    nn.LeakyReLU(inplace=True),
    nn.Hardtanh(inplace=True),
    nn.Hardswish(inplace=True),
    nn.Threshold(0, 1, inplace=True),
]

ACTIVATIONS = [
    case(
        f"activation {a}",
        lambda a=a: AfterLinear(type(a)(**_constructor_arguments(a)), 4),
        normal_tensor(5, 4),
    )
    for a in _MODULES
]
ACTIVATIONS += [
    case(
        "softmax of planes",
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.Softmax2d()),
        normal_tensor(3, 2, 4, 4),
    )
]

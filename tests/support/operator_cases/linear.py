"""Cases of linear layers."""

from __future__ import annotations

from torch import nn

from support.fusion_equality import normal_tensor
from support.operator_cases.base import case

LINEAR = [
    case("linear of a batch", lambda: nn.Linear(4, 3), normal_tensor(5, 4)),
    case("linear without bias", lambda: nn.Linear(4, 3, bias=False), normal_tensor(5, 4)),
    case("linear of sequences", lambda: nn.Linear(4, 3), normal_tensor(2, 5, 4)),
    case("linear of images", lambda: nn.Linear(4, 3), normal_tensor(2, 3, 2, 4)),
    case("linear of one sample", lambda: nn.Linear(4, 3), normal_tensor(4)),
    case("linear of nothing", lambda: nn.Linear(4, 3), normal_tensor(0, 4), loss=lambda out: out.sum()),
    case(
        "two linear layers",
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)),
        normal_tensor(5, 4),
    ),
    case("two of one sample", lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), normal_tensor(4)),
    case(
        "two of images",
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2, bias=False)),
        normal_tensor(2, 3, 2, 4),
    ),
    case("bilinear", lambda: nn.Bilinear(4, 3, 2), normal_tensor(5, 4), normal_tensor(5, 3)),
    case(
        "bilinear without bias",
        lambda: nn.Bilinear(4, 3, 2, bias=False),
        normal_tensor(5, 4),
        normal_tensor(5, 3),
    ),
    case("identity", lambda: nn.Sequential(nn.Identity(), nn.Linear(4, 3)), normal_tensor(5, 4)),
]

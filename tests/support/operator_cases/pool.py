"""Cases of pooling and resampling."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from support.fusion_equality import normal_tensor
from support.operator_cases.base import CustomCall, case


def after_conv(module: Callable[[], nn.Module], n: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(getattr(nn, f"Conv{n}d")(2, 4, 2), module())


def build_image(n: int) -> Tensor:
    return normal_tensor(2, 2, *[7, 6, 6][:n])


POOLS = [
    *(
        case(
            f"{kind}{n}d {options}",
            after_conv(lambda k=kind, n=n, options=options: getattr(nn, f"{k}{n}d")(**options), n),
            build_image(n),
        )
        for n in (1, 2, 3)
        for kind, options in (
            ("MaxPool", {"kernel_size": 2}),
            ("MaxPool", {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
            ("MaxPool", {"kernel_size": 2, "dilation": 2}),
            ("MaxPool", {"kernel_size": 2, "return_indices": True}),
            ("AvgPool", {"kernel_size": 2}),
            (
                "AvgPool",
                {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False},
            ),
            ("LPPool", {"norm_type": 2, "kernel_size": 2}),
            ("AdaptiveAvgPool", {"output_size": 2}),
            ("AdaptiveAvgPool", {"output_size": 1}),
            ("AdaptiveMaxPool", {"output_size": 2}),
            ("AdaptiveMaxPool", {"output_size": 2, "return_indices": True}),
        )
    ),
    case(
        "avg pool with a divisor", after_conv(lambda: nn.AvgPool2d(2, divisor_override=3), 2), build_image(2)
    ),
    case(
        "adaptive pool to (None, 2)", after_conv(lambda: nn.AdaptiveAvgPool2d((None, 2)), 2), build_image(2)
    ),
    case("max pool of the input", lambda: nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(2, 3, 1)), build_image(2)),
    case(
        "max pool of one sample",
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.MaxPool2d(2)),
        normal_tensor(2, 6, 6),
    ),
    case(
        "max pool function",
        lambda: CustomCall(nn.Conv2d(2, 3, 2), lambda m, x: torch.max_pool2d(m(x), 2)),
        build_image(2),
    ),
    case(
        "unpooling",
        lambda: CustomCall(
            nn.Conv2d(2, 3, 2), lambda m, x: F.max_unpool2d(*F.max_pool2d(m(x), 2, return_indices=True), 2)
        ),
        normal_tensor(2, 2, 5, 5),
        warning="max_unpool2d",
    ),
    case(
        "fractional max pool",
        after_conv(
            lambda: nn.FractionalMaxPool2d(
                2, output_size=3, _random_samples=torch.full((2, 4, 2), 0.3, dtype=torch.float64)
            ),
            2,
        ),
        build_image(2),
        warning="fractional_max_pool2d",
    ),
]

"""Cases of tensor operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from support.fusion_equality import normal_tensor
from support.operator_cases.base import AfterLinear, CustomCall, case
from support.operator_cases.pool import build_image

SHAPES = [
    case(
        "flatten",
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(27, 2)),
        normal_tensor(3, 2, 4, 4),
    ),
    case(
        "flatten two", lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(2, 3)), normal_tensor(3, 2, 4, 4)
    ),
    case("unflatten", lambda: AfterLinear(nn.Unflatten(1, (2, 3)), 6), normal_tensor(3, 6)),
    case("fold", lambda: AfterLinear(nn.Fold((4, 5), (2, 2)), 12), normal_tensor(3, 8, 12)),
    case(
        "unfold",
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.Unfold(2, padding=1, stride=2)),
        normal_tensor(3, 2, 4, 4),
    ),
    case(
        "pixel shuffle",
        lambda: nn.Sequential(nn.Conv2d(2, 8, 2), nn.PixelShuffle(2)),
        normal_tensor(3, 2, 4, 4),
    ),
    case(
        "pixel unshuffle",
        lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.PixelUnshuffle(2)),
        normal_tensor(3, 2, 4, 4),
    ),
    case(
        "channel shuffle",
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.ChannelShuffle(2)),
        normal_tensor(3, 2, 4, 4),
    ),
    *(
        case(
            f"upsample {mode}",
            lambda mode=mode, n=n, options=options: nn.Sequential(
                getattr(nn, f"Conv{n}d")(2, 3, 2), nn.Upsample(scale_factor=2, mode=mode, **options)
            ),
            build_image(n),
        )
        for mode, n, options in (
            ("nearest", 1, {}),
            ("nearest", 2, {}),
            ("nearest", 3, {}),
            ("linear", 1, {"align_corners": True}),
            ("bilinear", 2, {}),
            ("bilinear", 2, {"align_corners": True}),
            ("bicubic", 2, {}),
            ("trilinear", 3, {}),
        )
    ),
    *(
        case(
            f"interpolate {mode}",
            lambda mode=mode: CustomCall(
                nn.Conv2d(2, 3, 2), lambda m, x: F.interpolate(m(x), size=(4, 9), mode=mode)
            ),
            build_image(2),
        )
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
    ),
    case(
        "interpolate antialiased",
        lambda: CustomCall(
            nn.Conv2d(2, 3, 2), lambda m, x: F.interpolate(m(x), size=(3, 4), mode="bilinear", antialias=True)
        ),
        build_image(2),
    ),
    case(
        "grid sample",
        lambda: CustomCall(
            nn.Conv2d(2, 3, 2),
            lambda m, x: F.grid_sample(
                m(x),
                F.affine_grid(
                    m.weight[:2, 0, :1, :].new_ones(2, 2, 3) * 0.3, [2, 3, 4, 4], align_corners=False
                ),
                align_corners=False,
            ),
        ),
        build_image(2),
        warning="affine_grid_generator",
    ),
    *(
        case(
            f"{kind}{n}d",
            lambda kind=kind, n=n, more=more: nn.Sequential(
                getattr(nn, f"Conv{n}d")(2, 3, 2), getattr(nn, f"{kind}{n}d")(1, *more)
            ),
            build_image(n),
        )
        for kind, more in (
            ("ReflectionPad", ()),
            ("ReplicationPad", ()),
            ("ConstantPad", (0.5,)),
            ("ZeroPad", ()),
            ("CircularPad", ()),
        )
        for n in (1, 2, 3)
    ),
    case(
        "cosine similarity",
        lambda: CustomCall(nn.Linear(4, 3), lambda m, x: F.cosine_similarity(m(x), m(2 - x), dim=1)),
        normal_tensor(5, 4),
    ),
    case(
        "cosine similarity module",
        lambda: CustomCall(
            nn.Sequential(nn.Linear(4, 3), nn.CosineSimilarity()), lambda m, x: m[1](m[0](x), x[:, :3])
        ),
        normal_tensor(5, 4),
    ),
    case(
        "pairwise distance",
        lambda: CustomCall(nn.Linear(4, 3), lambda m, x: nn.PairwiseDistance()(m(x), m(2 - x))),
        normal_tensor(5, 4),
    ),
    case(
        "cdist",
        lambda: CustomCall(nn.Linear(4, 3), lambda m, x: torch.cdist(m(x), m(2 - x))),
        normal_tensor(5, 4),
    ),
    case(
        "normalize", lambda: CustomCall(nn.Linear(4, 3), lambda m, x: F.normalize(m(x))), normal_tensor(5, 4)
    ),
    case(
        "sort, gather, topk",
        lambda: CustomCall(
            nn.Linear(4, 3), lambda m, x: (m(x).sort(1), m(x).topk(2, 0), m(x).gather(1, x[:, :2].argsort(1)))
        ),
        normal_tensor(5, 4),
    ),
    case(
        "cumsum, flip, roll",
        lambda: CustomCall(
            nn.Linear(4, 3), lambda m, x: (m(x).cumsum(0), m(x).flip(1), m(x).roll(1, 0), m(x).tril())
        ),
        normal_tensor(5, 4),
    ),
    case(
        "einsum, matmul",
        lambda: CustomCall(
            nn.Linear(4, 3),
            lambda m, x: (
                torch.einsum("ni,oi,mi->nmo", x, m.weight, x),
                m(x) @ m.weight,
                torch.outer(m.bias, m.bias),
            ),
        ),
        normal_tensor(5, 4),
    ),
    case(
        "logsumexp, std, norm",
        lambda: CustomCall(
            nn.Linear(4, 3),
            lambda m, x: (m(x).logsumexp(0), m(x).std(1), m(x).norm(), m(x).var(0, unbiased=False)),
        ),
        normal_tensor(5, 4),
    ),
    case(
        "where, clamp, masked_fill",
        lambda: CustomCall(
            nn.Linear(4, 3),
            lambda m, x: (
                torch.where(m(x) > 0, m(x), m.bias),
                m(x).clamp(-0.5, 0.5),
                m(x).masked_fill(m(x) > 0.2, 3.0),
            ),
        ),
        normal_tensor(5, 4),
    ),
    case(
        "index_select, take_along_dim, scatter",
        lambda: CustomCall(
            nn.Linear(4, 3),
            lambda m, x: (
                m(x).index_select(0, torch.tensor([1, 1, 0])),
                torch.zeros(5, 3, dtype=x.dtype).scatter_add(1, m(x).argsort(1), m(x)),
                m(x)[[0, 2], 1:],
            ),
        ),
        normal_tensor(5, 4),
    ),
    case(
        "inverse, det, solve",
        lambda: CustomCall(
            nn.Linear(4, 4),
            lambda m, x: (
                torch.linalg.inv(m.weight),
                torch.linalg.det(m.weight),
                torch.linalg.solve(m.weight + 3 * torch.eye(4, dtype=x.dtype), x.T),
            ),
        ),
        normal_tensor(5, 4),
    ),
]

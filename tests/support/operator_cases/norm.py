"""Cases of normalisation layers."""

from __future__ import annotations

from torch import nn

from support.fusion_equality import normal_tensor
from support.operator_cases.base import AfterLinear, case

NORMS = [
    case("batch norm of features", lambda: nn.BatchNorm1d(4), normal_tensor(6, 4)),
    case("batch norm behind weights", lambda: AfterLinear(nn.BatchNorm1d(4), 4), normal_tensor(6, 4)),
    case("batch norm of sequences", lambda: nn.BatchNorm1d(4), normal_tensor(6, 4, 3)),
    case(
        "batch norm of sequences behind a conv",
        lambda: nn.Sequential(nn.Conv1d(2, 4, 2), nn.BatchNorm1d(4)),
        normal_tensor(6, 2, 5),
    ),
    case(
        "batch norm behind kernel 1",
        lambda: nn.Sequential(nn.Conv1d(2, 4, 1), nn.BatchNorm1d(4)),
        normal_tensor(6, 2, 5),
    ),
    case(
        "batch norm behind two of kernel 1",
        lambda: nn.Sequential(nn.Conv1d(2, 4, 1), nn.Conv1d(4, 3, 1), nn.BatchNorm1d(3)),
        normal_tensor(6, 2, 5),
    ),
    case(
        "batch norm 2d",
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4)),
        normal_tensor(3, 2, 4, 4),
    ),
    case(
        "batch norm 3d",
        lambda: nn.Sequential(nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4)),
        normal_tensor(3, 2, 2, 3, 3),
    ),
    case(
        "batch norm without affine",
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4, affine=False)),
        normal_tensor(3, 2, 4, 4),
    ),
    case(
        "batch norm without tracking",
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4, track_running_stats=False)),
        normal_tensor(3, 2, 4, 4),
    ),
    case(
        "batch norm with momentum and eps",
        lambda: AfterLinear(nn.BatchNorm1d(4, momentum=0.7, eps=0.1), 4),
        normal_tensor(6, 4),
    ),
    case(
        "batch norm without tracking, evaluated",
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4, track_running_stats=False)),
        normal_tensor(3, 2, 4, 4),
        evaluate=True,
    ),
    case(
        "batch norm evaluated",
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4)),
        normal_tensor(3, 2, 4, 4),
        evaluate=True,
    ),
    case(
        "batch norm of features evaluated",
        lambda: AfterLinear(nn.BatchNorm1d(4), 4),
        normal_tensor(3, 4),
        evaluate=True,
    ),
    case(
        "batch norm of one sample evaluated",
        lambda: AfterLinear(nn.BatchNorm1d(4), 4),
        normal_tensor(1, 4),
        evaluate=True,
    ),
    case(
        "batch norm averaging all batches",
        lambda: AfterLinear(nn.BatchNorm1d(4, momentum=None), 4),
        normal_tensor(6, 4),
        warning="BatchNorm1d",
    ),
    case("layer norm", lambda: AfterLinear(nn.LayerNorm(4), 4), normal_tensor(5, 4)),
    case("layer norm of the input", lambda: nn.LayerNorm(4), normal_tensor(5, 3, 4)),
    case(
        "layer norm over two dimensions", lambda: AfterLinear(nn.LayerNorm((3, 4)), 4), normal_tensor(5, 3, 4)
    ),
    case(
        "layer norm over everything",
        lambda: AfterLinear(nn.LayerNorm((3, 4), eps=0.1), 4),
        normal_tensor(3, 4),
    ),
    case(
        "layer norm without affine",
        lambda: AfterLinear(nn.LayerNorm(4, elementwise_affine=False), 4),
        normal_tensor(5, 4),
    ),
    case(
        "layer norm without bias", lambda: AfterLinear(nn.LayerNorm(4, bias=False), 4), normal_tensor(5, 3, 4)
    ),
    case("RMS norm", lambda: AfterLinear(nn.RMSNorm(4), 4), normal_tensor(5, 3, 4)),
    case("RMS norm of the input", lambda: nn.RMSNorm((3, 4), eps=0.01), normal_tensor(5, 3, 4)),
    case(
        "RMS norm without affine",
        lambda: AfterLinear(nn.RMSNorm(4, elementwise_affine=False), 4),
        normal_tensor(5, 4),
    ),
    case(
        "group norm", lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4)), normal_tensor(3, 2, 4, 4)
    ),
    case("group norm of the input", lambda: nn.GroupNorm(2, 4), normal_tensor(3, 4, 2)),
    case("group norm of features", lambda: AfterLinear(nn.GroupNorm(2, 4), 4), normal_tensor(3, 4)),
    case(
        "group norm without affine",
        lambda: nn.Sequential(nn.Conv1d(2, 4, 2), nn.GroupNorm(4, 4, affine=False)),
        normal_tensor(3, 2, 4),
    ),
    case(
        "instance norm 1d",
        lambda: nn.Sequential(nn.Conv1d(2, 4, 2), nn.InstanceNorm1d(4)),
        normal_tensor(3, 2, 5),
    ),
    case(
        "instance norm 2d affine",
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.InstanceNorm2d(4, affine=True)),
        normal_tensor(3, 2, 4, 4),
    ),
    case("instance norm of the input", lambda: nn.InstanceNorm2d(2, affine=True), normal_tensor(3, 2, 4, 4)),
    case(
        "instance norm tracking",
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 2), nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
        ),
        normal_tensor(3, 2, 4, 4),
    ),
    case(
        "instance norm tracking, evaluated",
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.InstanceNorm2d(4, track_running_stats=True)),
        normal_tensor(3, 2, 4, 4),
        evaluate=True,
    ),
    case(
        "instance norm 3d",
        lambda: nn.Sequential(nn.Conv3d(2, 4, 2), nn.InstanceNorm3d(4)),
        normal_tensor(2, 2, 2, 3, 3),
    ),
    case(
        "instance norm of one sample",
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.InstanceNorm2d(4, affine=True)),
        normal_tensor(2, 4, 4),
    ),
    case(
        "local response norm",
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.LocalResponseNorm(2)),
        normal_tensor(3, 2, 4, 4),
    ),
    case(
        "cross-map local response norm",
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.CrossMapLRN2d(2)),
        normal_tensor(3, 2, 4, 4),
        warning="CrossMapLRN2d",
    ),
]

"""Every operator and its options: an array trains like its members by themselves."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402

from support.fusion_equality import (  # noqa: E402
    ALL_WAYS,
    B,
    assert_same,
    assert_same_training,
    build_members,
    integer_tensor,
    normal_tensor,
    select_member,
)
from wattline.fusion import FusionWarning, Ways, fuse  # noqa: E402
from wattline.fusion.lowering.rules import LoweringMode  # noqa: E402


class Calls(nn.Module):
    """A module with a custom call."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self.call = call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(self.module, *args, **kwargs)


class After(nn.Module):
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
    alone: str = ""  # the module named in a warning as run per member
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def expecting(self) -> AbstractContextManager[Any]:
        return pytest.warns(FusionWarning, match=self.alone) if self.alone else nullcontext()


def case(name: str, make: Callable[[], nn.Module], *args: Any, alone: str = "", **options: Any) -> Case:
    return Case(name, make, args, alone, options)


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


def two(first: Callable[[], nn.Module], second: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(first(), nn.Tanh(), second())


CONVOLUTIONS = [
    case("conv1d", lambda: nn.Conv1d(2, 4, 3), normal_tensor(3, 2, 8)),
    case("conv1d kernel 1", lambda: nn.Conv1d(2, 4, 1), normal_tensor(3, 2, 8)),
    case(
        "conv1d kernel 1 twice",
        two(lambda: nn.Conv1d(2, 4, 1), lambda: nn.Conv1d(4, 3, 1, bias=False)),
        normal_tensor(3, 2, 8),
    ),
    case(
        "conv1d kernel 1 padded",
        two(lambda: nn.Conv1d(2, 4, 1), lambda: nn.Conv1d(4, 3, 1, padding=1)),
        normal_tensor(3, 2, 8),
    ),
    case(
        "conv1d kernel 1 same",
        two(lambda: nn.Conv1d(2, 4, 1), lambda: nn.Conv1d(4, 3, 1, padding="same")),
        normal_tensor(3, 2, 8),
    ),
    case(
        "conv1d kernel 1 strided",
        two(lambda: nn.Conv1d(2, 4, 1), lambda: nn.Conv1d(4, 3, 1, stride=2)),
        normal_tensor(3, 2, 8),
    ),
    case(
        "conv1d dilated",
        two(lambda: nn.Conv1d(2, 4, 3, dilation=2), lambda: nn.Conv1d(4, 3, 2, bias=False)),
        normal_tensor(3, 2, 9),
    ),
    case(
        "conv1d circular",
        two(lambda: nn.Conv1d(2, 4, 3, padding=1, padding_mode="circular"), lambda: nn.Conv1d(4, 3, 2)),
        normal_tensor(3, 2, 9),
    ),
    case(
        "conv1d of one sample",
        two(lambda: nn.Conv1d(2, 4, 3), lambda: nn.Conv1d(4, 3, 2)),
        normal_tensor(2, 8),
    ),
    case("conv2d", lambda: nn.Conv2d(2, 4, 3), normal_tensor(3, 2, 5, 5)),
    case(
        "conv2d twice", two(lambda: nn.Conv2d(2, 4, 3), lambda: nn.Conv2d(4, 3, 2)), normal_tensor(3, 2, 6, 6)
    ),
    case(
        "conv2d without bias",
        two(lambda: nn.Conv2d(2, 4, 3, bias=False), lambda: nn.Conv2d(4, 3, 2, bias=False)),
        normal_tensor(3, 2, 6, 6),
    ),
    case(
        "conv2d oblong",
        two(
            lambda: nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=(2, 0)),
            lambda: nn.Conv2d(4, 3, (1, 2), dilation=(1, 2)),
        ),
        normal_tensor(3, 2, 6, 7),
    ),
    case(
        "conv2d same",
        two(
            lambda: nn.Conv2d(2, 4, 3, padding="same"), lambda: nn.Conv2d(4, 3, 2, padding="same", dilation=2)
        ),
        normal_tensor(3, 2, 5, 5),
    ),
    case(
        "conv2d valid",
        two(lambda: nn.Conv2d(2, 4, 3, padding="valid"), lambda: nn.Conv2d(4, 3, 1, padding="valid")),
        normal_tensor(3, 2, 5, 5),
    ),
    case(
        "conv2d circular",
        two(
            lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"),
            lambda: nn.Conv2d(4, 3, 3, padding=1, padding_mode="circular"),
        ),
        normal_tensor(2, 2, 5, 5),
    ),
    case(
        "conv2d reflect",
        two(
            lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"),
            lambda: nn.Conv2d(4, 3, 3, padding=1, padding_mode="reflect"),
        ),
        normal_tensor(2, 2, 5, 5),
    ),
    case(
        "conv2d replicate",
        two(
            lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="replicate"),
            lambda: nn.Conv2d(4, 3, 3, padding=1, padding_mode="replicate"),
        ),
        normal_tensor(2, 2, 5, 5),
    ),
    case(
        "conv2d groups",
        two(lambda: nn.Conv2d(4, 6, 3, groups=2), lambda: nn.Conv2d(6, 3, 2, groups=3)),
        normal_tensor(3, 4, 5, 5),
    ),
    case(
        "conv2d depthwise",
        two(
            lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), lambda: nn.Conv2d(8, 8, 3, groups=8, bias=False)
        ),
        normal_tensor(3, 4, 5, 5),
    ),
    case(
        "conv2d grouped kernel 1",
        two(lambda: nn.Conv2d(4, 6, 1, groups=2), lambda: nn.Conv2d(6, 3, 1, groups=3)),
        normal_tensor(3, 4, 3, 3),
    ),
    case(
        "conv2d kernel 1",
        two(lambda: nn.Conv2d(2, 4, 1), lambda: nn.Conv2d(4, 3, 1)),
        normal_tensor(3, 2, 5, 4),
    ),
    case(
        "conv2d kernel 1 strided",
        two(lambda: nn.Conv2d(2, 4, 1, stride=2), lambda: nn.Conv2d(4, 3, 1, stride=(2, 1))),
        normal_tensor(3, 2, 5, 4),
    ),
    case(
        "conv2d of one sample",
        two(lambda: nn.Conv2d(2, 4, 3), lambda: nn.Conv2d(4, 3, 2)),
        normal_tensor(2, 6, 6),
    ),
    case(
        "conv2d of a single sample",
        two(lambda: nn.Conv2d(2, 4, 3), lambda: nn.Conv2d(4, 3, 2)),
        normal_tensor(1, 2, 6, 6),
    ),
    case(
        "conv3d",
        two(lambda: nn.Conv3d(2, 4, 2), lambda: nn.Conv3d(4, 3, 2, stride=2, padding=1)),
        normal_tensor(2, 2, 3, 4, 4),
    ),
    case(
        "conv3d kernel 1 and depthwise",
        two(lambda: nn.Conv3d(2, 4, 1), lambda: nn.Conv3d(4, 4, 2, groups=4)),
        normal_tensor(2, 2, 3, 3, 3),
    ),
    case(
        "conv_transpose1d",
        two(
            lambda: nn.ConvTranspose1d(2, 4, 3),
            lambda: nn.ConvTranspose1d(4, 3, 3, stride=2, output_padding=1),
        ),
        normal_tensor(3, 2, 5),
    ),
    case(
        "conv_transpose1d groups",
        two(
            lambda: nn.ConvTranspose1d(2, 4, 3, groups=2),
            lambda: nn.ConvTranspose1d(4, 2, 3, groups=2, dilation=2, bias=False),
        ),
        normal_tensor(3, 2, 5),
    ),
    case(
        "conv_transpose2d",
        two(
            lambda: nn.ConvTranspose2d(2, 4, 3, stride=2, padding=1, output_padding=1),
            lambda: nn.ConvTranspose2d(4, 3, 2),
        ),
        normal_tensor(3, 2, 3, 3),
    ),
    case(
        "conv_transpose2d groups",
        two(
            lambda: nn.ConvTranspose2d(4, 6, 3, groups=2),
            lambda: nn.ConvTranspose2d(6, 3, 2, groups=3, dilation=2),
        ),
        normal_tensor(2, 4, 3, 3),
    ),
    case(
        "conv_transpose2d oblong",
        two(
            lambda: nn.ConvTranspose2d(2, 4, (1, 3), stride=(2, 3), output_padding=(1, 2)),
            lambda: nn.ConvTranspose2d(4, 3, 1, bias=False),
        ),
        normal_tensor(3, 2, 3, 3),
    ),
    case(
        "conv_transpose2d of one sample",
        two(lambda: nn.ConvTranspose2d(2, 4, 3), lambda: nn.ConvTranspose2d(4, 3, 2)),
        normal_tensor(2, 3, 3),
    ),
    case(
        "conv_transpose2d to a size",
        lambda: Calls(nn.ConvTranspose2d(2, 4, 3, stride=2), lambda m, x: m(x.tanh(), output_size=[8, 8])),
        normal_tensor(3, 2, 3, 3),
    ),
    case(
        "conv_transpose3d",
        two(
            lambda: nn.ConvTranspose3d(2, 4, 2),
            lambda: nn.ConvTranspose3d(4, 2, 3, stride=2, groups=2, output_padding=1),
        ),
        normal_tensor(2, 2, 2, 2, 3),
    ),
]

NORMS = [
    case("batch norm of features", lambda: nn.BatchNorm1d(4), normal_tensor(6, 4)),
    case("batch norm behind weights", lambda: After(nn.BatchNorm1d(4), 4), normal_tensor(6, 4)),
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
        lambda: After(nn.BatchNorm1d(4, momentum=0.7, eps=0.1), 4),
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
        lambda: After(nn.BatchNorm1d(4), 4),
        normal_tensor(3, 4),
        evaluate=True,
    ),
    case(
        "batch norm of one sample evaluated",
        lambda: After(nn.BatchNorm1d(4), 4),
        normal_tensor(1, 4),
        evaluate=True,
    ),
    case(
        "batch norm averaging all batches",
        lambda: After(nn.BatchNorm1d(4, momentum=None), 4),
        normal_tensor(6, 4),
        alone="BatchNorm1d",
    ),
    case("layer norm", lambda: After(nn.LayerNorm(4), 4), normal_tensor(5, 4)),
    case("layer norm of the input", lambda: nn.LayerNorm(4), normal_tensor(5, 3, 4)),
    case("layer norm over two dimensions", lambda: After(nn.LayerNorm((3, 4)), 4), normal_tensor(5, 3, 4)),
    case("layer norm over everything", lambda: After(nn.LayerNorm((3, 4), eps=0.1), 4), normal_tensor(3, 4)),
    case(
        "layer norm without affine",
        lambda: After(nn.LayerNorm(4, elementwise_affine=False), 4),
        normal_tensor(5, 4),
    ),
    case("layer norm without bias", lambda: After(nn.LayerNorm(4, bias=False), 4), normal_tensor(5, 3, 4)),
    case("RMS norm", lambda: After(nn.RMSNorm(4), 4), normal_tensor(5, 3, 4)),
    case("RMS norm of the input", lambda: nn.RMSNorm((3, 4), eps=0.01), normal_tensor(5, 3, 4)),
    case(
        "RMS norm without affine",
        lambda: After(nn.RMSNorm(4, elementwise_affine=False), 4),
        normal_tensor(5, 4),
    ),
    case(
        "group norm", lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4)), normal_tensor(3, 2, 4, 4)
    ),
    case("group norm of the input", lambda: nn.GroupNorm(2, 4), normal_tensor(3, 4, 2)),
    case("group norm of features", lambda: After(nn.GroupNorm(2, 4), 4), normal_tensor(3, 4)),
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
        alone="CrossMapLRN2d",
    ),
]

LOOKUPS = [
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
        lambda: Calls(nn.Embedding(5, 3), lambda m, i: F.embedding(i, m.weight, padding_idx=-1)),
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
        lambda: Calls(nn.Embedding(5, 3), lambda m, i: m(i) @ m.weight.T),
        integer_tensor(5, 4),
    ),
    case(
        "one-hot",
        lambda: Calls(nn.Linear(5, 3), lambda m, i: m(F.one_hot(i, 5).double())),
        integer_tensor(5, 4),
    ),
    case(
        "embedding of limited norm",
        lambda: nn.Embedding(5, 3, max_norm=0.5),
        integer_tensor(5, 4, 6),
        alone="embedding_renorm_",
    ),
    case("embedding with sparse gradients", lambda: nn.Embedding(5, 3, sparse=True), integer_tensor(5, 4, 6)),
    case("bag of rows", lambda: nn.EmbeddingBag(5, 3), integer_tensor(5, 4, 6), alone="embedding_bag"),
    case(
        "bag of rows, summed",
        lambda: nn.EmbeddingBag(5, 3, mode="sum", padding_idx=1),
        integer_tensor(5, 4, 6),
        alone="embedding_bag",
    ),
    case(
        "bag of rows, largest",
        lambda: nn.EmbeddingBag(5, 3, mode="max"),
        integer_tensor(5, 4, 6),
        alone="embedding_bag",
    ),
    case(
        "bag of rows with offsets",
        lambda: Calls(nn.EmbeddingBag(5, 3), lambda m, i: m(i, torch.tensor([0, 2]))),
        integer_tensor(5, 6),
        alone="embedding_bag",
    ),
]


def behind_conv(module: Callable[[], nn.Module], n: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(getattr(nn, f"Conv{n}d")(2, 4, 2), module())


def side(n: int) -> Tensor:
    return normal_tensor(2, 2, *[7, 6, 6][:n])


POOLS = [
    *(
        case(
            f"{kind}{n}d {knobs}",
            behind_conv(lambda k=kind, n=n, knobs=knobs: getattr(nn, f"{k}{n}d")(**knobs), n),
            side(n),
        )
        for n in (1, 2, 3)
        for kind, knobs in (
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
    case("avg pool with a divisor", behind_conv(lambda: nn.AvgPool2d(2, divisor_override=3), 2), side(2)),
    case("adaptive pool to (None, 2)", behind_conv(lambda: nn.AdaptiveAvgPool2d((None, 2)), 2), side(2)),
    case("max pool of the input", lambda: nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(2, 3, 1)), side(2)),
    case(
        "max pool of one sample",
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.MaxPool2d(2)),
        normal_tensor(2, 6, 6),
    ),
    case(
        "max pool function",
        lambda: Calls(nn.Conv2d(2, 3, 2), lambda m, x: torch.max_pool2d(m(x), 2)),
        side(2),
    ),
    case(
        "unpooling",
        lambda: Calls(
            nn.Conv2d(2, 3, 2), lambda m, x: F.max_unpool2d(*F.max_pool2d(m(x), 2, return_indices=True), 2)
        ),
        normal_tensor(2, 2, 5, 5),
        alone="max_unpool2d",
    ),
    case(
        "fractional max pool",
        behind_conv(
            lambda: nn.FractionalMaxPool2d(
                2, output_size=3, _random_samples=torch.full((2, 4, 2), 0.3, dtype=torch.float64)
            ),
            2,
        ),
        side(2),
        alone="fractional_max_pool2d",
    ),
]

ACTIVATIONS = [
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

SHAPES = [
    case(
        "flatten",
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(27, 2)),
        normal_tensor(3, 2, 4, 4),
    ),
    case(
        "flatten two", lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(2, 3)), normal_tensor(3, 2, 4, 4)
    ),
    case("unflatten", lambda: After(nn.Unflatten(1, (2, 3)), 6), normal_tensor(3, 6)),
    case("fold", lambda: After(nn.Fold((4, 5), (2, 2)), 12), normal_tensor(3, 8, 12)),
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
            lambda mode=mode, n=n, knobs=knobs: nn.Sequential(
                getattr(nn, f"Conv{n}d")(2, 3, 2), nn.Upsample(scale_factor=2, mode=mode, **knobs)
            ),
            side(n),
        )
        for mode, n, knobs in (
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
            lambda mode=mode: Calls(
                nn.Conv2d(2, 3, 2), lambda m, x: F.interpolate(m(x), size=(4, 9), mode=mode)
            ),
            side(2),
        )
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
    ),
    case(
        "interpolate antialiased",
        lambda: Calls(
            nn.Conv2d(2, 3, 2), lambda m, x: F.interpolate(m(x), size=(3, 4), mode="bilinear", antialias=True)
        ),
        side(2),
    ),
    case(
        "grid sample",
        lambda: Calls(
            nn.Conv2d(2, 3, 2),
            lambda m, x: F.grid_sample(
                m(x),
                F.affine_grid(
                    m.weight[:2, 0, :1, :].new_ones(2, 2, 3) * 0.3, [2, 3, 4, 4], align_corners=False
                ),
                align_corners=False,
            ),
        ),
        side(2),
        alone="affine_grid_generator",
    ),
    *(
        case(
            f"{kind}{n}d",
            lambda kind=kind, n=n, more=more: nn.Sequential(
                getattr(nn, f"Conv{n}d")(2, 3, 2), getattr(nn, f"{kind}{n}d")(1, *more)
            ),
            side(n),
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
        lambda: Calls(nn.Linear(4, 3), lambda m, x: F.cosine_similarity(m(x), m(2 - x), dim=1)),
        normal_tensor(5, 4),
    ),
    case(
        "cosine similarity module",
        lambda: Calls(
            nn.Sequential(nn.Linear(4, 3), nn.CosineSimilarity()), lambda m, x: m[1](m[0](x), x[:, :3])
        ),
        normal_tensor(5, 4),
    ),
    case(
        "pairwise distance",
        lambda: Calls(nn.Linear(4, 3), lambda m, x: nn.PairwiseDistance()(m(x), m(2 - x))),
        normal_tensor(5, 4),
    ),
    case(
        "cdist", lambda: Calls(nn.Linear(4, 3), lambda m, x: torch.cdist(m(x), m(2 - x))), normal_tensor(5, 4)
    ),
    case("normalize", lambda: Calls(nn.Linear(4, 3), lambda m, x: F.normalize(m(x))), normal_tensor(5, 4)),
    case(
        "sort, gather, topk",
        lambda: Calls(
            nn.Linear(4, 3), lambda m, x: (m(x).sort(1), m(x).topk(2, 0), m(x).gather(1, x[:, :2].argsort(1)))
        ),
        normal_tensor(5, 4),
    ),
    case(
        "cumsum, flip, roll",
        lambda: Calls(
            nn.Linear(4, 3), lambda m, x: (m(x).cumsum(0), m(x).flip(1), m(x).roll(1, 0), m(x).tril())
        ),
        normal_tensor(5, 4),
    ),
    case(
        "einsum, matmul",
        lambda: Calls(
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
        lambda: Calls(
            nn.Linear(4, 3),
            lambda m, x: (m(x).logsumexp(0), m(x).std(1), m(x).norm(), m(x).var(0, unbiased=False)),
        ),
        normal_tensor(5, 4),
    ),
    case(
        "where, clamp, masked_fill",
        lambda: Calls(
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
        lambda: Calls(
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
        lambda: Calls(
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


def attend(call: Callable[..., Any], **knobs: Any) -> Callable[[], nn.Module]:
    return lambda: Calls(nn.MultiheadAttention(4, 2, **knobs), call)


PADS = torch.tensor([[False, False, True], [False, False, False]])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(3, dtype=torch.float64)
SOFT = normal_tensor(3, 3, seed=7)
SOFT3 = normal_tensor(4, 3, 3, seed=8)


def of_self(**words: Any) -> Callable[..., Any]:
    return lambda m, x: m(x, x, x, **words)


ATTENTION = [
    case("self-attention", attend(of_self()), normal_tensor(3, 2, 4)),
    case("self-attention, batch first", attend(of_self(), batch_first=True), normal_tensor(2, 3, 4)),
    case("without weights", attend(of_self(need_weights=False), batch_first=True), normal_tensor(2, 3, 4)),
    case(
        "with the weights of each head",
        attend(of_self(average_attn_weights=False), batch_first=True),
        normal_tensor(2, 3, 4),
    ),
    *(
        case(
            f"{name}, weights {need}",
            attend(of_self(need_weights=need, **words), batch_first=True),
            normal_tensor(2, 3, 4),
        )
        for need in (True, False)
        for name, words in (
            ("padding", {"key_padding_mask": PADS}),
            ("padding as numbers", {"key_padding_mask": normal_tensor(2, 3, seed=3)}),
            ("a mask", {"attn_mask": SOFT}),
            ("a mask of yes and no", {"attn_mask": CAUSAL != 0}),
            ("a mask of each head", {"attn_mask": SOFT3}),
            ("both masks", {"attn_mask": SOFT3, "key_padding_mask": normal_tensor(2, 3, seed=3)}),
            ("a causal mask", {"attn_mask": CAUSAL, "is_causal": True}),
            (
                "a causal mask and padding",
                {"attn_mask": CAUSAL != 0, "is_causal": True, "key_padding_mask": PADS},
            ),
            ("a causal hint with another mask", {"attn_mask": SOFT, "is_causal": True}),
        )
    ),
    case(
        "cross-attention", attend(lambda m, x, y: m(x, y, y)), normal_tensor(3, 2, 4), normal_tensor(5, 2, 4)
    ),
    case(
        "cross-attention, without weights",
        attend(lambda m, x, y: m(x, y, y, need_weights=False)),
        normal_tensor(3, 2, 4),
        normal_tensor(5, 2, 4),
    ),
    case(
        "three inputs",
        attend(lambda m, x, y, z: m(x, y, z)),
        normal_tensor(3, 2, 4),
        normal_tensor(5, 2, 4),
        normal_tensor(5, 2, 4, seed=1),
    ),
    case(
        "keys and values of other widths",
        attend(lambda m, x, y, z: m(x, y, z), kdim=3, vdim=5),
        normal_tensor(3, 2, 4),
        normal_tensor(6, 2, 3),
        normal_tensor(6, 2, 5),
    ),
    case("without bias", attend(of_self(), bias=False), normal_tensor(3, 2, 4)),
    case(
        "cross-attention without bias",
        attend(lambda m, x, y: m(x, y, y), bias=False),
        normal_tensor(3, 2, 4),
        normal_tensor(5, 2, 4),
    ),
    case("with bias in keys and values", attend(of_self(), add_bias_kv=True), normal_tensor(3, 2, 4)),
    case("with zero attention", attend(of_self(), add_zero_attn=True), normal_tensor(3, 2, 4)),
    case(
        "with both and padding",
        attend(of_self(key_padding_mask=PADS), add_zero_attn=True, add_bias_kv=True),
        normal_tensor(3, 2, 4),
    ),
    case("of one sample", attend(of_self()), normal_tensor(3, 4)),
    case("evaluated", attend(of_self(), batch_first=True), normal_tensor(2, 3, 4), evaluate=True),
    case(
        "evaluated without weights",
        attend(of_self(need_weights=False), batch_first=True),
        normal_tensor(2, 3, 4),
        evaluate=True,
    ),
    *(
        case(
            f"dot-product attention {name}",
            lambda words=words: Calls(
                nn.Linear(4, 12),
                lambda m, x, words=words: F.scaled_dot_product_attention(
                    *m(x).reshape(2, 3, 3, 2, 2).permute(2, 0, 3, 1, 4), **words
                ),
            ),
            normal_tensor(2, 3, 4),
        )
        for name, words in (
            ("plain", {}),
            ("causal", {"is_causal": True}),
            ("scaled", {"scale": 0.3}),
            ("masked", {"attn_mask": CAUSAL}),
            ("masked by yes and no", {"attn_mask": CAUSAL == 0}),
            ("masked per head", {"attn_mask": normal_tensor(2, 3, 3)}),
            ("masked per sample", {"attn_mask": normal_tensor(2, 1, 3, 3)}),
        )
    ),
    case(
        "dot-product attention without heads",
        lambda: Calls(nn.Linear(4, 12), lambda m, x: F.scaled_dot_product_attention(*m(x).chunk(3, -1))),
        normal_tensor(2, 3, 4),
    ),
    case(
        "dot-product attention of grouped queries",
        lambda: Calls(
            nn.Linear(4, 16),
            lambda m, x: F.scaled_dot_product_attention(
                m(x)[..., :8].reshape(2, 3, 4, 2).transpose(1, 2),
                *m(x)[..., 8:].reshape(2, 3, 2, 2, 2).permute(2, 0, 3, 1, 4),
                enable_gqa=True,
            ),
        ),
        normal_tensor(2, 3, 4),
    ),
]


def encoder(**knobs: Any) -> Callable[[], nn.Module]:
    return lambda: nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, **knobs)


def stack(**knobs: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, **knobs)


TRANSFORMERS = [
    *(
        case(
            f"encoder layer {knobs}, evaluated {evaluate}",
            encoder(**knobs),
            normal_tensor(2, 3, 4),
            evaluate=evaluate,
        )
        for knobs in ({}, {"norm_first": True}, {"activation": "gelu"}, {"bias": False})
        for evaluate in (False, True)
    ),
    *(
        case(
            f"encoder {list(words)}, evaluated {evaluate}",
            lambda: stack(enable_nested_tensor=False),
            normal_tensor(2, 3, 4),
            kwargs=words,
            evaluate=evaluate,
        )
        for words in (
            {},
            {"mask": CAUSAL},
            {"src_key_padding_mask": PADS},
            {"mask": CAUSAL, "is_causal": True},
        )
        for evaluate in (False, True)
    ),
    case(
        "encoder with nested tensors, evaluated",
        stack,
        normal_tensor(2, 3, 4),
        kwargs={"src_key_padding_mask": PADS},
        evaluate=True,
    ),
    case(
        "encoder with a last norm",
        lambda: stack(norm=nn.LayerNorm(4), enable_nested_tensor=False),
        normal_tensor(2, 3, 4),
    ),
    *(
        case(
            f"decoder layer {knobs}",
            lambda knobs=knobs: nn.TransformerDecoderLayer(4, 2, 6, dropout=0.0, **knobs),
            normal_tensor(3, 2, 4),
            normal_tensor(5, 2, 4),
            kwargs={"tgt_mask": CAUSAL},
        )
        for knobs in ({}, {"norm_first": True, "activation": "gelu"})
    ),
    case(
        "decoder",
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 6, dropout=0.0), 2),
        normal_tensor(3, 2, 4),
        normal_tensor(5, 2, 4),
    ),
    *(
        case(
            f"transformer, evaluated {evaluate}",
            lambda: nn.Transformer(4, 2, 1, 1, 6, dropout=0.0, batch_first=True),
            normal_tensor(2, 3, 4),
            normal_tensor(2, 5, 4),
            evaluate=evaluate,
        )
        for evaluate in (False, True)
    ),
]
for _case in TRANSFORMERS:
    _case.options.setdefault("kwargs", {})


class Packed(nn.Module):
    def __init__(self, module: nn.Module, first: bool) -> None:
        super().__init__()
        self.module = module
        self.first = first

    def forward(self, x: Tensor) -> Any:
        packed = pack_padded_sequence(x, torch.tensor([3, 1]), batch_first=self.first, enforce_sorted=False)
        out, state = self.module(packed)
        return *pad_packed_sequence(out, batch_first=self.first), state


RECURRENT = [
    *(
        case(
            f"{kind} {knobs}",
            lambda kind=kind, knobs=knobs: getattr(nn, kind)(2, 3, **knobs),
            normal_tensor(4, 2, 2),
        )
        for kind in ("LSTM", "GRU", "RNN")
        for knobs in (
            {},
            {"num_layers": 2},
            {"bidirectional": True},
            {"batch_first": True, "bias": False},
            {"num_layers": 2, "bidirectional": True, "batch_first": True},
        )
    ),
    case("RNN with ReLU", lambda: nn.RNN(2, 3, nonlinearity="relu"), normal_tensor(4, 2, 2)),
    *(
        case(f"{kind} of one sample", lambda kind=kind: getattr(nn, kind)(2, 3, 2), normal_tensor(4, 2))
        for kind in ("LSTM", "GRU", "RNN")
    ),
    *(
        case(
            f"{kind} with a beginning",
            lambda kind=kind: getattr(nn, kind)(2, 3),
            normal_tensor(4, 2, 2),
            normal_tensor(1, 2, 3),
        )
        for kind in ("GRU", "RNN")
    ),
    case(
        "LSTM with a beginning",
        lambda: Calls(nn.LSTM(2, 3, 2, batch_first=True), lambda m, x, h, c: m(x, (h, c))),
        normal_tensor(2, 4, 2),
        normal_tensor(2, 2, 3),
        normal_tensor(2, 2, 3, seed=1),
    ),
    case(
        "LSTM of one sample with a beginning",
        lambda: Calls(nn.LSTM(2, 3), lambda m, x, h, c: m(x, (h, c))),
        normal_tensor(4, 2),
        normal_tensor(1, 3),
        normal_tensor(1, 3, seed=1),
    ),
    *(
        case(
            f"{kind} with dropout, evaluated",
            lambda kind=kind: getattr(nn, kind)(2, 3, 2, dropout=0.5),
            normal_tensor(4, 2, 2),
            evaluate=True,
        )
        for kind in ("LSTM", "GRU", "RNN")
    ),
    *(
        case(
            f"{kind} behind weights",
            lambda kind=kind: After(getattr(nn, kind)(2, 3, 2), 2),
            normal_tensor(4, 2, 2),
        )
        for kind in ("LSTM", "GRU", "RNN")
    ),
    case("LSTM with projections", lambda: nn.LSTM(2, 4, proj_size=3), normal_tensor(4, 2, 2), alone="LSTM"),
    *(
        case(
            f"packed {kind}",
            lambda kind=kind: Packed(getattr(nn, kind)(2, 3, bidirectional=True), first=False),
            normal_tensor(4, 2, 2),
            alone=f"{kind}|pack",
        )
        for kind in ("LSTM", "GRU", "RNN")
    ),
    case("LSTM cell", lambda: nn.LSTMCell(2, 3), normal_tensor(4, 2)),
    case(
        "LSTM cell with a beginning",
        lambda: Calls(nn.LSTMCell(2, 3), lambda m, x, h, c: m(x, m(x, (h, c)))),
        normal_tensor(4, 2),
        normal_tensor(4, 3),
        normal_tensor(4, 3, seed=1),
    ),
    case("GRU cell", lambda: nn.GRUCell(2, 3), normal_tensor(4, 2), normal_tensor(4, 3)),
    case("RNN cell", lambda: nn.RNNCell(2, 3), normal_tensor(4, 2), normal_tensor(4, 3)),
    case(
        "RNN cell with ReLU", lambda: nn.RNNCell(2, 3, nonlinearity="relu", bias=False), normal_tensor(4, 2)
    ),
    case(
        "GRU cell over time",
        lambda: Calls(nn.GRUCell(2, 3), lambda m, x: m(x, m(x, m(x)))),
        normal_tensor(4, 2),
    ),
]

ALL = [*LINEAR, *CONVOLUTIONS, *NORMS, *LOOKUPS, *POOLS, *SHAPES, *ATTENTION, *TRANSFORMERS, *RECURRENT]
ALL += [
    case(f"activation {a}", lambda a=a: After(type(a)(**_knobs(a)), 4), normal_tensor(5, 4))
    for a in ACTIVATIONS
]
ALL += [
    case(
        "softmax of planes",
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.Softmax2d()),
        normal_tensor(3, 2, 4, 4),
    )
]


def _knobs(module: nn.Module) -> dict[str, Any]:
    names = {n: getattr(module, n) for n in type(module).__init__.__annotations__ if hasattr(module, n)}
    return {n: v for n, v in names.items() if isinstance(v, int | float | str | bool)}


def settled(case: Case, **more: Any) -> None:
    with case.expecting():
        assert_same_training(case.make, *case.args, **{"steps": 2, **case.options, **more})


@pytest.mark.parametrize("case", ALL, ids=str)
def test_operators_on_a_batch_that_members_share(case: Case) -> None:
    settled(case)


def of_each(case: Case) -> dict[str, Any]:
    words = case.options.get("kwargs")
    return {"members": [True] * len(case.args), **({} if words is None else {"kwargs": words})}


def may_be_of_each(case: Case) -> bool:
    return case.name != "bag of rows with offsets" and not any(isinstance(a, tuple) for a in case.args)


@pytest.mark.parametrize("steps", [1, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", list(filter(may_be_of_each, ALL)), ids=str)
def test_operators_on_a_batch_of_each_member(case: Case, steps: int) -> None:
    expecting = pytest.warns(FusionWarning, match="nested") if "nested" in case.name else case.expecting()
    with expecting:
        assert_same_training(
            case.make, *own_rows(case.args), **{"steps": steps, **case.options, **of_each(case)}
        )


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL, ids=str)
def test_operators_for_twenty_steps(case: Case) -> None:
    settled(case, steps=20)


@pytest.mark.parametrize("ways", ALL_WAYS, ids=str)
@pytest.mark.parametrize(
    "name", ["conv1d kernel 1 twice", "conv2d oblong", "conv2d depthwise", "conv_transpose2d groups"]
)
def test_convolutions_in_every_way(name: str, ways: Ways) -> None:
    case = next(c for c in CONVOLUTIONS if c.name == name)
    assert_same_training(case.make, *own_rows(case.args), members=True, ways=ways, steps=2)


@pytest.mark.slow
@pytest.mark.parametrize("ways", ALL_WAYS, ids=str)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_every_convolution_in_every_way(case: Case, ways: Ways) -> None:
    assert_same_training(case.make, *case.args, ways=ways)
    assert_same_training(case.make, *own_rows(case.args), members=True, ways=ways)


def may_be_single(case: Case) -> bool:
    """Return whether the case runs in single precision; others use float64 inside, or warn."""
    inside = ("one-hot", "fractional", "scatter", "solve", "mask", "as numbers", "projections")
    return not any(word in case.name for word in inside)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(filter(may_be_single, ALL)), ids=str)
def test_operators_in_single_precision(case: Case) -> None:
    def single(t: Any) -> Any:
        return t.float() if isinstance(t, Tensor) and t.is_floating_point() else t

    words = {k: single(v) for k, v in case.options.get("kwargs", {}).items()}
    with case.expecting():
        assert_same_training(
            case.make,
            *map(single, case.args),
            **{**case.options, "kwargs": words},
            dtype=torch.float32,
            tolerance=2e-4,
        )


DROPOUTS = [
    (nn.Dropout, (2000, 4), None),
    (nn.AlphaDropout, (2000, 4), None),
    (nn.Dropout1d, (500, 40, 3), 2),
    (nn.Dropout2d, (500, 40, 2, 2), 2),
    (nn.Dropout3d, (500, 40, 2, 2, 1), 2),
    (nn.FeatureAlphaDropout, (500, 40, 3), 2),
]


class Noisy(nn.Module):
    def __init__(self, drop: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(x * self.scale)


@pytest.mark.parametrize("own", [False, True], ids=["input of all", "input of each"])
@pytest.mark.parametrize(("kind", "shape", "whole_from"), DROPOUTS[:1] + DROPOUTS[2:5])
def test_members_draw_different_dropout_masks(
    kind: Any, shape: tuple[int, ...], whole_from: int | None, own: bool
) -> None:
    make = (lambda: Noisy(kind(0.3))) if own else (lambda: nn.Sequential(kind(0.3), Noisy(nn.Identity())))
    array = fuse(build_members(make))
    x = torch.ones(*shape, dtype=torch.float64, requires_grad=True)
    out = array(x)
    kept = out != 0
    assert all(0.65 < float(k.double().mean()) < 0.75 for k in kept)
    assert torch.allclose(out[kept], torch.tensor(1 / 0.7, dtype=torch.float64))
    assert all((kept[a] != kept[b]).double().mean() > 0.3 for a, b in ((0, 1), (1, 2), (0, 2)))
    if whole_from is not None:
        planes = kept.flatten(whole_from + 1)
        assert (planes.all(-1) | ~planes.any(-1)).all()
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.sum(0).detach())  # the same masks, since the input is all ones
    assert not torch.equal(array(x) != 0, kept)
    array.eval()
    assert torch.equal(array(x), torch.ones(B, *shape, dtype=torch.float64))


@pytest.mark.parametrize("kind", [nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_alpha_dropout_differs_between_members_and_keeps_the_moments(kind: Any) -> None:
    array = fuse(build_members(lambda: Noisy(kind(0.3))))
    x = normal_tensor(3000, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FusionWarning)
        out = array(x).detach()
    assert abs(float(out.mean())) < 0.05
    assert abs(float(out.std()) - 1) < 0.05
    assert (out[0] != out[1]).double().mean() > 0.2


@pytest.mark.parametrize(("kind", "shape"), [(k, s) for k, s, _ in DROPOUTS[:1] + DROPOUTS[2:5]])
def test_dropout_in_place(kind: Any, shape: tuple[int, ...]) -> None:
    array = fuse(build_members(lambda: Noisy(kind(0.5, inplace=True))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FusionWarning)
        out = array(torch.ones(*shape, dtype=torch.float64))
    assert set(out.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(out[0], out[1])
    out.sum().backward()
    torch.testing.assert_close(array.body.scale.grad, out.detach().flatten(1).sum(1))


def test_dropout_with_p_0_keeps_everything_and_with_p_1_nothing() -> None:
    assert_same_training(lambda: Noisy(nn.Dropout(0.0)), normal_tensor(4, 3))
    assert not fuse(build_members(lambda: Noisy(nn.Dropout(1.0))))(normal_tensor(4, 3)).any()


def test_attention_drops_its_weights() -> None:
    array = fuse(build_members(attend(of_self(), dropout=0.5)))
    _, weights = array(normal_tensor(6, 2, 4))
    assert (weights.sum(-1) - 1).abs().max() > 0.1  # the returned weights include dropout, as in PyTorch
    out = array(normal_tensor(6, 2, 4))[0]
    assert not torch.equal(out, array(normal_tensor(6, 2, 4))[0])


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_drop_between_layers(kind: str) -> None:
    array = fuse(build_members(lambda: getattr(nn, kind)(2, 3, 2, dropout=0.5)))
    x = normal_tensor(4, 2, 2)
    assert not torch.equal(array(x)[0], array(x)[0])
    array.eval()
    assert torch.equal(array(x)[0], array(x)[0])


def test_random_leaky_relu_draws_for_each_member() -> None:
    array = fuse(build_members(lambda: Noisy(nn.RReLU(0.1, 0.9))))
    with pytest.warns(FusionWarning, match="RReLU"):
        out = array(torch.full((50,), -1.0, dtype=torch.float64))
    assert (out[0] != out[1]).all()
    assert ((out < -0.1) & (out > -0.9)).all()


@pytest.mark.parametrize(
    "draw",
    ["randn_like", "rand_like", "bernoulli", "randint_like", "randn", "normal", "gumbel", "multinomial"],
)
def test_random_numbers_are_each_members_own(draw: str) -> None:
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "randn_like": torch.randn_like,
        "rand_like": torch.rand_like,
        "bernoulli": lambda x: torch.bernoulli(torch.sigmoid(x)),
        "randint_like": lambda x: torch.randint_like(x, 1000),
        "randn": lambda x: torch.randn(50, dtype=x.dtype),
        "normal": lambda x: torch.normal(0.0, 1.0, (50,), dtype=x.dtype),
        "gumbel": lambda x: F.gumbel_softmax(x),
        "multinomial": lambda x: torch.multinomial(x.softmax(0), 40, replacement=True).double(),
    }
    array = fuse(
        build_members(lambda: Calls(Noisy(nn.Identity()), lambda m, x: functions[draw](m(x)) + 0 * m.scale))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FusionWarning)
        out = array(normal_tensor(50))
    assert not torch.equal(out[0], out[1])
    assert not torch.equal(out[1], out[2])


HALF = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
LOSSES: list[tuple[str, Callable[..., Tensor], Tensor]] = [
    ("cross entropy", F.cross_entropy, integer_tensor(3, 5)),
    ("cross entropy, summed", lambda o, t: F.cross_entropy(o, t, reduction="sum"), integer_tensor(3, 5)),
    ("cross entropy with weights", lambda o, t: F.cross_entropy(o, t, weight=HALF), integer_tensor(3, 5)),
    (
        "cross entropy, smoothed",
        lambda o, t: F.cross_entropy(o, t, label_smoothing=0.2),
        integer_tensor(3, 5),
    ),
    (
        "cross entropy, smoothed with weights",
        lambda o, t: F.cross_entropy(o, t, weight=HALF, label_smoothing=0.2),
        integer_tensor(3, 5),
    ),
    ("cross entropy, ignoring", lambda o, t: F.cross_entropy(o, t, ignore_index=1), integer_tensor(3, 5)),
    ("cross entropy, ignoring -100", F.cross_entropy, torch.tensor([0, -100, 2, 1, -100])),
    ("cross entropy of shares", F.cross_entropy, normal_tensor(5, 3).softmax(1)),
    ("cross entropy module", nn.CrossEntropyLoss(weight=HALF), integer_tensor(3, 5)),
    ("nll", lambda o, t: F.nll_loss(o.log_softmax(1), t, weight=HALF, ignore_index=0), integer_tensor(3, 5)),
    ("mse", F.mse_loss, normal_tensor(5, 3)),
    ("mse, summed", lambda o, t: F.mse_loss(o, t, reduction="sum"), normal_tensor(5, 3)),
    ("l1", F.l1_loss, normal_tensor(5, 3)),
    ("smooth l1", lambda o, t: F.smooth_l1_loss(o, t, beta=0.3), normal_tensor(5, 3)),
    ("huber", lambda o, t: F.huber_loss(o, t, delta=0.3, reduction="sum"), normal_tensor(5, 3)),
    ("bce", lambda o, t: F.binary_cross_entropy(o.sigmoid(), t), normal_tensor(5, 3).sigmoid()),
    (
        "bce with logits",
        lambda o, t: F.binary_cross_entropy_with_logits(o, t, weight=HALF, pos_weight=HALF),
        normal_tensor(5, 3).sigmoid(),
    ),
    ("kl", lambda o, t: F.kl_div(o.log_softmax(1), t, reduction="batchmean"), normal_tensor(5, 3).softmax(1)),
    (
        "kl of logarithms",
        lambda o, t: F.kl_div(o.log_softmax(1), t, reduction="sum", log_target=True),
        normal_tensor(5, 3).log_softmax(1),
    ),
    ("poisson", F.poisson_nll_loss, normal_tensor(5, 3).abs()),
    ("hinge", F.hinge_embedding_loss, normal_tensor(5, 3).sign()),
    (
        "margin ranking",
        lambda o, t: F.margin_ranking_loss(o[:, 0], o[:, 1], t, margin=0.3),
        normal_tensor(5).sign(),
    ),
    ("multi margin", F.multi_margin_loss, integer_tensor(3, 5)),
    ("multilabel margin", F.multilabel_margin_loss, torch.tensor([[0, 1, -1]] * 5)),
    ("multilabel soft margin", F.multilabel_soft_margin_loss, integer_tensor(2, 5, 3).double()),
    ("soft margin", F.soft_margin_loss, normal_tensor(5, 3).sign()),
    ("triplet", lambda o, t: F.triplet_margin_loss(o, t, t.flip(0)), normal_tensor(5, 3)),
    (
        "triplet with a distance",
        lambda o, t: F.triplet_margin_with_distance_loss(o, t, t.flip(0)),
        normal_tensor(5, 3),
    ),
    (
        "cosine embedding",
        lambda o, t: F.cosine_embedding_loss(o, o.flip(0), t, margin=0.1),
        normal_tensor(5).sign(),
    ),
    ("ctc", lambda o, t: F.ctc_loss(o.log_softmax(-1).unsqueeze(1), t, (5,), (2,)), torch.tensor([[1, 2]])),
    ("gaussian", lambda o, t: F.gaussian_nll_loss(o[:, 0], t[:, 0], o[:, 1].exp()), normal_tensor(5, 3)),
]
LOOPS = {
    "multilabel margin": "multilabel_margin_loss",
    "multi margin": "multi_margin_loss",
    "ctc": "ctc|lambda",
    "gaussian": "lambda",
    "margin ranking": "margin_ranking_loss",
    "soft margin": "soft_margin_loss",
    "triplet": "triplet_margin_loss",
}


@pytest.mark.parametrize("each", [False, True], ids=["one target", "a target of each"])
@pytest.mark.parametrize(("name", "loss", "target"), LOSSES, ids=[name for name, *_ in LOSSES])
def test_losses_are_each_members_own(
    name: str, loss: Callable[..., Tensor], target: Tensor, each: bool
) -> None:
    x = normal_tensor(5, 4)
    args, aim = own_rows((x, target)) if each else (x, target)
    if each and target.is_floating_point():
        aim = torch.stack([target] * B)
    loops = "lambda" if each and name == "cross entropy, smoothed with weights" else LOOPS.get(name)
    with pytest.warns(FusionWarning, match=loops) if loops else nullcontext():
        assert_same_training(
            lambda: nn.Linear(4, 3), args, members=each, loss=loss, target=aim, lr=0.01, steps=1
        )


def test_losses_are_a_vector() -> None:
    models = build_members(lambda: nn.Linear(4, 3))
    array = fuse(models)
    losses = array.loss(F.cross_entropy, array(normal_tensor(5, 4)), integer_tensor(3, 5))
    assert losses.shape == (B,)
    assert_same(
        select_member(losses, 1),
        F.cross_entropy(models[1](normal_tensor(5, 4)), integer_tensor(3, 5)),
        "loss",
    )


@pytest.mark.parametrize("index", [5, -1])
def test_an_invalid_index_of_one_member_never_reads_the_row_of_another(index: int) -> None:
    array = fuse(build_members(lambda: nn.Embedding(5, 3)))
    for member in range(B):
        rows = integer_tensor(5, B, 4)
        rows[member, 2] = index
        with pytest.raises(IndexError, match="out of range"):
            array(rows, members=True)
    with pytest.raises(IndexError, match="out of range"):
        array(torch.tensor([0, index]))


TWO_SIDED: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "grid sample": (
        lambda a, b: F.grid_sample(a, b, align_corners=False),
        (normal_tensor(2, 4, 5, 5), normal_tensor(2, 3, 3, 2)),
    ),
    "matmul": (torch.matmul, (normal_tensor(2, 4, 5), normal_tensor(2, 5, 3))),
    "baddbmm": (torch.baddbmm, (normal_tensor(2, 4, 3), normal_tensor(2, 4, 5), normal_tensor(2, 5, 3))),
    "linear": (F.linear, (normal_tensor(2, 4), normal_tensor(3, 4), normal_tensor(3))),
    "convolution": (F.conv2d, (normal_tensor(2, 4, 5, 5), normal_tensor(3, 4, 2, 2), normal_tensor(3))),
    "transposed convolution": (
        F.conv_transpose2d,
        (normal_tensor(2, 4, 3, 3), normal_tensor(4, 3, 2, 2), normal_tensor(3)),
    ),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, (5,), w, b),
        (normal_tensor(2, 4, 5), normal_tensor(5), normal_tensor(5)),
    ),
    "group norm": (
        lambda x, w, b: F.group_norm(x, 2, w, b),
        (normal_tensor(2, 4, 5), normal_tensor(4), normal_tensor(4)),
    ),
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        (normal_tensor(2, 4, 5), normal_tensor(4), normal_tensor(4)),
    ),
    "attention": (
        F.scaled_dot_product_attention,
        (normal_tensor(2, 2, 3, 4), normal_tensor(2, 2, 5, 4), normal_tensor(2, 2, 5, 4)),
    ),
    "embedding": (F.embedding, (integer_tensor(5, 2, 3), normal_tensor(5, 4))),
    "gather": (lambda a, i: a.gather(1, i), (normal_tensor(4, 5), integer_tensor(5, 4, 3))),
    "index": (lambda a, i: a[:, i], (normal_tensor(4, 5, 6), integer_tensor(5, 3))),
    "scatter": (
        lambda a, i, s: a.scatter_add(1, i, s),
        (normal_tensor(4, 5), integer_tensor(5, 4, 3), normal_tensor(4, 3)),
    ),
    "where": (
        lambda c, a, b: torch.where(c > 0, a, b),
        (normal_tensor(4, 1), normal_tensor(4, 5), normal_tensor(5)),
    ),
    "cat": (lambda a, b: torch.cat([a, b], -1), (normal_tensor(2, 4, 5), normal_tensor(2, 4, 3))),
    "bilinear": (
        F.bilinear,
        (normal_tensor(3, 4), normal_tensor(3, 5), normal_tensor(2, 4, 5), normal_tensor(2)),
    ),
    "cross entropy": (F.cross_entropy, (normal_tensor(4, 5), integer_tensor(5, 4))),
    "view": (lambda a, b: a.view(-1)[:4] + b.view(-1), (normal_tensor(2, 3, 4), normal_tensor(2, 2))),
}


@pytest.mark.parametrize("name", TWO_SIDED)
def test_members_may_be_in_any_dimension(name: str) -> None:
    function, args = TWO_SIDED[name]
    choices = [[None, *range(a.dim() + 1)] for a in args]
    for dims in itertools.product(*choices):
        if all(d is None for d in dims):
            continue
        rows = [a if d is None else own_rows((a,))[0].movedim(0, d) for a, d in zip(args, dims, strict=True)]
        alone = [
            function(
                *(r if d is None else r.select(d, m).contiguous() for r, d in zip(rows, dims, strict=True))
            )
            for m in range(B)
        ]
        with LoweringMode(Ways()):
            out = torch.vmap(function, in_dims=dims)(*rows)
        assert_same(out, torch.stack(alone), f"members in {dims}")

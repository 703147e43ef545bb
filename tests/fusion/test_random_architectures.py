"""Random architectures: fused and compared with separate training of their members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from support.fusion_equality import ALL_WAYS, B, assert_same_training, normal_tensor  # noqa: E402
from wattline.fusion import Ways  # noqa: E402

IMAGES = (
    "conv",
    "point",
    "depthwise",
    "transposed",
    "batch",
    "group",
    "instance",
    "pool",
    "average",
    "up",
    "squeeze",
    "residual",
    "branch",
    "twice",
    "nested",
    "act",
    "shuffle",
    "permuted",
    "split",
    "gate",
    "scale",
)
VECTORS = (
    "linear",
    "batch",
    "layer",
    "residual",
    "branch",
    "twice",
    "nested",
    "act",
    "chunk",
    "softmax",
    "einsum",
    "matmul",
    "stats",
    "gate",
    "scale",
    "rms",
    "cumsum",
    "rnn",
    "attention",
)
ACTS = ("relu", "gelu", "tanh", "silu", "leaky_relu", "softplus", "relu_")


@dataclass(frozen=True)
class Step:
    """One layer: its kind, parameters and inner layers."""

    kind: str
    n: int
    inside: tuple[Step, ...] = ()


def steps(kinds: tuple[str, ...], depth: int = 2) -> st.SearchStrategy[tuple[Step, ...]]:
    inner = steps(kinds, depth - 1) if depth else st.just(())
    one = st.builds(Step, st.sampled_from(kinds), st.integers(0, 7), inner)
    return st.lists(one, min_size=0 if depth < 2 else 1, max_size=3 if depth == 2 else 2).map(tuple)


class Layer(nn.Module):
    """A layer that keeps the shape [N, C, H, W] or [N, C]."""

    def __init__(self, step: Step, channels: int, image: bool) -> None:
        super().__init__()
        self.step, self.image = step, image
        kind, n, c = step.kind, step.n, channels
        make: dict[str, Any] = {
            "conv": lambda: nn.Conv2d(
                c, c, 3, padding=1, bias=n % 2 == 0, padding_mode=("zeros", "reflect")[n // 4]
            ),
            "point": lambda: nn.Conv2d(c, c, 1, bias=n % 2 == 0),
            "depthwise": lambda: nn.Conv2d(
                c, c, 3, padding=1 + n % 2, dilation=1 + n % 2, groups=c if n % 4 < 2 else 2
            ),
            "transposed": lambda: nn.ConvTranspose2d(c, c, 3, padding=1, groups=1 + n % 2),
            "batch": lambda: (nn.BatchNorm2d if image else nn.BatchNorm1d)(
                c, affine=n % 2 == 0, momentum=0.3
            ),
            "group": lambda: nn.GroupNorm(2, c),
            "instance": lambda: nn.InstanceNorm2d(c, affine=n % 2 == 0, track_running_stats=n % 4 > 1),
            "linear": lambda: nn.Linear(c, c, bias=n % 2 == 0),
            "layer": lambda: nn.LayerNorm(c),
            "rms": lambda: nn.RMSNorm(c),
            "squeeze": lambda: nn.Linear(c, c),
            "twice": lambda: nn.Conv2d(c, c, 1 + 2 * (n % 2), padding=n % 2) if image else nn.Linear(c, c),
            "rnn": lambda: (nn.LSTM, nn.GRU, nn.RNN)[n % 3](2, 2, batch_first=True),
            "attention": lambda: nn.MultiheadAttention(2, 1 + n % 2, batch_first=True),
            "gate": lambda: nn.Conv2d(c, c, 1) if image else nn.Linear(c, c),
            "nested": lambda: nn.Sequential(
                nn.Sequential(*(Layer(s, c, image) for s in step.inside)), nn.Identity()
            ),
        }
        if kind in make:
            self.main = make[kind]()
        if kind in ("residual", "branch"):
            self.parts = nn.ModuleList(Layer(s, c, image) for s in step.inside)
        if kind == "scale":
            self.weight = nn.Parameter(torch.randn(c, 1, 1) if image else torch.randn(c))

    def forward(self, x: Tensor) -> Tensor:
        return self._image(x) if self.image and self.step.kind in SPATIAL else self._any(x)

    def _any(self, x: Tensor) -> Tensor:
        kind, n = self.step.kind, self.step.n
        if kind == "act":
            return F.relu_(x * 1) if n == 6 else getattr(F, ACTS[n % 6])(x)
        if kind == "residual":
            y = x
            for part in self.parts:
                y = part(y)
            return x + y if n % 2 else x.add(y).mul(0.5)
        if kind == "branch":
            ways = [part(x) for part in self.parts] or [x]
            if n % 3 == 0:
                return torch.stack(ways).mean(0)
            if n % 3 == 1:
                return torch.cat([x, *ways], dim=1).unflatten(1, (len(ways) + 1, -1)).amax(1)
            return torch.tanh(ways[0]) * ways[-1]
        if kind == "twice":
            return self.main(torch.tanh(self.main(x)))
        if kind == "gate":
            return x * torch.sigmoid(self.main(x))
        if kind == "scale":
            return x * self.weight
        if kind == "chunk":
            a, b = x.chunk(2, dim=1)
            return torch.cat((b, a * b), dim=-1)
        if kind == "softmax":
            return F.softmax(x, dim=n % 2) + F.log_softmax(x, dim=-1)
        if kind == "einsum":
            return torch.einsum("nc,md,mc->nd" if n % 2 else "nc,nd,nc->nd", x, x.tanh(), x.sigmoid())
        if kind == "matmul":
            y = x.view(len(x), 2, -1)
            return (y @ y.transpose(1, 2) @ y).reshape(len(x), -1)
        if kind == "stats":
            return (x - x.mean(1, keepdim=True)) / (x.std(0, keepdim=True) + 1) + x.max(1, keepdim=True)[0]
        if kind == "cumsum":
            return x.flip(0).cumsum(0).roll(1, 1)
        if kind == "rnn":
            return self.main(x.unflatten(1, (-1, 2)))[0].flatten(1)
        if kind == "attention":
            y = x.unflatten(1, (-1, 2))
            return self.main(y, y, y, need_weights=n < 4)[0].flatten(1)
        return self.main(x)

    def _image(self, x: Tensor) -> Tensor:
        kind, n = self.step.kind, self.step.n
        if kind == "pool":
            return F.max_pool2d(x, 3, 1, 1) if n % 2 else F.adaptive_max_pool2d(x, x.shape[2:])
        if kind == "average":
            return F.avg_pool2d(x, 3, 1, 1, count_include_pad=n % 2 == 0)
        if kind == "up":
            y = F.interpolate(x, scale_factor=2, mode=("nearest", "bilinear", "bicubic")[n % 3])
            return y[:, :, ::2, 1::2] if n % 2 else F.avg_pool2d(y, 2)
        if kind == "squeeze":
            b, c = x.size()[:2]
            return x * torch.sigmoid(self.main(F.adaptive_avg_pool2d(x, 1).view(b, c))).view(b, c, 1, 1)
        if kind == "shuffle":
            b, c, h, w = x.shape
            return x.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().view(b, -1, h, w)
        if kind == "permuted":
            y = x.permute(0, 2, 3, 1)
            return (y + y.mean((1, 2), keepdim=True)).permute(0, 3, 1, 2)
        assert kind == "split"
        a, b = x.split(x.shape[1] // 2, dim=1)
        return torch.cat([a.transpose(2, 3), b], 1)


SPATIAL = ("pool", "average", "up", "squeeze", "shuffle", "permuted", "split")


class RandomModel(nn.Module):
    """Layers on images, a transition, layers on vectors."""

    def __init__(self, images: tuple[Step, ...], how: int, vectors: tuple[Step, ...]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.images = nn.ModuleList(Layer(s, 4, image=True) for s in images)
        self.how = how
        self.neck = nn.Linear((64, 4, 16, 64)[how], 4)
        self.vectors = nn.ModuleDict({str(i): Layer(s, 4, image=False) for i, s in enumerate(vectors)})
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.images:
            x = layer(x)
        flat = [
            lambda: x.flatten(1),
            lambda: x.mean((2, 3)),
            lambda: F.max_pool2d(x, 2).reshape(len(x), -1),
            lambda: x.contiguous().view(x.size(0), -1),
        ]
        x = torch.tanh(self.neck(flat[self.how]()))
        for layer in self.vectors.values():
            x = layer(x)
        return self.head(x)


@given(
    images=steps(IMAGES),
    how=st.integers(0, 3),
    vectors=steps(VECTORS),
    own=st.booleans(),
    ways=st.sampled_from(ALL_WAYS),
    evaluate=st.booleans(),
)
@settings(max_examples=15)
def test_random_architectures_train_as_alone(
    images: tuple[Step, ...], how: int, vectors: tuple[Step, ...], own: bool, ways: Ways, evaluate: bool
) -> None:
    _check(images, how, vectors, own, ways, evaluate)


@pytest.mark.slow
@given(
    images=steps(IMAGES),
    how=st.integers(0, 3),
    vectors=steps(VECTORS),
    own=st.booleans(),
    ways=st.sampled_from(ALL_WAYS),
    evaluate=st.booleans(),
)
@settings(max_examples=300)
def test_more_random_architectures_train_as_alone(
    images: tuple[Step, ...], how: int, vectors: tuple[Step, ...], own: bool, ways: Ways, evaluate: bool
) -> None:
    _check(images, how, vectors, own, ways, evaluate)


def _check(
    images: tuple[Step, ...], how: int, vectors: tuple[Step, ...], own: bool, ways: Ways, evaluate: bool
) -> None:
    x = normal_tensor(B, 3, 2, 4, 4) if own else normal_tensor(3, 2, 4, 4)
    assert_same_training(
        lambda: RandomModel(images, how, vectors), x, members=own, ways=ways, evaluate=evaluate
    )


@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.parametrize("n", [0, 3])
def test_every_kind_of_layer_on_images(kind: str, n: int) -> None:
    inside = (Step("conv", 0), Step("batch", 1))
    _check((Step(kind, n, inside), Step("conv", 1)), n, (), own=False, ways=Ways(), evaluate=False)


@pytest.mark.parametrize("kind", VECTORS)
@pytest.mark.parametrize("n", [0, 5])
def test_every_kind_of_layer_on_vectors(kind: str, n: int) -> None:
    inside = (Step("linear", 0), Step("layer", 1))
    _check((), 1, (Step(kind, n, inside), Step("linear", 1)), own=True, ways=Ways(), evaluate=False)

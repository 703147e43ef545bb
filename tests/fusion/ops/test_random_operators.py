"""Operators that draw random numbers: each member draws its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from support.fusion_equality import B, assert_same_training, build_members, normal_tensor  # noqa: E402
from support.operator_cases.attention import attention_module, self_attention  # noqa: E402
from support.operator_cases.base import CustomCall  # noqa: E402
from wattline.fusion import FusionWarning, fuse  # noqa: E402

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
    array = fuse(build_members(attention_module(self_attention(), dropout=0.5)))
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
        build_members(
            lambda: CustomCall(Noisy(nn.Identity()), lambda m, x: functions[draw](m(x)) + 0 * m.scale)
        )
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FusionWarning)
        out = array(normal_tensor(50))
    assert not torch.equal(out[0], out[1])
    assert not torch.equal(out[1], out[2])

"""Whole unmodified models: an array of them trains like separate models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from support.fusion_equality import (  # noqa: E402
    ALL_WAYS,
    STEPS,
    B,
    assert_same,
    assert_same_state,
    assert_same_training,
    build_members,
    integer_tensor,
    normal_tensor,
    select_member,
)
from support.small_models import (  # noqa: E402
    MODELS,
    LanguageModel,
)
from wattline.fusion import FusionWarning, Ways, fuse  # noqa: E402


def trained(name: str, **more: Any) -> None:
    make, args, options = MODELS[name]
    options = {**options, **more}
    if options.pop("old", False):
        with pytest.warns(FutureWarning, match="weight_norm"):
            options["models"] = build_members(make)
    if options.pop("alone", False):
        with pytest.warns(FusionWarning):
            assert_same_training(make, *args, **options)
    else:
        assert_same_training(make, *args, **options)


@pytest.mark.parametrize("name", MODELS)
def test_models_train_as_alone(name: str) -> None:
    trained(name, steps=STEPS)


@pytest.mark.parametrize("name", MODELS)
def test_models_train_as_alone_on_data_of_their_own(name: str) -> None:
    _, args, options = MODELS[name]
    args = tuple(torch.stack([a, a.flip(0), a.flip(-1)]) for a in args)
    target = options.get("target")
    make, _, options = MODELS[name]
    MODELS["own data"] = (make, args, options)
    try:
        trained(
            "own data",
            members=True,
            steps=1,
            **({} if target is None else {"target": torch.stack([target] * B)}),
        )
    finally:
        del MODELS["own data"]


@pytest.mark.parametrize("name", [n for n in MODELS if "norm" not in n and n != "orthogonal"])
def test_models_are_evaluated_as_alone(name: str) -> None:
    trained(name, evaluate=True, steps=1)


@pytest.mark.parametrize("ways", ALL_WAYS, ids=str)
@pytest.mark.parametrize("name", ["ResNet", "MobileNet", "PointNet segmentation", "U-Net"])
def test_convolutional_models_in_every_way(name: str, ways: Ways) -> None:
    trained(name, ways=ways, steps=1)


def test_an_lstm_language_model_with_tied_weights_carries_its_state() -> None:
    models = build_members(LanguageModel)
    array = fuse(models)
    assert array.body.decoder.weight is array.body.encoder.weight
    ours = torch.optim.SGD(array.parameters(), lr=0.1)
    theirs = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    state = (torch.zeros(B, 2, 3, 4, dtype=torch.float64),) * 2
    states = [select_member(state, i) for i in range(B)]
    for step in range(4):
        words, target = integer_tensor(7, 5, 3, seed=step), integer_tensor(7, 15, seed=step)
        out, state = array(words, tuple(s.detach() for s in state), members=[False, True])
        ours.zero_grad()
        array.loss(F.nll_loss, out, target).sum().backward()
        torch.nn.utils.clip_grad_value_(array.parameters(), 0.5)
        for i, model in enumerate(models):
            mine, states[i] = model(words, tuple(s.detach() for s in states[i]))
            theirs[i].zero_grad()
            F.nll_loss(mine, target).backward()
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
            assert_same(select_member(out, i), mine, "output")
            assert_same(select_member(state, i), states[i], "state")
            theirs[i].step()
        ours.step()
    assert_same_state(array, models)


def test_a_dcgan_of_two_arrays() -> None:
    def generator() -> nn.Module:
        return nn.Sequential(
            nn.ConvTranspose2d(3, 4, 2, 1, 0, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(True),
            nn.ConvTranspose2d(4, 2, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def discriminator() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(2, 4, 3, 1, 1, bias=False),
            nn.BatchNorm2d(4),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(4, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
            nn.Flatten(0),
        )

    gs, ds = build_members(generator), build_members(discriminator)
    g, d = fuse(gs), fuse(ds)
    of_g, of_d = torch.optim.SGD(g.parameters(), 0.1), torch.optim.SGD(d.parameters(), 0.1)
    alone = [
        (torch.optim.SGD(a.parameters(), 0.1), torch.optim.SGD(b.parameters(), 0.1))
        for a, b in zip(gs, ds, strict=True)
    ]
    one, zero = torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    bce = F.binary_cross_entropy
    for step in range(4):
        real, noise = normal_tensor(4, 2, 4, 4, seed=step), normal_tensor(4, 3, 1, 1, seed=10 + step)
        of_d.zero_grad()
        fake = g(noise)
        d.loss(bce, d(real), one).sum().backward()
        d.loss(bce, d(fake.detach(), members=True), zero).sum().backward()
        of_d.step()
        of_g.zero_grad()
        d.loss(bce, d(fake, members=True), one).sum().backward()
        of_g.step()
        for a, b, (opt_a, opt_b) in zip(gs, ds, alone, strict=True):
            opt_b.zero_grad()
            fake = a(noise)
            bce(b(real), one).backward()
            bce(b(fake.detach()), zero).backward()
            opt_b.step()
            opt_a.zero_grad()
            bce(b(fake), one).backward()
            opt_a.step()
    assert_same_state(g, gs)
    assert_same_state(d, ds)


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc, self.mu, self.logvar, self.dec = (
            nn.Linear(4, 6),
            nn.Linear(6, 2),
            nn.Linear(6, 2),
            nn.Linear(2, 4),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.enc(x))
        mu, logvar = self.mu(h), self.logvar(h)
        std = torch.exp(0.5 * logvar)
        z = mu + torch.randn_like(std) * std
        return self.dec(z), mu, logvar


def test_a_vae_draws_for_each_member_and_each_call() -> None:
    torch.manual_seed(0)
    array = fuse([m := VAE(), copy.deepcopy(m)])
    x = torch.randn(4000, 4)
    out, mu, logvar = array(x)
    torch.testing.assert_close(mu[0], mu[1])
    assert not torch.equal(out[0], out[1])
    assert not torch.equal(out, array(x)[0])
    with torch.no_grad():
        noise = (out - torch.stack([m.dec(row) for row in mu])) @ torch.linalg.pinv(m.dec.weight.T)
        noise = noise / torch.exp(0.5 * logvar)
    assert noise.mean(1).abs().max() < 0.06
    assert (noise.std(1) - 1).abs().max() < 0.05
    assert abs(float(torch.corrcoef(noise[:, :, 0])[0, 1])) < 0.06
    losses = array.loss(
        lambda o, t: F.mse_loss(o[0], t) - 0.5 * (1 + o[2] - o[1] ** 2 - o[2].exp()).mean(),
        (out, mu, logvar),
        x,
    )
    assert losses.shape == (2,)
    losses.sum().backward()
    assert array.body.enc.weight.grad.abs().sum() > 0


@dataclass
class OutputDataclass:
    logits: Tensor
    hidden: dict[str, Tensor]
    note: str = "fine"
    nothing: Tensor | None = None


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


class OutputStructures(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.how = how

    def forward(self, x: Tensor, *, scale: float = 1.0, bias: Tensor | None = None, deep: Any = None) -> Any:
        y = self.fc(x) * scale
        if bias is not None:
            y = y + bias
        if deep is not None:
            y = y + deep["a"][0]
        return {
            "tuple": lambda: (y, None, 3, (x, "text")),
            "dict": lambda: {"y": y, "more": [y * 2, {"z": y.mean()}]},
            "dataclass": lambda: OutputDataclass(y, {"h": y * 2}),
            "nested dataclass": lambda: (y, [OutputDataclass(y, {"h": y * 2})]),
            "named tuple": lambda: Pair(y, y.sum()),
            "list": lambda: [y, y],
            "constant": lambda: (y, torch.ones(2, dtype=x.dtype), x),
            "max": lambda: y.max(1),
        }[self.how]()


@pytest.mark.parametrize(
    "how", ["tuple", "dict", "dataclass", "nested dataclass", "named tuple", "list", "constant", "max"]
)
def test_outputs_keep_their_structure(how: str) -> None:
    models = build_members(lambda: OutputStructures(how))
    out, alone = fuse(models)(normal_tensor(5, 4)), models[1](normal_tensor(5, 4))
    if how != "max":
        assert type(out) is type(alone)
    assert_same(select_member(out, 1), alone, how)
    if how == "dataclass":
        assert out.logits.shape == (B, 5, 3)
        assert out.note == "fine"
    assert_same_training(
        lambda: OutputStructures(how),
        normal_tensor(5, 4),
        loss=lambda o: _first(o).square().mean(),
        input_grad=False,
    )


def _first(out: Any) -> Tensor:
    return torch.utils._pytree.tree_flatten(out)[0][0]


def test_keyword_arguments_and_nested_ones_reach_every_member() -> None:
    words = {"scale": 2.0, "bias": normal_tensor(3), "deep": {"a": [normal_tensor(5, 3)]}}
    assert_same_training(
        lambda: OutputStructures("list"), normal_tensor(5, 4), kwargs=words, input_grad=False
    )
    own = {"bias": normal_tensor(B, 3), "deep": {"a": [normal_tensor(B, 5, 3)]}}
    assert_same_training(
        lambda: OutputStructures("list"), normal_tensor(B, 5, 4), kwargs=own, members=True, input_grad=False
    )


class Adapted(nn.Module):
    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.a, self.b = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x.flatten(1)[:, :4] @ self.a.T @ self.b.T


BASES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linear": (lambda: nn.Linear(4, 3), normal_tensor(5, 4)),
    "deep": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 3)),
        normal_tensor(5, 4),
    ),
    "convolutional": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(27, 3)),
        normal_tensor(5, 2, 4, 4),
    ),
    "batch norm, evaluated": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval(),
        normal_tensor(5, 4),
    ),
}


@pytest.mark.parametrize("name", BASES)
def test_adapters_over_a_frozen_base_that_is_stored_once(name: str) -> None:
    make, x = BASES[name]
    base = make().double().requires_grad_(False)
    before = copy.deepcopy(base.state_dict())
    models = build_members(lambda: Adapted(base))
    if "evaluated" in name:
        base.eval()
    array = assert_same_training(lambda: Adapted(base), x, models=models)
    assert array.common.keys() == {f"base.{n}" for n in before}
    assert array.stacked.keys() == {"a", "b"}
    assert all(torch.equal(before[n], t) for n, t in base.state_dict().items())
    assert all(
        array.body.get_parameter(n) is base.get_parameter(n[5:]) for n in array.common if "weight" in n
    )


def test_adapters_inside_of_a_frozen_base() -> None:
    frozen = nn.Linear(4, 4).double().requires_grad_(False)

    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = frozen
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.tanh(self.frozen(self.first(x))))

    assert_same_training(Inside, normal_tensor(5, 4), models=build_members(Inside))

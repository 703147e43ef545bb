"""Whole unmodified models: an array of them trains like separate models."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402

from support.fusion_equality import (  # noqa: E402
    ALL_WAYS,
    B,
    assert_same,
    assert_same_state,
    assert_same_training,
    build_members,
    integer_tensor,
    normal_tensor,
    select_member,
)
from wattline.fusion import FusionWarning, Ways, fuse  # noqa: E402


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 3, 3)
        self.conv2 = nn.Conv2d(3, 4, 2)
        self.fc1 = nn.Linear(4 * 2 * 2, 6)
        self.fc2 = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(-1, 4 * 2 * 2)
        return self.fc2(F.relu(self.fc1(x)))


class Residual(nn.Module):
    def __init__(self, inside: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inside != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        same = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += same
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(2, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        )
        self.layers = nn.Sequential(Residual(4, 4), Residual(4, 6, 2))
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.pool(self.layers(self.stem(x))), 1))


class Squeeze(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(channels, 2), nn.Linear(2, channels)

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.size()
        y = x.mean((2, 3)).view(b, c)
        y = torch.sigmoid(self.fc2(F.silu(self.fc1(y)))).view(b, c, 1, 1)
        return x * y.expand_as(x)


class Inverted(nn.Module):
    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        hidden = inside * 2
        self.use_res = stride == 1 and inside == out
        self.conv = nn.Sequential(
            nn.Conv2d(inside, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.Hardswish(inplace=True),
            Squeeze(hidden),
            nn.Conv2d(hidden, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.use_res else self.conv(x)


class TNet(nn.Module):
    def __init__(self, k: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(k, 4, 1), nn.Conv1d(4, 6, 1)
        self.fc1, self.fc2 = nn.Linear(6, 4), nn.Linear(4, k * k)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm1d(4), nn.BatchNorm1d(6), nn.BatchNorm1d(4)
        self.k = k

    def forward(self, x: Tensor) -> Tensor:
        batch = x.size()[0]
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = torch.max(x, 2, keepdim=True)[0]
        x = x.view(-1, 6)
        x = F.relu(self.bn3(self.fc1(x)))
        x = self.fc2(x)
        same = torch.eye(self.k, dtype=x.dtype).view(1, self.k * self.k).repeat(batch, 1)
        return (x + same).view(-1, self.k, self.k)


class PointFeatures(nn.Module):
    def __init__(self, all_points: bool) -> None:
        super().__init__()
        self.stn, self.fstn = TNet(3), TNet(4)
        self.conv1, self.conv2 = nn.Conv1d(3, 4, 1), nn.Conv1d(4, 5, 1)
        self.bn1, self.bn2 = nn.BatchNorm1d(4), nn.BatchNorm1d(5)
        self.all_points = all_points

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        points = x.size()[2]
        moved = self.stn(x)
        x = torch.bmm(x.transpose(2, 1), moved).transpose(2, 1)
        x = F.relu(self.bn1(self.conv1(x)))
        turned = self.fstn(x)
        x = torch.bmm(x.transpose(2, 1), turned).transpose(2, 1)
        near = x
        x = self.bn2(self.conv2(x))
        x = torch.max(x, 2, keepdim=True)[0].view(-1, 5)
        if not self.all_points:
            return x, moved, turned
        x = x.view(-1, 5, 1).repeat(1, 1, points)
        return torch.cat([x, near], 1), moved, turned


class PointClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.feat = PointFeatures(all_points=False)
        self.fc1, self.fc2, self.bn = nn.Linear(5, 4), nn.Linear(4, 3), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, moved, turned = self.feat(x)
        return F.log_softmax(self.fc2(F.relu(self.bn(self.fc1(x)))), dim=1), moved, turned


class PointSegmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.feat = PointFeatures(all_points=True)
        self.conv1, self.conv2, self.bn = nn.Conv1d(9, 4, 1), nn.Conv1d(4, 3, 1), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, points = x.size()[0], x.size()[2]
        x, moved, turned = self.feat(x)
        x = self.conv2(F.relu(self.bn(self.conv1(x)))).transpose(2, 1).contiguous()
        return F.log_softmax(x.view(-1, 3), dim=-1).view(batch, points, 3), moved, turned


def point_loss(out: Any, target: Tensor) -> Tensor:
    scores, _, turned = out
    eye = torch.eye(turned.shape[1], dtype=turned.dtype)[None, :, :]
    reg = torch.mean(torch.norm(torch.bmm(turned, turned.transpose(2, 1)) - eye, dim=(1, 2)))
    return F.nll_loss(scores.reshape(-1, 3), target.reshape(-1)) + 0.1 * reg


class Positions(nn.Module):
    pe: Tensor

    def __init__(self, width: int, longest: int = 16) -> None:
        super().__init__()
        at = torch.arange(longest).unsqueeze(1)
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        pe = torch.zeros(longest, 1, width)
        pe[:, 0, 0::2], pe[:, 0, 1::2] = torch.sin(at * rate), torch.cos(at * rate)
        self.register_buffer("pe", pe)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[: x.size(0)]


class EncoderClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(7, 4), Positions(4)
        layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(4, 3)

    def forward(self, words: Tensor) -> Tensor:
        x = self.positions(self.embed(words.T) * math.sqrt(4))
        mask = nn.Transformer.generate_square_subsequent_mask(len(x), dtype=x.dtype)
        return self.out(self.encoder(x, mask).mean(0))


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding(7, 4)
        self.rnn = nn.LSTM(4, 4, 2)
        self.decoder = nn.Linear(4, 7)
        self.decoder.weight = self.encoder.weight

    def forward(self, words: Tensor, hidden: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, hidden = self.rnn(self.encoder(words), hidden)
        return F.log_softmax(self.decoder(out).view(-1, 7), dim=1), hidden


class Attention(nn.Module):
    mask: Tensor

    def __init__(self, flash: bool) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(4, 12), nn.Linear(4, 4)
        self.flash = flash
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)).view(1, 1, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(4, dim=2)
        q, k, v = (z.view(b, t, 2, c // 2).transpose(1, 2) for z in (q, k, v))
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
            y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    def __init__(self, flash: bool) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(4), Attention(flash), nn.LayerNorm(4)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(4, 8), "act": nn.GELU(), "c_proj": nn.Linear(8, 4)})

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](self.mlp["act"](self.mlp["c_fc"](self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, flash: bool) -> None:
        super().__init__()
        parts = {"wte": nn.Embedding(7, 4), "wpe": nn.Embedding(8, 4), "ln_f": nn.LayerNorm(4)}
        self.transformer = nn.ModuleDict({**parts, "h": nn.ModuleList([Block(flash) for _ in range(2)])})
        self.lm_head = nn.Linear(4, 7, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.transformer["wte"](idx) + self.transformer["wpe"](pos)
        for block in self.transformer["h"]:
            x = block(x)
        logits = self.lm_head(self.transformer["ln_f"](x))
        if targets is None:
            return logits[:, [-1], :], None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True))
        self.down2 = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.join = nn.Conv2d(6, 3, 3, padding=1)
        self.out = nn.Conv2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        up = self.up(two)
        rest = [one.size()[d] - up.size()[d] for d in (3, 2)]
        up = F.pad(up, [rest[0] // 2, rest[0] - rest[0] // 2, rest[1] // 2, rest[1] - rest[1] // 2])
        wide = F.interpolate(two, size=one.shape[2:], mode="bilinear", align_corners=False)
        return self.out(torch.relu(self.join(torch.cat([one, up], dim=1)))) + wide[:, :2]


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(2 + 2 * i), nn.ReLU(), nn.Conv2d(2 + 2 * i, 2, 3, padding=1))
            for i in range(3)
        )
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return self.out(F.adaptive_avg_pool2d(torch.cat(features, 1), 1).flatten(1))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(2, 4, 2, stride=2)
        self.cls_token = nn.Parameter(torch.randn(1, 1, 4))
        self.pos_embed = nn.Parameter(torch.randn(1, 5, 4))
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, norm_first=True)
                for _ in range(2)
            )
        )
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        return self.head(self.blocks(x)[:, 0])


class AllContainers(nn.Module):
    """A model with every container of parameters and modules."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 4)])])
        self.by_name = nn.ModuleDict(
            {"a": nn.Linear(4, 4), "b": nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))}
        )
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4, 4))])
        self.named = nn.ParameterDict(
            {"scale": nn.Parameter(torch.randn(())), "shift": nn.Parameter(torch.randn(4))}
        )
        self.twice = nn.Linear(4, 4)
        self.again = self.twice
        self.none = None
        self.register_parameter("nothing", None)
        self.register_buffer("empty", None)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        for part in (self.parts[0], self.parts[1][0], self.by_name["a"], self.by_name["b"]):
            x = part(x)
        for weight in self.weights:
            x = x * weight if weight.dim() == 1 else x @ weight
        x = x * self.named["scale"] + self.named["shift"]
        return self.again(torch.tanh(self.twice(x)))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...], dict[str, Any]]] = {
    "MLP": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)),
        (normal_tensor(5, 2, 4),),
        {},
    ),
    "LeNet": (
        LeNet,
        (normal_tensor(4, 1, 12, 12),),
        {"loss": F.cross_entropy, "target": integer_tensor(3, 4)},
    ),
    "ResNet": (
        ResNet,
        (normal_tensor(4, 2, 6, 6),),
        {"loss": F.cross_entropy, "target": integer_tensor(3, 4)},
    ),
    "MobileNet": (
        lambda: nn.Sequential(Inverted(2, 2, 1), Inverted(2, 3, 2)),
        (normal_tensor(4, 2, 6, 6),),
        {},
    ),
    "PointNet": (
        PointClassifier,
        (normal_tensor(5, 3, 7),),
        {"lr": 0.01, "loss": point_loss, "target": integer_tensor(3, 5)},
    ),
    "PointNet segmentation": (
        PointSegmenter,
        (normal_tensor(5, 3, 7),),
        {"lr": 0.01, "loss": point_loss, "target": integer_tensor(3, 5, 7)},
    ),
    "transformer": (EncoderClassifier, (integer_tensor(7, 3, 5),), {}),
    "GPT, flash": (lambda: GPT(True), (integer_tensor(7, 2, 6), integer_tensor(7, 2, 6)), {}),
    "GPT, by hand": (lambda: GPT(False), (integer_tensor(7, 2, 6), integer_tensor(7, 2, 6)), {}),
    "GPT, answering": (lambda: GPT(True), (integer_tensor(7, 2, 6),), {}),
    "U-Net": (UNet, (normal_tensor(2, 2, 5, 5),), {}),
    "DenseNet": (Dense, (normal_tensor(3, 2, 4, 4),), {}),
    "squeeze and excite": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 1), Squeeze(4)),
        (normal_tensor(3, 2, 4, 4),),
        {},
    ),
    "autoencoder": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16, 3),
            nn.Linear(3, 16),
            nn.Unflatten(1, (4, 2, 2)),
            nn.ConvTranspose2d(4, 1, 3, 2, 1, 1),
            nn.Sigmoid(),
        ),
        (normal_tensor(3, 1, 4, 4),),
        {},
    ),
    "ViT": (ViT, (normal_tensor(3, 2, 4, 4),), {}),
    "containers": (AllContainers, (normal_tensor(3, 4),), {}),
    "weight norm": (
        lambda: nn.Sequential(
            parametrizations.weight_norm(nn.Linear(4, 3)),
            nn.Tanh(),
            parametrizations.weight_norm(nn.Linear(3, 2)),
        ),
        (normal_tensor(5, 4),),
        {},
    ),
    "spectral norm": (
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Conv2d(2, 3, 2)), nn.Tanh()),
        (normal_tensor(3, 2, 4, 4),),
        {"alone": True},
    ),
    "orthogonal": (
        lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4)), nn.Tanh()),
        (normal_tensor(3, 4),),
        {},
    ),
    "old weight norm": (
        lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3)), nn.Tanh(), nn.Linear(3, 2)),
        (normal_tensor(5, 4),),
        {"old": True},
    ),
    "old spectral norm": (
        lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 3)), nn.Tanh(), nn.Linear(3, 2)),
        (normal_tensor(5, 4),),
        {"alone": True},
    ),
}


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
    trained(name, steps=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_train_as_alone_for_twenty_steps(name: str) -> None:
    trained(name, steps=20)


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

"""Small versions of well-known models, with inputs and options to train them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from support.fusion_equality import integer_tensor, normal_tensor


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

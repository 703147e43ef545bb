"""Models and batches of the timed trainings, as users of fusion would write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class FusionCase:
    """A model, its batches, its loss, and its optimiser: a name in `torch.optim` and in `wattline.fusion`."""

    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    loss: Callable[..., Tensor] = F.cross_entropy
    optimiser: str = "Adam"

    def make_optimiser(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """Make the optimiser of `torch.optim` with its default values."""
        return getattr(torch.optim, self.optimiser)(parameters)


class PointNet(nn.Module):
    """A classifier of point clouds without transforms: shared layers for each point, then the maximum."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = (
            nn.Conv1d(3, 64, 1),
            nn.Conv1d(64, 128, 1),
            nn.Conv1d(128, 256, 1),
        )
        self.norm1, self.norm2, self.norm3 = nn.BatchNorm1d(64), nn.BatchNorm1d(128), nn.BatchNorm1d(256)
        self.fc1, self.fc2 = nn.Linear(256, 128), nn.Linear(128, classes)

    def forward(self, points: Tensor) -> Tensor:
        """[N, 3, points] → [N, classes]."""
        x = F.relu(self.norm1(self.conv1(points)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = self.norm3(self.conv3(x))
        x = torch.max(x, 2)[0]
        return self.fc2(F.relu(self.fc1(x)))


class Cnn(nn.Module):
    """Two convolutions for digits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 7 * 7, 10)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 1, 28, 28] → [N, 10]."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


class MnistExample(nn.Module):
    """The network of PyTorch's example for MNIST."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 1, 28, 28] → [N, 10], logarithms of probabilities."""
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = self.dropout1(F.max_pool2d(x, 2)).flatten(1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


class Encoder(nn.Module):
    """A transformer encoder that classifies sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(64, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """[N, 32] → [N, 10]."""
        return self.head(self.encoder(self.embed(tokens)).mean(1))


def build_tiny_mlp() -> nn.Module:
    """Build an MLP of a few thousand weights."""
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def build_mlp() -> nn.Module:
    """Build an MLP 784-128-10."""
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def build_cnn_norm() -> nn.Module:
    """Build two convolutions with batch norm, for small photographs."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 10),
    )


def _make_random_batch(shape: tuple[int, ...], classes: int) -> Callable[[torch.Generator], Batch]:
    def batch(generator: torch.Generator) -> Batch:
        return torch.randn(shape, generator=generator), torch.randint(
            0, classes, shape[:1], generator=generator
        )

    return batch


def _draw_tokens(generator: torch.Generator) -> Batch:
    return torch.randint(0, 1000, (16, 32), generator=generator), torch.randint(
        0, 10, (16,), generator=generator
    )


CASES = {
    "tiny MLP": FusionCase(build_tiny_mlp, _make_random_batch((32, 16), 4)),
    "MLP": FusionCase(build_mlp, _make_random_batch((64, 784), 10)),
    "CNN": FusionCase(Cnn, _make_random_batch((32, 1, 28, 28), 10)),
    "CNN+norm": FusionCase(build_cnn_norm, _make_random_batch((32, 3, 32, 32), 10)),
    "MNIST example": FusionCase(
        MnistExample, _make_random_batch((64, 1, 28, 28), 10), loss=F.nll_loss, optimiser="Adadelta"
    ),
    "PointNet": FusionCase(PointNet, _make_random_batch((16, 3, 256), 10)),
    "transformer": FusionCase(Encoder, _draw_tokens),
}

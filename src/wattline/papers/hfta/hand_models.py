"""The models of `hfta.models`, fused by hand, and their training steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from wattline.papers.hfta.hand_layers import (
    HandBatchNorm,
    HandConv1d,
    HandConv2d,
    HandEmbedding,
    HandEncoderStack,
    HandLinear,
    ToLinear,
    to_conv,
    to_linear,
)
from wattline.papers.hfta.hand_optimisers import OPTIMISERS
from wattline.papers.hfta.models import CASES, FusionCase


class HandCnn(nn.Module):
    """`hfta.models.Cnn` of B members."""

    def __init__(self, B: int) -> None:  # noqa: N803
        super().__init__()
        self.members = B
        self.conv1, self.conv2 = HandConv2d(B, 1, 16, 3, padding=1), HandConv2d(B, 16, 32, 3, padding=1)
        self.fc = HandLinear(B, 32 * 7 * 7, 10)

    def forward(self, x: Tensor) -> Tensor:
        """[N, B*1, 28, 28] → [B, N, 10]."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(to_linear(x, self.members))


class HandMnistExample(nn.Module):
    """`hfta.models.MnistExample` of B members."""

    def __init__(self, B: int) -> None:  # noqa: N803
        super().__init__()
        self.members = B
        self.conv1, self.conv2 = HandConv2d(B, 1, 32, 3), HandConv2d(B, 32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = HandLinear(B, 9216, 128), HandLinear(B, 128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """[N, B*1, 28, 28] → [B, N, 10]."""
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = to_linear(self.dropout1(F.max_pool2d(x, 2)), self.members)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=2)


class HandPointNet(nn.Module):
    """`hfta.models.PointNet` of B members."""

    def __init__(self, B: int) -> None:  # noqa: N803
        super().__init__()
        self.members = B
        self.conv1, self.conv2 = HandConv1d(B, 3, 64, 1), HandConv1d(B, 64, 128, 1)
        self.conv3 = HandConv1d(B, 128, 256, 1)
        self.norm1, self.norm2 = HandBatchNorm(B, 64), HandBatchNorm(B, 128)
        self.norm3 = HandBatchNorm(B, 256)
        self.fc1, self.fc2 = HandLinear(B, 256, 128), HandLinear(B, 128, 10)

    def forward(self, points: Tensor) -> Tensor:
        """[N, B*3, points] → [B, N, 10]."""
        x = F.relu(self.norm1(self.conv1(points)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = torch.max(self.norm3(self.conv3(x)), 2)[0]
        return self.fc2(F.relu(self.fc1(to_linear(x, self.members))))


class HandEncoder(nn.Module):
    """`hfta.models.Encoder` of B members."""

    def __init__(self, B: int) -> None:  # noqa: N803
        super().__init__()
        self.embed = HandEmbedding(B, 1000, 64)
        self.encoder = HandEncoderStack(B, 2, 64, 4, 128)
        self.head = HandLinear(B, 64, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, N, 32], or [N, 32] for all members, → [B, N, 10]."""
        x = self.embed(tokens)
        shape = x.shape
        x = self.encoder(x.flatten(1, 2), shape[2])
        return self.head(x.view(shape).mean(2))


def build_tiny_mlp(B: int) -> nn.Module:  # noqa: N803
    """Build the tiny MLP of B members."""
    return nn.Sequential(
        HandLinear(B, 16, 32), nn.ReLU(), HandLinear(B, 32, 32), nn.ReLU(), HandLinear(B, 32, 4)
    )


def build_mlp(B: int) -> nn.Module:  # noqa: N803
    """Build the MLP 784-128-10 of B members."""
    return nn.Sequential(HandLinear(B, 784, 128), nn.ReLU(), HandLinear(B, 128, 10))


def build_cnn_norm(B: int) -> nn.Module:  # noqa: N803
    """Build the two convolutions with batch norm of B members."""
    return nn.Sequential(
        HandConv2d(B, 3, 16, 3, padding=1),
        HandBatchNorm(B, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        HandConv2d(B, 16, 32, 3, padding=1),
        HandBatchNorm(B, 32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        ToLinear(B),
        HandLinear(B, 32 * 8 * 8, 10),
    )


@dataclass(frozen=True)
class HandFused:
    """The hand-fused model of a case, and the layout of its first layer: "conv", "linear" or "index"."""

    build: Callable[[int], nn.Module]
    layout: str

    def arrange(self, xs: Tensor) -> Tensor:
        """Bring batches [B, N, …] into the layout of the first layer."""
        return to_conv(xs).contiguous() if self.layout == "conv" else xs

    def repeat(self, x: Tensor, members: int) -> Tensor:
        """Return one batch [N, …] as the input of all members, in the layout of the first layer."""
        if self.layout == "index":
            return x  # the embedding adds the offsets of the members
        xs = x.expand(members, *x.shape)
        return to_conv(xs) if self.layout == "conv" else xs


HAND_FUSED = {
    "tiny MLP": HandFused(build_tiny_mlp, "linear"),
    "MLP": HandFused(build_mlp, "linear"),
    "CNN": HandFused(HandCnn, "conv"),
    "CNN+norm": HandFused(build_cnn_norm, "conv"),
    "MNIST example": HandFused(HandMnistExample, "conv"),
    "PointNet": HandFused(HandPointNet, "conv"),
    "transformer": HandFused(HandEncoder, "index"),
}


def compute_loss(case: FusionCase, output: Tensor, target: Tensor) -> Tensor:
    """Return the sum of the members' mean losses: the loss of the folded batch, times B."""
    return case.loss(output.flatten(0, 1), target.reshape(-1)) * output.shape[0]


def build_hand_fused_run(
    name: str, models: list[nn.Module], xs: Tensor, ys: Tensor, *, shared: bool = False
) -> Callable[[], object]:
    """Return a training step of the hand-fused case, with the weights of *models*.

    *xs* and *ys* have a leading axis of members; with *shared* they are one batch for all.
    """
    case, fused, members = CASES[name], HAND_FUSED[name], len(models)
    model = fused.build(members)
    load_members(model, models)
    optimiser = OPTIMISERS[case.optimiser](model.parameters(), members)
    inputs = xs if shared else fused.arrange(xs)

    def run() -> None:
        optimiser.zero_grad()
        x = fused.repeat(inputs, members) if shared else inputs
        y = ys.expand(members, *ys.shape) if shared else ys
        compute_loss(case, model(x), y).backward()
        optimiser.step()

    return run


def stack_members(model: nn.Module, name: str, tensors: Sequence[Tensor]) -> Tensor:
    """Stack a tensor of separate models as the hand-fused *model* stores it."""
    owner, _, last = name.rpartition(".")
    stacked = torch.stack(list(tensors))
    transposed = getattr(model.get_submodule(owner), "transposed", ())
    return stacked.transpose(1, 2) if last in transposed else stacked


@torch.no_grad()
def load_members(model: nn.Module, models: Sequence[nn.Module]) -> None:
    """Copy parameters and buffers of separate models into a hand-fused one; names must be the same."""
    states = [member.state_dict() for member in models]
    missing = {n for n in states[0] if not n.endswith("num_batches_tracked")} ^ set(model.state_dict())
    if missing:
        raise ValueError(f"names differ between the hand-fused and the separate model: {sorted(missing)}")
    for name, tensor in model.state_dict().items():
        tensor.copy_(stack_members(model, name, [state[name] for state in states]))

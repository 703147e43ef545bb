"""HFTA's way of fusing: operators and optimisers written by hand for B members, and the cases with them.

    python benchmarks/hfta_operators.py [--width 3]        checks every case against separate models

Written from the rules of the paper (MLSys'21, arXiv 2102.02344), not from its code. Modules take *B* in the
constructor. Every parameter has a leading axis of B members. Convolutions, batch norm and pooling work on
[N, B*C, …], linear layers, layer norm, embedding and attention on [B, N, …]; `to_linear` and `to_conv`
convert. Everything runs eagerly, like the original.

Where the paper leaves a choice, the faster one is taken, so that the baseline is not weak. Linear weights are
stored as [B, in, out]: their gradient needs no copy. The factors of an optimiser's update are computed once a
step instead of once for each parameter. Batches of several members come in the layout of the first layer
(`HandFused.arrange`, outside of the timed step).

`check_hand_fused` compares with B separate models in float64, without dropout: outputs, losses, gradients,
running statistics, and the updates of the optimiser with a learning rate of its own for each member.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from fusion_models import CASES, Case
from torch import Tensor, nn

Step = Callable[[], object]


def to_conv(x: Tensor) -> Tensor:
    """[B, N, C, …] → [N, B*C, …]."""
    return x.transpose(0, 1).flatten(1, 2)


def to_linear(x: Tensor, members: int) -> Tensor:
    """[N, B*C, …] → [B, N, C*…]."""
    return x.reshape(x.shape[0], members, -1).transpose(0, 1)


def _stack(layers: Sequence[nn.Module], name: str) -> nn.Parameter:
    return nn.Parameter(torch.stack([layer.get_parameter(name).detach() for layer in layers]))


class HandLinear(nn.Module):
    """`nn.Linear` of B members as one baddbmm: [B, N, in] → [B, N, out]."""

    transposed = ("weight",)  # stored as [B, in, out]

    def __init__(self, B: int, features: int, out_features: int) -> None:  # noqa: N803
        super().__init__()
        layers = [nn.Linear(features, out_features) for _ in range(B)]
        self.weight = nn.Parameter(_stack(layers, "weight").detach().transpose(1, 2).contiguous())
        self.bias = _stack(layers, "bias")

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, in] → [B, N, out]."""
        return torch.baddbmm(self.bias.unsqueeze(1), x, self.weight)


class _HandConv(nn.Module):
    """A grouped convolution with a group for each group of each member."""

    layer: type[nn.Module]

    def __init__(self, B: int, channels: int, out_channels: int, kernel: int, padding: int = 0) -> None:  # noqa: N803
        super().__init__()
        layers = [self.layer(channels, out_channels, kernel) for _ in range(B)]
        self.weight, self.bias = _stack(layers, "weight"), _stack(layers, "bias")
        self.members, self.padding = B, padding


class HandConv1d(_HandConv):
    """`nn.Conv1d` of B members."""

    layer = nn.Conv1d

    def forward(self, x: Tensor) -> Tensor:
        """[N, B*C, L] → [N, B*C', L']."""
        weight, bias = self.weight.flatten(0, 1), self.bias.flatten()
        return F.conv1d(x, weight, bias, padding=self.padding, groups=self.members)


class HandConv2d(_HandConv):
    """`nn.Conv2d` of B members."""

    layer = nn.Conv2d

    def forward(self, x: Tensor) -> Tensor:
        """[N, B*C, H, W] → [N, B*C', H', W']."""
        weight, bias = self.weight.flatten(0, 1), self.bias.flatten()
        return F.conv2d(x, weight, bias, padding=self.padding, groups=self.members)


class HandBatchNorm(nn.Module):
    """`nn.BatchNorm1d` and `nn.BatchNorm2d` of B members: one batch norm over B*C channels."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, B: int, channels: int) -> None:  # noqa: N803
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(B, channels)), nn.Parameter(torch.zeros(B, channels))
        self.register_buffer("running_mean", torch.zeros(B, channels))
        self.register_buffer("running_var", torch.ones(B, channels))

    def forward(self, x: Tensor) -> Tensor:
        """[N, B*C, …] → the same."""
        mean, variance = self.running_mean.view(-1), self.running_var.view(-1)
        return F.batch_norm(x, mean, variance, self.weight.view(-1), self.bias.view(-1), self.training)


class HandLayerNorm(nn.Module):
    """`nn.LayerNorm` of B members: normalise, then scale and shift by member."""

    def __init__(self, B: int, features: int) -> None:  # noqa: N803
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(B, features)), nn.Parameter(torch.zeros(B, features))

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, F] → the same."""
        x = F.layer_norm(x, x.shape[-1:])
        return torch.addcmul(self.bias.unsqueeze(1), x, self.weight.unsqueeze(1))


class HandEmbedding(nn.Module):
    """`nn.Embedding` of B members: one table of B*V rows, member b reads rows index + b*V."""

    offsets: Tensor

    def __init__(self, B: int, rows: int, features: int) -> None:  # noqa: N803
        super().__init__()
        self.weight = _stack([nn.Embedding(rows, features) for _ in range(B)], "weight")
        self.register_buffer("offsets", (torch.arange(B) * rows)[:, None, None], persistent=False)

    def forward(self, index: Tensor) -> Tensor:
        """[B, N, L], or [N, L] for all members, → [B, N, L, E]."""
        return F.embedding(index + self.offsets, self.weight.flatten(0, 1))


class HandMultiheadAttention(nn.Module):
    """`nn.MultiheadAttention` of a sequence with itself, of B members: batched products over B*N*H heads."""

    transposed = ("in_proj_weight",)  # stored as [B, in, out]

    def __init__(self, B: int, features: int, heads: int, dropout: float) -> None:  # noqa: N803
        super().__init__()
        layers = [nn.MultiheadAttention(features, heads) for _ in range(B)]
        self.in_proj_weight = nn.Parameter(
            _stack(layers, "in_proj_weight").detach().transpose(1, 2).contiguous()
        )
        self.in_proj_bias = _stack(layers, "in_proj_bias")
        self.out_proj = HandLinear(B, features, features)
        self.heads, self.dropout = heads, dropout

    def forward(self, x: Tensor, length: int) -> Tensor:
        """[B, N*length, E] → the same."""
        members, rows, features = x.shape
        projected = torch.baddbmm(self.in_proj_bias.unsqueeze(1), x, self.in_proj_weight)
        # [B*N, L, 3, H, E/H] → [3, B*N, H, L, E/H]
        parts = projected.view(-1, length, 3, self.heads, features // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = (part.flatten(0, 1) for part in parts.unbind(0))
        scores = torch.bmm(query * (1 / math.sqrt(query.shape[-1])), key.transpose(1, 2)).softmax(-1)
        if self.dropout:
            scores = F.dropout(scores, self.dropout, self.training)
        mixed = torch.bmm(scores, value).view(-1, self.heads, length, features // self.heads)
        return self.out_proj(mixed.transpose(1, 2).reshape(members, rows, features))


class HandEncoderLayer(nn.Module):
    """`nn.TransformerEncoderLayer` of B members, with the norm after each part and ReLU."""

    def __init__(self, B: int, features: int, heads: int, hidden: int, dropout: float = 0.1) -> None:  # noqa: N803
        super().__init__()
        self.self_attn = HandMultiheadAttention(B, features, heads, dropout)
        self.linear1, self.linear2 = HandLinear(B, features, hidden), HandLinear(B, hidden, features)
        self.norm1, self.norm2 = HandLayerNorm(B, features), HandLayerNorm(B, features)
        self.drop, self.drop1, self.drop2 = nn.Dropout(dropout), nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x: Tensor, length: int) -> Tensor:
        """[B, N*length, E] → the same."""
        x = self.norm1(x + self.drop1(self.self_attn(x, length)))
        return self.norm2(x + self.drop2(self.linear2(self.drop(F.relu(self.linear1(x))))))


class HandEncoderStack(nn.Module):
    """`nn.TransformerEncoder` of B members."""

    def __init__(self, B: int, layers: int, features: int, heads: int, hidden: int) -> None:  # noqa: N803
        super().__init__()
        self.layers = nn.ModuleList(HandEncoderLayer(B, features, heads, hidden) for _ in range(layers))

    def forward(self, x: Tensor, length: int) -> Tensor:
        """[B, N*length, E] → the same."""
        for layer in self.layers:
            x = layer(x, length)
        return x


class ToLinear(nn.Module):
    """`nn.Flatten` between the layouts: [N, B*C, …] → [B, N, C*…]."""

    def __init__(self, B: int) -> None:  # noqa: N803
        super().__init__()
        self.members = B

    def forward(self, x: Tensor) -> Tensor:
        """[N, B*C, …] → [B, N, C*…]."""
        return to_linear(x, self.members)


class HandCnn(nn.Module):
    """`fusion_models.Cnn` of B members."""

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
    """`fusion_models.MnistExample` of B members."""

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
    """`fusion_models.PointNet` of B members."""

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
    """`fusion_models.Encoder` of B members."""

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


class _HandOptimiser:
    """State and values of B members; `step` is an eager loop over parameters, as in torch's single-tensor."""

    state_names: tuple[str, ...]

    def __init__(self, parameters: Iterable[Tensor], members: int, **values: float | Sequence[float]) -> None:
        self.parameters = list(parameters)
        dtype = self.parameters[0].dtype
        self.values = {
            name: torch.as_tensor(value, dtype=dtype).expand(members).contiguous()
            for name, value in values.items()
        }
        self.state = [tuple(torch.zeros_like(p) for _ in self.state_names) for p in self.parameters]
        self.steps = 0

    def zero_grad(self) -> None:
        """Drop the gradients, as `torch.optim` does."""
        for parameter in self.parameters:
            parameter.grad = None


def _broadcast(vectors: Iterable[Tensor], parameter: Tensor) -> list[Tensor]:
    """View vectors [B] as [B, 1, …] for a parameter [B, …]."""
    shape = (-1,) + (1,) * (parameter.ndim - 1)
    return [vector.view(shape) for vector in vectors]


class HandAdam(_HandOptimiser):
    """Adam with one value of lr, beta1, beta2 and eps for each member."""

    state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        parameters: Iterable[Tensor],
        members: int,
        lr: float | Sequence[float] = 1e-3,
        betas: tuple[float | Sequence[float], float | Sequence[float]] = (0.9, 0.999),
        eps: float | Sequence[float] = 1e-8,
    ) -> None:
        super().__init__(parameters, members, lr=lr, beta1=betas[0], beta2=betas[1], eps=eps)

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters of all members."""
        self.steps += 1
        lr, beta1, beta2, eps = self.values.values()
        size = lr / (beta1**self.steps - 1)  # negative
        # p += size * m / (sqrt(v) / root + eps) = m / (sqrt(v) * scale + shift)
        scale = 1 / ((1 - beta2**self.steps).sqrt() * size)
        vectors = (1 - beta1, beta2, 1 - beta2, scale, eps / size)
        for parameter, (mean, square) in zip(self.parameters, self.state, strict=True):
            grad = parameter.grad
            if grad is None:
                continue
            rest1, kept2, rest2, factor, shift = _broadcast(vectors, parameter)
            mean.lerp_(grad, rest1)
            square.mul_(kept2).addcmul_(grad * rest2, grad)
            parameter.addcdiv_(mean, square.sqrt().mul_(factor).add_(shift))


class HandAdadelta(_HandOptimiser):
    """Adadelta with one value of lr, rho and eps for each member."""

    state_names = ("square_avg", "acc_delta")

    def __init__(
        self,
        parameters: Iterable[Tensor],
        members: int,
        lr: float | Sequence[float] = 1.0,
        rho: float | Sequence[float] = 0.9,
        eps: float | Sequence[float] = 1e-6,
    ) -> None:
        super().__init__(parameters, members, lr=lr, rho=rho, eps=eps)

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters of all members."""
        lr, rho, eps = self.values.values()
        vectors = (-lr, rho, 1 - rho, eps)
        for parameter, (square, moved) in zip(self.parameters, self.state, strict=True):
            grad = parameter.grad
            if grad is None:
                continue
            minus_lr, kept, rest, small = _broadcast(vectors, parameter)
            square.mul_(kept).addcmul_(grad * rest, grad)
            delta = moved.add(small).sqrt_().div_(square.add(small).sqrt_()).mul_(grad)
            moved.mul_(kept).addcmul_(delta * rest, delta)
            parameter.addcmul_(delta, minus_lr)


OPTIMISERS = {"Adam": HandAdam, "Adadelta": HandAdadelta}


def compute_loss(case: Case, output: Tensor, target: Tensor) -> Tensor:
    """Return the sum of the members' mean losses: the loss of the folded batch, times B."""
    return case.loss(output.flatten(0, 1), target.reshape(-1)) * output.shape[0]


def build_hand_fused_run(
    name: str, models: list[nn.Module], xs: Tensor, ys: Tensor, *, shared: bool = False
) -> Step:
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


def _stack_members(model: nn.Module, name: str, tensors: Sequence[Tensor]) -> Tensor:
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
        tensor.copy_(_stack_members(model, name, [state[name] for state in states]))


def disable_dropout(model: nn.Module) -> None:
    """Set the probability of all dropouts to 0, without leaving the training mode."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0


def check_hand_fused(name: str, width: int = 3, *, shared: bool = False) -> None:
    """Raise AssertionError unless the hand-fused case computes what *width* separate models compute."""
    case, fused = CASES[name], HAND_FUSED[name]
    generator = torch.Generator().manual_seed(1)
    models = [case.build().double() for _ in range(width)]
    model = fused.build(width).double()
    load_members(model, models)
    for each in (model, *models):
        disable_dropout(each)
    batches = [case.batch(generator) for _ in range(1 if shared else width)]
    batches = [(x.double() if x.is_floating_point() else x, y) for x, y in batches]
    if shared:
        inputs, targets = fused.repeat(batches[0][0], width), batches[0][1].expand(width, -1)
        batches *= width
    else:
        inputs = fused.arrange(torch.stack([x for x, _ in batches]))
        targets = torch.stack([y for _, y in batches])
    output = model(inputs)
    loss = compute_loss(case, output, targets)
    loss.backward()
    losses = []
    for member, own, (x, y) in zip(models, output, batches, strict=True):
        losses.append(case.loss(member(x), y))
        losses[-1].backward()
        torch.testing.assert_close(case.loss(own, y), losses[-1])
    torch.testing.assert_close(loss, torch.stack(losses).sum())
    for key, parameter in model.named_parameters():
        own = _stack_members(model, key, [m.get_parameter(key).grad for m in models])  # type: ignore[misc]
        torch.testing.assert_close(parameter.grad, own, msg=lambda text, key=key: f"grad of {key}: {text}")
    for key, buffer in model.named_buffers():
        if key in models[0].state_dict():
            own = _stack_members(model, key, [m.get_buffer(key) for m in models])
            torch.testing.assert_close(buffer, own, msg=lambda text, key=key: f"{key}: {text}")
    _check_optimiser(case, model, models, generator)


def _check_optimiser(
    case: Case, model: nn.Module, models: list[nn.Module], generator: torch.Generator
) -> None:
    """Compare three updates with random gradients and a learning rate for each member."""
    rates = [0.01 * (i + 1) for i in range(len(models))]
    optimiser = OPTIMISERS[case.optimiser](model.parameters(), len(models), lr=rates)
    torch_class = getattr(torch.optim, case.optimiser)
    others = [torch_class(m.parameters(), lr=lr) for m, lr in zip(models, rates, strict=True)]
    for _ in range(3):
        for key, parameter in model.named_parameters():
            for member in models:
                own = member.get_parameter(key)
                own.grad = torch.randn(own.shape, generator=generator, dtype=own.dtype)
            grads: list[Tensor] = [m.get_parameter(key).grad for m in models]  # type: ignore[misc]
            parameter.grad = _stack_members(model, key, grads).contiguous()
        for each in (optimiser, *others):
            each.step()
    for key, parameter in model.named_parameters():
        own = _stack_members(model, key, [m.get_parameter(key) for m in models])
        torch.testing.assert_close(parameter, own, msg=lambda text, key=key: f"update of {key}: {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Check the hand-fused cases against separate models.")
    parser.add_argument("--width", type=int, default=3)
    args = parser.parse_args()
    for name in HAND_FUSED:
        for shared in (False, True):
            check_hand_fused(name, args.width, shared=shared)
        print(f"{name}: hand-fused and {args.width} separate models agree", flush=True)


if __name__ == "__main__":
    main()

"""Gradients of gradients, as in gradient penalties, are those of separate models."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from support.fusion_equality import B, assert_same, build_members, normal_tensor
from wattline.fusion import fuse

MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "convolution and pooling, channels last": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 1)),
        normal_tensor(4, 2, 6, 6),
    ),
    "batch norm of images": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Conv2d(3, 2, 2)),
        normal_tensor(4, 2, 6, 6),
    ),
    "batch norm of points": (
        lambda: nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3), nn.Tanh(), nn.Conv1d(3, 2, 1)),
        normal_tensor(4, 2, 6),
    ),
    "batch norm of points, without scale": (
        lambda: nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3, affine=False), nn.Tanh()),
        normal_tensor(4, 2, 6),
    ),
}


def compute_penalty(out: Tensor, x: Tensor) -> Tensor:
    (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    return grad.square().sum()


@pytest.mark.parametrize("evaluate", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_gradient_penalties_are_those_of_separate_models(name: str, evaluate: bool) -> None:
    build, batch = MODELS[name]
    models = [model.train(not evaluate) for model in build_members(build)]
    array = fuse(models)
    own = torch.stack([batch + at for at in range(B)]).requires_grad_()
    compute_penalty(array(own, members=True), own).backward()
    for at, model in enumerate(models):
        x = (batch + at).requires_grad_()
        compute_penalty(model(x), x).backward()
        for (parameter_name, ours), theirs in zip(
            array.body.named_parameters(), model.parameters(), strict=True
        ):
            row = None if ours.grad is None else ours.grad[at]
            expected = theirs.grad if theirs.grad is not None else torch.zeros_like(theirs)
            assert_same(torch.zeros_like(theirs) if row is None else row, expected, parameter_name)

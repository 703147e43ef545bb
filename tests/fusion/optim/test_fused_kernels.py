"""PyTorch's fused kernels update each member as its ordinary optimiser would."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.fusion_equality import normal_tensor
from wattline import fusion
from wattline.fusion.optim import fused_kernels

SETTINGS: list[tuple[Any, Any, dict[str, Any]]] = [
    (fusion.Adam, torch.optim.Adam, {}),
    (fusion.Adam, torch.optim.Adam, {"weight_decay": 0.1, "amsgrad": True}),
    (fusion.Adam, torch.optim.Adam, {"maximize": True, "betas": (0.8, 0.9)}),
    (fusion.AdamW, torch.optim.AdamW, {"weight_decay": 0.1, "eps": 1e-3}),
]


def train(ours: Any, theirs: Any, settings: dict[str, Any], rates: list[float], steps: int = 4) -> None:
    weights = [normal_tensor(3, 5, seed=seed) for seed in range(len(rates))]
    stacked = nn.Parameter(torch.stack(weights))
    alone = [nn.Parameter(weight.clone()) for weight in weights]
    optimiser = ours([stacked], lr=rates, **settings)
    ordinary = [theirs([p], lr=lr, **settings) for p, lr in zip(alone, rates, strict=True)]
    for step in range(steps):
        rows = [normal_tensor(5, 3, seed=100 * step + at).t() for at in range(len(rates))]
        stacked.grad = torch.stack([row.t() for row in rows]).mT  # not contiguous, as those of products
        assert not stacked.grad.is_contiguous()
        for parameter, row in zip(alone, rows, strict=True):
            parameter.grad = row.contiguous()
        optimiser.step()
        for own in ordinary:
            own.step()
    torch.testing.assert_close(stacked, torch.stack([p.detach() for p in alone]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("ours", "theirs", "settings"), SETTINGS)
@pytest.mark.parametrize("rates", [[0.1, 0.1, 0.1], [0.1, 0.2, 0.3], [0.1, 0.2, 0.1]])
def test_members_are_updated_as_alone(ours: Any, theirs: Any, settings: Any, rates: list[float]) -> None:
    train(ours, theirs, settings, rates)


def test_members_of_equal_numbers_need_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def count(kernel: Any, tensors: list[list[Tensor]], numbers: Any, flags: Any) -> None:
        calls.append(len(tensors[0]))
        real(kernel, tensors, numbers, flags)

    real = fused_kernels._call_kernel
    monkeypatch.setattr(fused_kernels, "_call_kernel", count)
    train(fusion.Adam, torch.optim.Adam, {}, [0.1, 0.1, 0.1], steps=1)
    train(fusion.Adam, torch.optim.Adam, {}, [0.1, 0.2, 0.1], steps=1)
    assert calls == [1, 2, 1]  # all members; members 0 and 2; member 1


def test_parameters_in_another_layout_are_updated_without_the_kernels() -> None:
    weights = normal_tensor(2, 4, 3, 5, 5)
    stacked = nn.Parameter(weights.movedim(2, -1).contiguous().movedim(-1, 2))
    alone = [nn.Parameter(row.clone()) for row in weights]
    optimiser = fusion.Adam([stacked], lr=0.1)
    ordinary = torch.optim.Adam(alone, lr=0.1)
    stacked.grad = normal_tensor(2, 4, 3, 5, 5, seed=1)
    for parameter, row in zip(alone, stacked.grad, strict=True):
        parameter.grad = row.clone()
    optimiser.step()
    ordinary.step()
    torch.testing.assert_close(stacked, torch.stack([p.detach() for p in alone]), rtol=1e-12, atol=1e-12)


def test_a_state_that_is_replaced_between_steps_is_used() -> None:
    stacked = nn.Parameter(normal_tensor(2, 3))
    optimiser = fusion.Adam([stacked], lr=0.1)
    twin = nn.Parameter(stacked.detach().clone())
    other = fusion.Adam([twin], lr=0.1)
    for step in range(4):
        stacked.grad = twin.grad = normal_tensor(2, 3, seed=step)
        if step == 2:
            for name in ("exp_avg", "exp_avg_sq"):
                optimiser.state[stacked][name] = torch.zeros_like(stacked)
                other.state[twin][name].zero_()
        optimiser.step()
        other.step()
    torch.testing.assert_close(stacked, twin)

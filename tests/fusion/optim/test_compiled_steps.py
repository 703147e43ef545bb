"""Compiled steps with each optimiser equal separate training with the ordinary one."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from support.optimiser_pairs import ordinary_class, select_own  # noqa: E402
from wattline.fusion import fuse, optim, train_step  # noqa: E402

STEPS = 8  # RAdam rectifies the variance from its sixth step on
RATES = [0.01, 0.02, 0.03]
CASES: list[tuple[str, dict[str, Any], float]] = [
    ("NAdam", {"momentum_decay": [4e-3, 0.1, 0.5]}, 1e-7),  # torch.optim rounds its product to float32
    ("RAdam", {"betas": [(0.9, 0.999), (0.8, 0.99), (0.9, 0.6)], "weight_decay": [0, 0.1, 0]}, 1e-10),
    ("Adagrad", {"initial_accumulator_value": [0.0, 0.1, 1.0], "lr_decay": [0.1, 0, 0]}, 1e-10),
    ("Lion", {"weight_decay": [0, 0.1, 0.2]}, 1e-10),
]
MUON = {"momentum": [0.95, 0.9, 0.5]}


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False)).double()


def make_batch(seed: int) -> tuple[Any, Any]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 5, generator=random, dtype=torch.float64)
    return x, torch.randint(0, 3, (6,), generator=random)


def assert_equal_training(name: str, hyper: dict[str, Any], tolerance: float) -> None:
    torch.manual_seed(0)
    models = [build() for _ in RATES]
    array = fuse([copy.deepcopy(model) for model in models])
    hyper = {"lr": RATES, **hyper}
    step = train_step(array, F.cross_entropy, getattr(optim, name)(array, **hyper), compile=True)
    singles = [
        ordinary_class(name)(model.parameters(), **select_own(hyper, member))
        for member, model in enumerate(models)
    ]
    before = copy.deepcopy(models)
    for seed in range(STEPS):
        x, target = make_batch(seed)
        losses = step(x, target)
        for member, (model, single) in enumerate(zip(models, singles, strict=True)):
            single.zero_grad()
            loss = F.cross_entropy(model(x), target)
            loss.backward()
            single.step()
            torch.testing.assert_close(losses[member], loss.detach(), rtol=tolerance, atol=tolerance)
    assert step.way.compiled
    assert step.compile_s > 0
    for member, model in enumerate(models):
        old = before[member].state_dict()
        for key, value in model.state_dict().items():
            torch.testing.assert_close(
                array.member_state_dict(member)[key], value, rtol=tolerance, atol=tolerance
            )
            assert (value - old[key]).abs().max() > max(1e-3, 2 * tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "hyper", "tolerance"), CASES)
def test_a_compiled_step_equals_separate_training(name: str, hyper: dict[str, Any], tolerance: float) -> None:
    assert_equal_training(name, hyper, tolerance)


@pytest.mark.slow
def test_a_compiled_step_of_muon_has_the_same_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)  # float64 throughout
    assert_equal_training("Muon", MUON, 1e-9)


@pytest.mark.slow
def test_a_compiled_step_of_muon_equals_separate_training_up_to_rounding() -> None:
    # The gradient of the last layer has rank 2 of 3. The iterations multiply what rounding to bfloat16
    # leaves in the third direction by up to 3.4445**5 = 485, in torch.optim too: 10 % of the way.
    assert_equal_training("Muon", {"lr": 0.02, **MUON}, 0.1 * STEPS * 0.02)

"""`check`: results for correct arrays and for a deliberately wrong rule."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from support.fusion_equality import build_members, integer_tensor, normal_tensor  # noqa: E402
from wattline.errors import ConfigError  # noqa: E402
from wattline.fusion import SGD, Adagrad, FusionWarning, Lion, NAdam, RAdam  # noqa: E402
from wattline.fusion.equality_check import check  # noqa: E402
from wattline.fusion.lowering import rules  # noqa: E402


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 2, bias=False), nn.BatchNorm2d(3), nn.Flatten(), nn.Dropout(0.5), nn.Linear(27, 3)
    )


X = normal_tensor(4, 2, 4, 4)


def test_members_and_array_agree() -> None:
    found = check(build_members(net), (X, integer_tensor(3, 4)), lr=[0.1, 0.01, 0.001])
    assert found.largest < 1e-10
    assert not found.drawn
    assert found.steps == 5
    assert str(found).startswith("largest deviation after 5 steps: outputs ")


def test_without_a_target_and_with_one_of_numbers_and_with_an_own_loss() -> None:
    assert check(build_members(net), X, steps=2).largest < 1e-10
    assert check(build_members(net), (X, normal_tensor(4, 3)), steps=2).largest < 1e-10
    loss: Any = lambda out, target: F.l1_loss(out, target, reduction="sum")  # noqa: E731
    assert (
        check(
            build_members(net), (X, normal_tensor(4, 3)), loss=loss, optimiser=SGD, lr=0.01, steps=2
        ).largest
        < 1e-9
    )


@pytest.mark.parametrize("optimiser", [NAdam, RAdam, Adagrad])
def test_every_optimiser_of_torch_can_be_checked(optimiser: Any) -> None:
    found = check(build_members(net), (X, integer_tensor(3, 4)), optimiser=optimiser, lr=[0.1, 0.01, 0.001])
    assert found.largest < 1e-6  # torch.optim.NAdam keeps a factor in float32


def test_an_optimiser_that_torch_does_not_have_cannot_be_checked() -> None:
    with pytest.raises(ConfigError, match="PyTorch has no Lion to compare with"):
        check(build_members(net), X, optimiser=Lion)


def test_single_precision_deviates_a_little() -> None:
    found = check(build_members(net, dtype=torch.float32), (X.float(), integer_tensor(3, 4)), steps=2)
    assert 0 < found.largest < 1e-3


def test_check_leaves_the_models_unchanged() -> None:
    models = build_members(net)
    before = copy.deepcopy([m.state_dict() for m in models])
    check(models, X, steps=1)
    for model, old in zip(models, before, strict=True):
        assert all(torch.equal(t, old[n]) for n, t in model.state_dict().items())
        assert model[3].p == 0.5


def test_check_reports_that_a_forward_draws_random_numbers() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) + torch.randn(2, dtype=x.dtype)

    found = check(build_members(Noisy), normal_tensor(3, 4), steps=1)
    assert found.drawn
    assert found.outputs > 0.01
    assert "differ by design" in str(found)


def test_modules_run_per_member_cause_a_warning_and_agree() -> None:
    class Decides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.fc(x)
            return y if y.sum() > 0 else y * 2

    with pytest.warns(FusionWarning, match="Decides"):
        assert check(build_members(Decides), normal_tensor(3, 4)).largest < 1e-10


def test_check_detects_a_wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(size: int, ways: Any, input: Any, weight: Any, bias: Any = None) -> Any:
        assert right.rule is not None
        y = right.rule(size, ways, input, weight, bias)
        return rules.BatchedTensor(y.values * 1.001, y.member_dim)

    right = rules._RULES[F.linear]
    monkeypatch.setitem(rules._RULES, F.linear, right._replace(rule=wrong))
    found = check(build_members(net), (X, integer_tensor(3, 4)), steps=1)
    assert found.outputs > 1e-5
    assert found.gradients > 1e-6

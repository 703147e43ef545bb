"""The report of how a model is fused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from wattline.fusion.lowering.report import explain  # noqa: E402


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        self.downsample = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(x)) + self.downsample(x))


class Decides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return y if y.sum() > 0 else -y


TABLE = """\
module        kind         how
(the model)   Block        vmap       its own forward; operators with rules are computed directly
conv          Conv2d       direct     a group of one convolution for each member
bn            BatchNorm2d  direct     one batch norm over the channels of all members
relu          ReLU         vmap       the same operator on the stacked tensors of all members
downsample    Sequential   container  see its submodules
downsample.0  Conv2d       direct     a group of one convolution for each member
downsample.1  BatchNorm2d  direct     one batch norm over the channels of all members
Pass a batch to run the model: parts that depend on data are detected only then."""


def test_a_residual_block_as_a_table() -> None:
    assert str(explain(Block())) == TABLE


def test_with_a_batch_the_model_is_run() -> None:
    found = explain(Block(), torch.randn(2, 4, 5, 5))
    parts = {part.name: part for part in found.parts}
    assert parts["conv"].how == "direct"
    assert parts["conv"].why == "a group of one convolution for each member"
    assert parts["bn"].how == "direct"
    assert parts["relu"].how == "vmap"
    assert "relu" in parts["relu"].why
    assert parts["downsample"].how == "container"
    assert found.tried
    assert found.fusible
    assert "Pass a batch" not in str(found)


def test_modules_run_per_member_are_listed_with_the_reason_and_their_submodules() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Decides())
    assert explain(model).fusible  # detected only with data
    found = explain(model, torch.randn(3, 4))
    parts = {part.name: part for part in found.parts}
    assert not found.fusible
    assert parts["1"].how == "per member"
    assert parts["1"].why == "its control flow depends on the values of tensors"
    assert parts["1.fc"].how == "per member"
    assert parts["1.fc"].why == "inside 1"
    assert parts["0"].how == "direct"


@pytest.mark.parametrize(
    "module",
    [nn.BatchNorm1d(4, momentum=None), nn.LSTM(4, 3, proj_size=2), nn.Embedding(4, 3, max_norm=1.0)],
    ids=lambda m: type(m).__name__,
)
def test_known_exceptions_are_listed_without_a_batch(module: nn.Module) -> None:
    found = explain(nn.Sequential(module))
    assert not found.fusible
    assert found.parts[1].how == "per member"
    assert found.parts[1].why


def test_a_model_that_is_one_layer_and_one_with_several_inputs() -> None:
    assert explain(nn.Linear(4, 3)).parts[0].how == "direct"
    assert explain(nn.Linear(4, 3), torch.ones(2, 4)).parts[0].how == "direct"
    found = explain(nn.Bilinear(4, 3, 2), (torch.ones(2, 4), torch.ones(2, 3)))
    assert found.parts[0].how == "direct"


def test_explain_leaves_the_model_unchanged() -> None:
    model = Block()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    explain(model, torch.randn(2, 4, 5, 5))
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in model.modules())


def test_operators_in_the_own_forward_are_named() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return F.softmax(F.linear(x, self.w), -1).cumsum(0)

    why = explain(Own(), torch.ones(2, 4)).parts[0].why
    assert "one batched matrix product" in why
    assert "softmax, cumsum by vmap" in why

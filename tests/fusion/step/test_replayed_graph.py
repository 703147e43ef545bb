"""Replayed graphs return what the traced operators return, whatever is made once."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from support.fusion_equality import integer_tensor, normal_tensor
from wattline import fusion
from wattline.fusion.lowering.rules import Ways
from wattline.fusion.step import replay_choice, train_step
from wattline.fusion.step.execution_mode import ExecutionMode
from wattline.fusion.step.replayed_graph import ReplayedGraph
from wattline.fusion.torch_internals import make_fx


def trace(function: object, *tensors: Tensor) -> torch.fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*tensors)


def test_views_of_kept_inputs_follow_their_values() -> None:
    def function(weight: Tensor, x: Tensor) -> tuple[Tensor]:
        return (x @ weight.t().reshape(4, 3),)

    weight, x = normal_tensor(3, 4), normal_tensor(2, 4, seed=1)
    replayed = ReplayedGraph(trace(function, weight, x), kept_count=1)
    for _ in range(3):
        torch.testing.assert_close(replayed(weight, x), function(weight, x))
        weight += 1.0


def test_another_kept_tensor_is_seen() -> None:
    def function(weight: Tensor, x: Tensor) -> tuple[Tensor]:
        return (x @ weight.t(),)

    x = normal_tensor(2, 4)
    replayed = ReplayedGraph(trace(function, normal_tensor(3, 4), x), kept_count=1)
    for seed in range(3):
        weight = normal_tensor(3, 4, seed=seed)
        torch.testing.assert_close(replayed(weight, x), function(weight, x))


def test_constants_that_are_written_to_are_made_anew() -> None:
    def function(x: Tensor) -> tuple[Tensor]:
        total = torch.zeros(3, dtype=x.dtype)
        total[1:] += x
        return (total,)

    x = normal_tensor(2)
    replayed = ReplayedGraph(trace(function, x), kept_count=0)
    for _ in range(3):
        torch.testing.assert_close(replayed(x), function(x))


def test_random_numbers_are_drawn_in_every_call() -> None:
    def function(x: Tensor) -> tuple[Tensor]:
        return (torch.rand(4) + x,)

    x = torch.zeros(4)
    replayed = ReplayedGraph(trace(function, x), kept_count=0)
    assert not torch.equal(replayed(x)[0], replayed(x)[0])


def test_writes_to_kept_inputs_reach_them() -> None:
    def function(state: Tensor, x: Tensor) -> tuple[Tensor]:
        state.view(-1).mul_(0.5).add_(x.flatten())
        return (state * 2,)

    ours, theirs, x = normal_tensor(2, 3), normal_tensor(2, 3), normal_tensor(2, 3, seed=1)
    replayed = ReplayedGraph(trace(function, ours, x), kept_count=1)
    for _ in range(3):
        torch.testing.assert_close(replayed(ours, x), function(theirs, x))
        torch.testing.assert_close(ours, theirs)


class Net(nn.Module):
    """A small model with statistics, dropout and a branch on a setting."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.head = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.5)
        self.slope = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(F.relu(self.norm(self.fc(x)) * self.slope)))


@pytest.mark.slow
def test_steps_that_are_replayed_equal_those_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_choice, "LIMIT_S", math.inf)  # however slow this machine is
    torch.manual_seed(0)
    models = [Net().double() for _ in range(3)]
    array, twin = fusion.fuse(models), fusion.fuse(models)
    step = fusion.train_step(array, F.cross_entropy, fusion.Adam(array, lr=[1e-3, 1e-2, 1e-1]), compile=False)
    optimiser = fusion.Adam(twin, lr=[1e-3, 1e-2, 1e-1])
    x, y = normal_tensor(6, 5), integer_tensor(3, 6)
    for number in range(3 * replay_choice.AFTER):
        array.slope = twin.slope = 1.0 + number // replay_choice.AFTER
        torch.manual_seed(number)
        ours = step(x, y)
        torch.manual_seed(number)
        optimiser.zero_grad()
        theirs = twin.loss(F.cross_entropy, twin(x), y)
        theirs.sum().backward()
        optimiser.step()
        torch.testing.assert_close(ours, theirs.detach())
    assert step._tracer.count > 0
    assert not step.way.compiled
    for (name, own), other in zip(array.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(own, other, msg=name)


def test_a_step_that_cannot_be_traced_is_not_replayed_and_that_is_no_warning() -> None:
    class Decides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.fc(x)
            return y if y.sum() > 0 else -y

    array = fusion.fuse([Decides() for _ in range(2)])
    step = fusion.train_step(array, F.cross_entropy, fusion.SGD(array, lr=0.1), compile=False)
    x, y = torch.randn(5, 4), integer_tensor(3, 5)
    with pytest.warns(fusion.FusionWarning, match="control flow"):
        step(x, y)
    for _ in range(2 * replay_choice.AFTER):
        assert step(x, y).isfinite().all()
    assert step._tracer.count == 0


def test_modes_that_are_chosen_and_not_compiled_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_choice, "LIMIT_S", math.inf)
    whole = ExecutionMode(None, Ways(), compiled=False)
    monkeypatch.setattr(train_step, "choose_mode", lambda *_: (whole, []))
    torch.manual_seed(0)
    array = fusion.fuse([nn.Linear(5, 3) for _ in range(3)])
    step = fusion.train_step(array, F.cross_entropy, fusion.SGD(array, lr=0.1), width="auto")
    x, y = torch.randn(6, 5), integer_tensor(3, 6)
    for _ in range(3 + replay_choice.AFTER):
        step(x, y)
    assert step._tracer.count == 1
    assert not step.way.compiled

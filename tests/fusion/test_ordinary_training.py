"""A member trained as an ordinary model on recorded steps: the same numbers as a plain loop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from wattline import fusion  # noqa: E402
from wattline.errors import ConfigError  # noqa: E402
from wattline.fusion.ordinary_training import OrdinaryTraining, count_batch  # noqa: E402
from wattline.fusion.step_recorder import RecordedStep, StepRecorder  # noqa: E402

WIDTH = 3
BATCHES = [(torch.randn(5, 4), torch.randint(0, 2, (5,))) for _ in range(3)]
OWN = [(torch.randn(WIDTH, 5, 4), torch.randint(0, 2, (WIDTH, 5))) for _ in range(3)]


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def record(array: fusion.FusedArray, train: Callable[[], None]) -> list[RecordedStep]:
    steps: list[RecordedStep] = []
    with StepRecorder(array, lambda: 0.0, steps.append).record():
        train()
    return steps


def train_by_hand(
    model: nn.Module, batches: list[tuple[Tensor, Tensor]], clip: float | None = None, **hyper: Any
) -> list[Tensor]:
    optimiser = torch.optim.Adam(model.parameters(), **hyper)
    for x, y in batches:
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
    return [p.detach() for p in model.parameters()]


def assert_same(model: nn.Module, expected: list[Tensor]) -> None:
    for ours, theirs in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-12, atol=1e-12)


@pytest.fixture(autouse=True)
def _double() -> None:
    for batches in (BATCHES, OWN):
        batches[:] = [(x.double(), y) for x, y in batches]


@pytest.mark.parametrize("clip", [None, [0.1, 0.2, 0.3]])
@pytest.mark.parametrize("member", [0, 2])
def test_the_recorded_steps_of_train_step_are_repeated_exactly(member: int, clip: list[float] | None) -> None:
    models = [build(seed) for seed in range(WIDTH)]
    array = fusion.fuse(models)
    rates = [1e-3, 1e-2, 5e-2]
    optimiser = fusion.Adam(array, lr=rates, weight_decay=0.01)
    step = fusion.train_step(array, F.cross_entropy, optimiser, compile=False, clip_norm=clip)
    before = copy.deepcopy(array.state_dict())
    steps = record(array, lambda: [step(x, y, members=True) for x, y in OWN] and None)
    assert len(steps) == len(OWN)
    assert [count_batch(each) for each in steps] == [5, 5, 5]
    array.load_state_dict(before)
    optimiser.state.clear()
    training = OrdinaryTraining(array, steps, member)
    for _ in range(3):
        training.run_step()
    own = [(x[member], y[member]) for x, y in OWN]
    limit = None if clip is None else clip[member]
    expected = train_by_hand(models[member], own, limit, lr=rates[member], weight_decay=0.01)
    assert_same(training.model, expected)
    assert type(next(iter(training.optimisers.values()))) is torch.optim.Adam


def test_the_recorded_steps_of_an_own_loop_are_repeated_exactly() -> None:
    models = [build(seed) for seed in range(WIDTH)]
    array = fusion.fuse(models)
    optimiser = fusion.Adam(array, lr=0.01)
    before = copy.deepcopy(array.state_dict())

    def train() -> None:
        for x, y in BATCHES:
            optimiser.zero_grad()
            out = array(x)
            losses = array.loss(F.cross_entropy, out, y)
            with torch.no_grad():
                array(x)  # an evaluation, which is no part of the step
            array.each(lambda own: own.argmax(-1).float().mean(), out)  # a metric without a gradient
            losses.sum().backward()
            optimiser.step()

    steps = record(array, train)
    array.load_state_dict(before)
    optimiser.state.clear()
    training = OrdinaryTraining(array, steps, 1)
    for _ in range(3):
        training.run_step()
    assert_same(training.model, train_by_hand(models[1], BATCHES, lr=0.01))


def test_two_forwards_and_two_losses_of_one_step_are_repeated() -> None:
    array = fusion.fuse([build(seed) for seed in range(WIDTH)])
    optimiser = fusion.SGD(array, lr=0.1)
    (x, y), (other, _), _ = BATCHES

    def train() -> None:
        first, second = array(x), array(other)
        near = array.each(lambda pair: F.mse_loss(*pair), (first, second))
        (array.loss(F.cross_entropy, first, y) + near).sum().backward()
        optimiser.step()

    model = array.member(2)
    steps = record(array, train)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = model(x), model(other)
    (F.cross_entropy(first, y) + F.mse_loss(first, second)).backward()
    plain.step()
    array = fusion.fuse([build(seed) for seed in range(WIDTH)])
    steps = [RecordedStep(each.calls, each.roots, True, fusion.SGD(array, lr=0.1), 0.0) for each in steps]
    training = OrdinaryTraining(array, steps, 2)
    training.run_step()
    assert_same(training.model, [p.detach() for p in model.parameters()])


def test_a_loss_outside_of_the_array_is_left_out() -> None:
    array = fusion.fuse([build(seed) for seed in range(WIDTH)])
    optimiser = fusion.SGD(array, lr=0.1)

    def train() -> None:
        out = array(BATCHES[0][0])
        array.each(torch.mean, out * 2).sum().backward()
        optimiser.step()

    (step,) = record(array, train)
    assert not step.has_loss
    training = OrdinaryTraining(array, [step], 0)
    before = [p.detach().clone() for p in training.model.parameters()]
    training.run_step()
    assert any(not torch.equal(a, b) for a, b in zip(before, training.model.parameters(), strict=True))


def test_steps_of_other_arrays_are_not_recorded() -> None:
    array, other = (fusion.fuse([build(0), build(1)]) for _ in range(2))
    optimiser = fusion.SGD(other, lr=0.1)
    x, y = BATCHES[0]
    step = fusion.train_step(other, F.cross_entropy, fusion.SGD(other, lr=0.1), compile=False)

    def train() -> None:
        step(x, y)
        other.loss(F.cross_entropy, other(x), y).sum().backward()
        optimiser.step()

    assert record(array, train) == []


def test_an_optimiser_of_several_arrays_is_refused() -> None:
    array, other = (fusion.fuse([build(0), build(1)]) for _ in range(2))
    optimiser = fusion.SGD([*array.parameters(), *other.parameters()], lr=0.1)
    x, y = BATCHES[0]

    def train() -> None:
        array.loss(F.cross_entropy, array(x), y).sum().backward()
        optimiser.step()

    steps = record(array, train)
    with pytest.raises(ConfigError, match="parameters outside of the array"):
        OrdinaryTraining(array, steps, 0)


def test_nothing_is_recorded_after_the_block() -> None:
    array = fusion.fuse([build(0), build(1)])
    forward = fusion.FusedArray.forward
    steps = record(array, lambda: None)
    assert fusion.FusedArray.forward is forward
    optimiser = fusion.SGD(array, lr=0.1)
    array.loss(F.cross_entropy, array(BATCHES[0][0]), BATCHES[0][1]).sum().backward()
    optimiser.step()
    assert steps == []

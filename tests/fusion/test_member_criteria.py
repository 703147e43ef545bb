"""Lists of criteria: one loss for each member, with its own numbers and class weights."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from support.fusion_equality import (  # noqa: E402
    assert_same,
    assert_same_state,
    build_members,
    integer_tensor,
    normal_tensor,
)
from wattline.errors import NotFusible  # noqa: E402
from wattline.fusion import SGD, FusionWarning, fuse, train_step  # noqa: E402
from wattline.fusion.ordinary_training import OrdinaryTraining  # noqa: E402
from wattline.fusion.step_recorder import StepRecorder  # noqa: E402

X = normal_tensor(6, 4)
Y = integer_tensor(3, 6)


class Focal(nn.Module):
    """A loss of the user, with a number and a branch on request."""

    def __init__(self, gamma: float, is_branching: bool = False) -> None:
        super().__init__()
        self.gamma, self.is_branching = gamma, is_branching

    def forward(self, out: Tensor, target: Tensor) -> Tensor:
        own = out.log_softmax(-1).gather(-1, target[:, None])
        if self.is_branching and self.gamma > 1.5:
            return -own.mean()
        return (-((1 - own.exp()) ** self.gamma) * own).mean()


def smoothed() -> list[nn.Module]:
    return [nn.CrossEntropyLoss(label_smoothing=s) for s in (0, 0.1, 0.2)]


def weighted() -> list[nn.Module]:
    return [nn.CrossEntropyLoss(weight=normal_tensor(3, seed=i).exp()) for i in range(3)]


def both() -> list[nn.Module]:
    pairs = zip(weighted(), smoothed(), strict=True)
    return [nn.CrossEntropyLoss(w.weight, label_smoothing=s.label_smoothing) for w, s in pairs]


def focal() -> list[nn.Module]:
    return [Focal(gamma) for gamma in (0.5, 1.0, 2.0)]


def equal() -> list[nn.Module]:
    return [nn.CrossEntropyLoss(label_smoothing=0.1)] * 3


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def train_alone(model: nn.Module, optimiser: Any, criterion: nn.Module) -> Tensor:
    optimiser.zero_grad()
    loss = criterion(model(X), Y)
    loss.backward()
    optimiser.step()
    return loss.detach()


@pytest.mark.parametrize("make", [smoothed, weighted, both, focal, equal])
def test_each_member_has_its_own_loss(make: Any) -> None:
    models, criteria = build_members(model), make()
    array = fuse(models)
    optimiser = torch.optim.SGD(array.parameters(), lr=0.1)
    theirs = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionWarning)
        for _ in range(3):
            optimiser.zero_grad()
            losses = array.loss(criteria, array(X), Y)
            losses.sum().backward()
            optimiser.step()
            alone = [train_alone(*each) for each in zip(models, theirs, criteria, strict=True)]
            assert_same(losses, torch.stack(alone), "losses")
    assert_same_state(array, models)


@pytest.mark.slow
@pytest.mark.parametrize("make", [smoothed, both, focal])
@pytest.mark.parametrize("width", [None, 2, 1])
@pytest.mark.parametrize("compile", [False, "graph"])
def test_steps_have_a_loss_for_each_member_and_see_later_changes(make: Any, width: Any, compile: Any) -> None:
    models, criteria = build_members(model), make()
    array = fuse(models)
    step = train_step(array, criteria, SGD(array, lr=0.1), width=width, compile=compile)
    theirs = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    number = "gamma" if make is focal else "label_smoothing"
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionWarning)
        for at in range(6):
            if at == 3:
                setattr(criteria[1], number, 0.75)
            if at == 5:
                for criterion in criteria:
                    setattr(criterion, number, 0.5)
            losses = step(X, Y)
            alone = [train_alone(*each) for each in zip(models, theirs, criteria, strict=True)]
            assert_same(losses, torch.stack(alone), f"losses of step {at}")
    assert_same_state(array, models)
    assert step.way.compiled is bool(compile)


@pytest.mark.parametrize("compile", [False, "graph"])
def test_a_setting_that_changes_in_all_criteria_takes_effect(compile: Any) -> None:
    criteria, array = smoothed(), fuse(build_members(model))
    step = train_step(array, criteria, SGD(array, lr=0.0), compile=compile)
    for _ in range(3):
        step(X, Y)
    for criterion in criteria:
        criterion.reduction = "sum"
    alone = [c(m(X), Y) for c, m in zip(criteria, array.split(), strict=True)]
    assert_same(step(X, Y), torch.stack(alone), "losses")
    criteria[1].reduction = "mean"
    with pytest.raises(NotFusible, match="criterion 1 differs from criterion 0: reduction is 'mean'"):
        step(X, Y)


def test_criteria_with_branches_on_numbers_run_one_by_one_with_floats() -> None:
    criteria, models = [Focal(gamma, is_branching=True) for gamma in (0.5, 1.0, 2.0)], build_members(model)
    array = fuse(models)
    with pytest.warns(FusionWarning, match="Focal cannot be fused and runs separately for each member"):
        losses = array.loss(criteria, array(X), Y)
    alone = [c(m(X), Y) for c, m in zip(criteria, models, strict=True)]
    assert_same(losses, torch.stack(alone), "losses")


def test_criteria_follow_leaving_and_joining_members() -> None:
    criteria, array = smoothed(), fuse(build_members(model))
    step = train_step(array, criteria, SGD(array, lr=0.0), compile=False)
    step(X, Y)
    array.drop([0])
    alone = [c(m(X), Y) for c, m in zip(criteria[1:], array.split(), strict=True)]
    assert_same(step(X, Y), torch.stack(alone), "losses")
    with pytest.warns(FusionWarning, match="new members get copies of the last criterion"):
        array.add(build_members(model, 1))
    step.loss.criteria[-1].label_smoothing = 0.6  # type: ignore[attr-defined]
    own = [*criteria[1:], nn.CrossEntropyLoss(label_smoothing=0.6)]
    alone = [c(m(X), Y) for c, m in zip(own, array.split(), strict=True)]
    assert_same(step(X, Y), torch.stack(alone), "losses")


class Centred(nn.Module):
    """A loss that remembers a mean."""

    def __init__(self, is_replacing: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3).double())
        self.is_replacing = is_replacing

    def forward(self, out: Tensor, target: Tensor) -> Tensor:
        if self.is_replacing:
            self.mean = out.detach().mean(0)
        else:
            self.mean.copy_(out.detach().mean(0))
        return (out - self.mean).square().mean()


@pytest.mark.parametrize("is_replacing", [False, True])
def test_criteria_that_write_to_buffers_are_refused(is_replacing: bool) -> None:
    criteria, array = [Centred(is_replacing) for _ in range(3)], fuse(build_members(model))
    what = "replaces" if is_replacing else "writes to"

    def train_twice() -> None:
        array.loss(criteria, array(X), Y)
        array.loss(criteria, array(X), Y)

    with pytest.raises(NotFusible, match=f"Centred {what} a buffer of its own"):
        train_twice()


WRONG: list[tuple[str, Any, str]] = [
    ("too few", smoothed()[:2], "there are 2 criteria, expected one for each of 3 members"),
    (
        "two classes",
        [*smoothed()[:2], nn.NLLLoss()],
        "criterion 2 .* is a NLLLoss, expected Cross",
    ),
    ("weights of some", [*weighted()[:2], nn.CrossEntropyLoss()], "weight is in only one of them"),
    ("functions", [F.cross_entropy] * 3, "criterion 0 is a function, expected a torch.nn.Module"),
    ("a setting", [nn.CrossEntropyLoss(ignore_index=i) for i in range(3)], "ignore_index is 1, expected 0"),
    ("parameters", [nn.Linear(3, 1) for _ in range(3)], "criterion 0 has parameters of its own"),
]


@pytest.mark.parametrize(("criteria", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_criteria_that_cannot_be_one_function_are_refused(criteria: Any, message: str) -> None:
    array = fuse(build_members(model))
    with pytest.raises(NotFusible, match=message):
        train_step(array, criteria, SGD(array))
    with pytest.raises(NotFusible, match=message):
        array.loss(criteria, array(X), Y)


@pytest.mark.parametrize("has_step", [False, True])
def test_ordinary_training_has_the_criterion_of_its_member(has_step: bool) -> None:
    criteria, array = smoothed(), fuse(build_members(model))
    optimiser, steps = SGD(array, lr=0.1), []
    before = array.split()
    with StepRecorder(array, lambda: 0.0, steps.append).record():
        if has_step:
            train_step(array, criteria, optimiser, compile=False)(X, Y)
        else:
            array.loss(criteria, array(X), Y).sum().backward()
            optimiser.step()
    for member, expected in enumerate(before):
        training = OrdinaryTraining(array, steps, member)
        training.model.load_state_dict(expected.state_dict())
        training.run_step()
        train_alone(expected, torch.optim.SGD(expected.parameters(), lr=0.1), criteria[member])
        assert_same(training.model.state_dict(), expected.state_dict(), f"member {member}")


def test_a_number_in_a_closure_is_passed_as_an_argument_of_the_step() -> None:
    models, weights = build_members(model), torch.tensor([0.1, 1.0, 3.0]).double()
    array = fuse(models)
    step = train_step(
        array, lambda out, y, w: w * F.cross_entropy(out, y), SGD(array, lr=0.1), compile="graph"
    )
    for _ in range(3):
        alone = [w * F.cross_entropy(m(X), Y) for w, m in zip(weights, array.split(), strict=True)]
        assert_same(step(X, Y, weights, members=[False, False, True]), torch.stack(alone), "losses")

"""Operations of arrays: members, leaving and joining, modes, types, copies."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402
from torch.optim.lr_scheduler import StepLR  # noqa: E402

from support.fusion_equality import (  # noqa: E402
    B,
    assert_same,
    assert_same_state,
    assert_same_training,
    build_members,
    normal_tensor,
    select_member,
)
from wattline.errors import NotFusible  # noqa: E402
from wattline.fusion import SGD, Adam, FusedArray, FusionWarning, Schedule, fuse  # noqa: E402


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Linear(27, 2)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(F.relu(self.bn(self.conv(x))).flatten(1)))


class Decides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x - 1


X = normal_tensor(4, 2, 4, 4)


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 2, bias=False), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(27, 2))


def trained(array: FusedArray, steps: int = 3) -> FusedArray:
    optimiser = torch.optim.SGD(array.parameters(), lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        array.loss(lambda o: o.square().mean(), array(X)).sum().backward()
        optimiser.step()
    return array


def test_an_array_prints_its_width_and_its_body() -> None:
    text = str(fuse(build_members(small)))
    assert "3 members" in text
    assert "Conv2d" in text
    assert len(fuse(build_members(small))) == 3


def test_members_come_out_as_ordinary_models_with_copies_of_their_weights() -> None:
    array = trained(fuse(build_members(small)))
    array.eval()
    out, parts = array(X), array.split()
    for index, model in enumerate(parts):
        assert type(model) is nn.Sequential
        assert not model.training
        assert_same(model(X), select_member(out, index), "output")
        assert_same(model.state_dict(), array.member_state_dict(index), "state")
        assert all(p.is_leaf and p.requires_grad for p in model.parameters())
    with torch.no_grad():
        parts[0][0].weight.zero_()
    assert array.stacked["0.weight"][0].abs().sum() > 0
    assert_same(array.member(-1).state_dict(), parts[-1].state_dict(), "the last")


def test_split_members_can_be_fused_again() -> None:
    array = trained(fuse(build_members(small)))
    again = fuse(array.split())
    assert_same(dict(again.stacked), dict(array.stacked), "tensors")


def test_state_dicts_of_members_are_saved_and_loaded() -> None:
    array, other = trained(fuse(build_members(small))), build_members(small, 5)[4]
    other.train()
    other(X)
    before = [array.member_state_dict(i) for i in range(B)]
    array.load_member(1, other.state_dict())
    assert_same(array.member_state_dict(1), other.state_dict(), "what was loaded")
    for index in (0, 2):
        assert_same(array.member_state_dict(index), before[index], "the others")
    array.load_member(-1, before[0])
    assert_same(array.member_state_dict(2), before[0], "the last")
    assert_same(other.eval()(X), select_member(array.eval()(X), 1), "output")


@pytest.mark.slow
def test_members_leave_and_join_without_effect_on_the_others() -> None:
    models = build_members(small)
    array = fuse(models)
    rates, gammas = [0.1, 0.05, 0.02], [0.5, 0.9, 0.7]
    fused = Adam(array, lr=rates, betas=[(0.9, 0.99), (0.8, 0.9), (0.5, 0.9)])
    schedule = Schedule(fused, StepLR, step_size=2, gamma=gammas)
    betas = [(0.9, 0.99), (0.8, 0.9), (0.5, 0.9)]
    ordinary: list[Any] = []

    def ready(model: nn.Module, lr: float, beta: tuple[float, float], gamma: float) -> tuple[Any, ...]:
        optimiser = torch.optim.Adam(model.parameters(), lr=lr, betas=beta)
        return model, optimiser, StepLR(optimiser, step_size=2, gamma=gamma)

    ordinary = [ready(*each) for each in zip(models, rates, betas, gammas, strict=True)]
    for step in range(20):
        if step == 5:
            array.drop([1])
            del ordinary[1]
        if step == 9:
            new = build_members(small, 5)[3:]
            array.add(new, lr=[0.03, 0.01], betas=(0.9, 0.9), gamma=0.8)
            ordinary += [ready(m, lr, (0.9, 0.9), 0.8) for m, lr in zip(new, (0.03, 0.01), strict=True)]
        if step == 14:
            array.drop([0, -1])
            ordinary = ordinary[1:-1]
        x = normal_tensor(4, 2, 4, 4, seed=step)
        fused.zero_grad()
        array.loss(lambda o: (o.square() + o).mean(), array(x)).sum().backward()
        fused.step()
        schedule.step()
        for model, optimiser, scheduler in ordinary:
            optimiser.zero_grad()
            out = model(x)
            (out.square() + out).mean().backward()
            optimiser.step()
            scheduler.step()
        assert len(array) == len(ordinary)
        assert_same_state(array, [model for model, *_ in ordinary], 1e-9)
        lrs = torch.tensor([s.get_last_lr()[0] for *_, s in ordinary], dtype=torch.float64)
        torch.testing.assert_close(schedule.get_last_lr()[0], lrs)


def test_members_leave_while_they_keep_state_between_calls() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.state: Any = None

        def forward(self, x: Tensor) -> Tensor:
            self.state = torch.tanh(self.fc(x if self.state is None else x + self.state)).detach()
            return self.state

    models = build_members(Remembers)
    array = fuse(models)
    for step in range(4):
        if step == 2:
            array.drop([0])
            del models[0]
        out = array(normal_tensor(2, 4, seed=step))
        assert array.carries
        for index, model in enumerate(models):
            assert_same(select_member(out, index), model(normal_tensor(2, 4, seed=step)), "output")
    assert_same(array.member(0).state, models[0].state, "state")
    with pytest.raises(NotFusible, match="from one call to the next"):
        array.add([Remembers().double()])


def test_members_that_join_an_array_over_a_shared_base_must_share_it() -> None:
    base = nn.Linear(4, 4).requires_grad_(False)

    def make() -> nn.Module:
        return nn.Sequential(base, nn.Linear(4, 2))

    array = fuse([make(), make()])
    array.add([make()])
    assert len(array) == 3
    assert array.common["0.weight"] is base.weight
    other = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2))
    with pytest.raises(
        NotFusible, match=r"0\.weight is shared by all members, but a joining model has another value"
    ):
        array.add([other])
    with pytest.raises(
        NotFusible, match=r"0\.weight is shared by all members, but the state dict has another value"
    ):
        array.load_member(0, other.state_dict())


def test_members_that_join_an_array_over_an_equal_base_must_have_its_values() -> None:
    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2))

    array = fuse([make(0), make(0)])
    array.add([make(0)])
    assert len(array) == 3
    assert array.common["0.weight"].shape == (4, 4)
    with pytest.raises(NotFusible, match=r"0\.weight is shared by all members, but a joining model"):
        array.add([make(1)])
    with pytest.raises(NotFusible, match=r"0\.weight is shared by all members, but the state dict"):
        array.load_member(0, make(1).state_dict())


def test_training_and_evaluation() -> None:
    array, models = fuse(build_members(Net)), build_members(Net)
    assert array.training
    assert not torch.equal(array(X), array(X))
    array.eval()
    assert not array.training
    array = fuse([m.eval() for m in models])
    assert not array.training
    assert torch.equal(array(X), array(X))
    assert_same(select_member(array(X), 2), models[2](X), "output")
    array.train()
    assert array.body.drop.training
    assert array.member(0).training


def test_a_frozen_batch_norm_inside_of_a_training_model() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 2), nn.BatchNorm2d(3))
        model[1].eval()
        model[1].weight.requires_grad_(False)
        nn.init.uniform_(model[1].running_mean)
        return model

    array = assert_same_training(make, X)
    assert array.training
    assert not array.body[1].training
    assert array.body[1].num_batches_tracked.tolist() == [0] * B
    assert array.body[3].num_batches_tracked.tolist() == [3] * B
    assert not array.member(0)[1].training


def test_parts_can_be_frozen_after_fusing() -> None:
    array = fuse(build_members(small))
    array.body[0].requires_grad_(False)
    before = array.stacked["0.weight"].clone()
    trained(array)
    assert torch.equal(array.stacked["0.weight"], before)
    assert not array.member(0)[0].weight.requires_grad


def test_types_can_be_changed() -> None:
    models = build_members(small, dtype=torch.float32)
    array = fuse(models).to(torch.float64)
    assert array.stacked["0.weight"].dtype == torch.float64
    assert array.stacked["1.num_batches_tracked"].dtype == torch.int64
    for model in models:
        model.double()
    assert_same(select_member(array(X), 1), models[1](X), "output")
    assert array.member(0)[0].weight.dtype == torch.float64


def test_single_precision_deviates_by_rounding_only() -> None:
    assert_same_training(small, X.float(), dtype=torch.float32, tolerance=1e-5)


@pytest.mark.parametrize("fallback", [False, True])
def test_state_dicts_are_saved_and_loaded(fallback: bool) -> None:
    def make() -> nn.Module:
        return nn.Sequential(small(), Decides()) if fallback else small()

    array = fuse(build_members(make))
    if fallback:
        with pytest.warns(FusionWarning):
            trained(array)
    else:
        trained(array)
    file = io.BytesIO()
    torch.save(array.state_dict(), file)
    file.seek(0)
    other = fuse(build_members(make, 6)[3:])
    other.load_state_dict(torch.load(file))
    assert_same(dict(other.stacked), dict(array.stacked), "tensors")
    with pytest.raises(RuntimeError, match="size mismatch"):
        fuse(build_members(make, 2)).load_state_dict(array.state_dict())


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
@pytest.mark.parametrize("fallback", [False, True])
def test_arrays_are_copied_with_their_state(way: str, fallback: bool) -> None:
    array = fuse(build_members(lambda: nn.Sequential(small(), Decides()) if fallback else small()))
    if fallback:
        with pytest.warns(FusionWarning):
            array(X)
    else:
        array(X)
    twin = copy.deepcopy(array) if way == "deepcopy" else pickle.loads(pickle.dumps(array))
    assert_same(dict(twin.stacked), dict(array.stacked), "tensors")
    assert_same(trained(twin)(X), trained(array)(X), "output")  # no second warning
    twin.drop([0])
    assert (len(twin), len(array)) == (2, 3)


def test_gradients_can_be_switched_off() -> None:
    array, models = fuse(build_members(small)), build_members(small)
    with torch.no_grad():
        assert not array(X).requires_grad
        models[1](X)
    with torch.inference_mode():
        assert_same(select_member(array.eval()(X), 1), models[1].eval()(X), "output")


@pytest.mark.slow
def test_input_gradients_of_members_add_up_for_a_shared_input_and_are_own_otherwise() -> None:
    assert_same_training(small, X)
    assert_same_training(small, torch.stack([X, X + 1, X - 1]), members=True)


def test_some_arguments_are_of_each_member_and_some_of_all() -> None:
    assert_same_training(
        lambda: nn.Bilinear(4, 3, 2), normal_tensor(B, 5, 4), normal_tensor(5, 3), members=[True, False]
    )


def test_second_derivatives_are_each_members_own() -> None:
    models = build_members(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)))
    array = fuse(models)
    x = normal_tensor(5, 4).requires_grad_()
    own = x.detach().expand(B, 5, 4).clone().requires_grad_()
    out = array(own, members=True)
    (slope,) = torch.autograd.grad(out.sum(), own, create_graph=True)
    slope.square().sum().backward()  # a gradient penalty
    for index, model in enumerate(models):
        (mine,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        mine.square().sum().backward()
        assert_same(array.stacked["0.weight"].grad[index], model[0].weight.grad, "gradient")


def test_two_arrays_of_the_same_models_do_not_share_anything() -> None:
    models = build_members(small)
    a, b = fuse(models), fuse(models)
    trained(a)
    assert_same(b.member_state_dict(0), models[0].state_dict(), "state")


def test_an_optimiser_of_the_array_trains_members_at_their_own_rates() -> None:
    models, array = build_members(small), fuse(build_members(small))
    fused = SGD(array, lr=[0.1, 0.0, 0.3], momentum=0.9)
    ordinary = [
        torch.optim.SGD(m.parameters(), lr=lr, momentum=0.9)
        for m, lr in zip(models, (0.1, 0.0, 0.3), strict=True)
    ]
    for step in range(5):
        x = normal_tensor(4, 2, 4, 4, seed=step)
        fused.zero_grad()
        array.loss(lambda o: o.square().mean(), array(x)).sum().backward()
        fused.step()
        for model, optimiser in zip(models, ordinary, strict=True):
            optimiser.zero_grad()
            model(x).square().mean().backward()
            optimiser.step()
    assert_same_state(array, models)

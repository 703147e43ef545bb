"""Modules that cannot be fused run per member with a warning, or raise an error; results are never wrong."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from support.fusion_equality import (  # noqa: E402
    B,
    assert_same,
    assert_same_training,
    build_members,
    normal_tensor,
    select_member,
)
from wattline.errors import NotFusible  # noqa: E402
from wattline.fusion import FusionWarning, fuse  # noqa: E402


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3  # on purpose


class UnusualLayer(nn.Module):
    """A linear layer followed by an unusual operation."""

    def __init__(self, operation: Callable[..., Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.operation = operation
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))
        self.count = 0
        self.state: Any = None

    def forward(self, x: Tensor) -> Any:
        return self.operation(self, self.fc(x))


def decides(m: Any, y: Tensor) -> Tensor:
    return y * 2 if y.sum() > 0 else y - 1


def loops(m: Any, y: Tensor) -> Tensor:
    while y.abs().max() > 0.3:
        y = y / 2
    return y


def reads(m: Any, y: Tensor) -> Tensor:
    return y * y.detach().mean().item()


def selects(m: Any, y: Tensor) -> Tensor:
    return y[y > 0].sum() + y[0]


def finds(m: Any, y: Tensor) -> Tensor:
    return y[y.sum(1).nonzero()[:, 0]].mean(0)


def to_numpy(m: Any, y: Tensor) -> Tensor:
    return y * float(np.abs(y.detach().numpy()).max())


def writes(m: Any, y: Tensor) -> Tensor:
    y[0] = 0.5
    y[:, 1] += y[:, 2]
    y.index_put_((torch.tensor([1]),), torch.ones(4, dtype=y.dtype))
    return y.mul_(2)


def fills(m: Any, y: Tensor) -> Tensor:
    out = torch.zeros(len(y), 4, dtype=y.dtype)
    for i in range(len(y)):
        out[i] = y[i] * i
    return out


def counts(m: Any, y: Tensor) -> Tensor:
    m.seen += 1
    return y * m.seen


def averages(m: Any, y: Tensor) -> Tensor:
    m.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
    return y - m.mean


def replaces(m: Any, y: Tensor) -> Tensor:
    m.mean = 0.9 * m.mean + 0.1 * y.detach().mean(0)
    m.seen = m.seen + 1
    return y - m.mean


def numbers(m: Any, y: Tensor) -> Tensor:
    m.count += 1
    return y * m.count


def remembers(m: Any, y: Tensor) -> Tensor:
    old = 0 if m.state is None else m.state
    m.state = y.detach()
    return y + old


def stops(m: Any, y: Tensor) -> Tensor:
    with torch.no_grad():
        scale = y.std() + m.fc.weight.norm()
    return y * scale + y.detach()


def custom(m: Any, y: Tensor) -> Tensor:
    return Twice.apply(y)


def penalty(m: Any, y: Tensor) -> Tensor:
    (grad,) = torch.autograd.grad(torch.tanh(y).sum(), y, create_graph=True)
    return y + grad


def func_grad(m: Any, y: Tensor) -> Tensor:
    return y + torch.func.grad(lambda z: torch.tanh(m.fc(z)).sum())(y)


def inner_vmap(m: Any, y: Tensor) -> Tensor:
    return torch.vmap(lambda z: torch.tanh(m.fc(z)))(y)


def jacobian(m: Any, y: Tensor) -> Tensor:
    return torch.vmap(torch.func.jacrev(lambda z: torch.tanh(m.fc(z))))(y).sum(-1)


def knows_gradients(m: Any, y: Tensor) -> Tensor:
    return y * 2 if y.requires_grad and not y.is_leaf else y


def asks(m: Any, y: Tensor) -> Tensor:
    return y * 2 if torch.all(y < 0.1) else y.exp()


def hooks(m: Any, y: Tensor) -> Tensor:
    y.register_hook(lambda grad: grad * 2)
    return y * 3


def decides_and_counts(m: Any, y: Tensor) -> Tensor:
    m.count += 1
    return (y * 2 if y.sum() > 0 else y - 1) * m.count


def decides_and_remembers(m: Any, y: Tensor) -> Tensor:
    return remembers(m, decides(m, y))


def decides_and_averages(m: Any, y: Tensor) -> Tensor:
    return replaces(m, decides(m, y))


def decides_and_lists(m: Any, y: Tensor) -> Tensor:
    m.state = [*(m.state or []), 1]
    return decides(m, y) * len(m.state)


FUSED = [
    writes,
    counts,
    averages,
    replaces,
    numbers,
    remembers,
    stops,
    func_grad,
    inner_vmap,
    jacobian,
    knows_gradients,
]
PER_MEMBER = [
    decides,
    fills,
    asks,
    hooks,
    loops,
    reads,
    selects,
    finds,
    to_numpy,
    custom,
    penalty,
    decides_and_counts,
    decides_and_remembers,
    decides_and_averages,
    decides_and_lists,
]


@pytest.mark.parametrize("wrapped", [False, True], ids=["the model", "a layer"])
@pytest.mark.parametrize("operation", [*FUSED, *PER_MEMBER])
def test_unusual_forwards_are_exact(operation: Callable[..., Any], wrapped: bool) -> None:
    def make() -> nn.Module:
        return (
            nn.Sequential(nn.Linear(4, 4), UnusualLayer(operation), nn.Linear(4, 2))
            if wrapped
            else UnusualLayer(operation)
        )

    with warnings.catch_warnings():
        if operation not in FUSED:
            warnings.simplefilter("ignore")
        assert_same_training(make, normal_tensor(3, 4), steps=3)
        assert_same_training(make, normal_tensor(B, 3, 4), members=True, steps=2)


@pytest.mark.parametrize("operation", PER_MEMBER)
def test_a_module_that_cannot_be_fused_is_named_in_a_warning(operation: Callable[..., Any]) -> None:
    array = fuse(build_members(lambda: nn.Sequential(nn.Linear(4, 4), UnusualLayer(operation))))
    with pytest.warns(
        FusionWarning, match=r"1 \(UnusualLayer\) cannot be fused and runs separately for each member: \w+"
    ):
        array(normal_tensor(3, 4))
    array(normal_tensor(3, 4))  # no second warning


def test_outputs_of_different_shapes_are_refused() -> None:
    array = fuse(build_members(lambda: UnusualLayer(lambda m, y: y[y > 0])))
    with pytest.raises(NotFusible, match=r"member \d returns the shape"):
        array(normal_tensor(3, 4))


def test_outputs_of_different_numbers_are_refused() -> None:
    array = fuse(build_members(lambda: UnusualLayer(lambda m, y: (y, int((y > 0).sum())))))
    with pytest.raises(NotFusible, match=r"member \d returns"):
        array(normal_tensor(3, 4))


def test_a_layer_with_ragged_outputs_runs_per_member_with_its_parent() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.odd = UnusualLayer(lambda m, y: y[y > 0])

        def forward(self, x: Tensor) -> Tensor:
            return self.odd(x).sum()

    with pytest.warns(FusionWarning, match="Around"):
        assert_same_training(lambda: nn.Sequential(nn.Linear(4, 4), Around()), normal_tensor(3, 4))


def test_outputs_in_unknown_containers_are_refused() -> None:
    class Box:
        def __init__(self, y: Tensor) -> None:
            self.y = y

    array = fuse(build_members(lambda: UnusualLayer(lambda m, y: Box(y))))
    with pytest.raises(NotFusible, match="inside a Box"):
        array(normal_tensor(3, 4))


def test_attributes_that_differ_between_members_after_a_call_are_refused() -> None:
    def keeps(m: Any, y: Tensor) -> Tensor:
        m.state = y.detach().mean().item()
        return y

    array = fuse(build_members(lambda: UnusualLayer(keeps)))
    with pytest.raises(NotFusible, match=r"UnusualLayer\.state is not the same for all members"):
        array(normal_tensor(3, 4))


def test_lists_of_tensors_kept_after_a_call_are_refused() -> None:
    def keeps(m: Any, y: Tensor) -> Tensor:
        m.state = [y.detach()]
        return y

    array = fuse(build_members(lambda: UnusualLayer(keeps)))
    with pytest.raises(NotFusible, match=r"UnusualLayer\.state keeps tensors of a call in a list"):
        array(normal_tensor(3, 4))
    assert array.body.state is None


def test_a_buffer_created_in_the_forward_is_refused() -> None:
    class Makes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.register_buffer("mask", None)

        def forward(self, x: Tensor) -> Tensor:
            if self.mask is None:
                self.mask = self.fc.weight.detach() > 0
            return self.fc(x) * self.mask[0]

    array = fuse(build_members(Makes))
    with pytest.raises(NotFusible, match=r"Makes\.mask is created in the forward"):
        array(normal_tensor(3, 4))
    assert array.body.mask is None


class Adds(nn.Module):
    """A module that writes into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        x += self.w
        return x * 2


class Uses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.adds = Adds()

    def forward(self, x: Tensor) -> Tensor:
        return self.adds(x) + x  # adds has changed x


def test_writing_into_an_input_that_members_share() -> None:
    with pytest.warns(FusionWarning, match="Adds"):
        assert_same_training(Adds, normal_tensor(3, 4), input_grad=False)
    with pytest.warns(FusionWarning):
        assert_same_training(Uses, normal_tensor(3, 4), input_grad=False)
    assert_same_training(Uses, normal_tensor(B, 3, 4), members=True, input_grad=False)
    assert_same_training(
        lambda: nn.Sequential(nn.Linear(4, 4), Uses()), normal_tensor(3, 4), input_grad=False
    )


def test_an_activation_in_place_on_the_input() -> None:
    make = lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2))  # noqa: E731
    assert_same_training(make, normal_tensor(3, 4), input_grad=False)
    assert_same_training(make, normal_tensor(B, 3, 4), members=True, input_grad=False)


def test_a_retry_after_writing_into_the_input_is_refused() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.odd = UnusualLayer(decides)

        def forward(self, x: Tensor) -> Tensor:
            x += 1
            return self.odd(x)

    array = fuse(build_members(Both))
    with pytest.raises(NotFusible, match="writes into its input"):
        array(normal_tensor(3, 4))


class Deep(nn.Module):
    """Stochastic depth."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if self.draw() < 0.5 else x


def of_numpy() -> float:
    return float(np.random.rand())


@pytest.mark.parametrize("draw", [random.random, of_numpy])
def test_python_and_numpy_random_numbers_are_drawn_for_each_member(draw: Callable[[], float]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Deep(draw), nn.Identity()).double()
    array = fuse([copy.deepcopy(model) for _ in range(40)])
    random.seed(0)
    np.random.seed(0)
    with pytest.warns(FusionWarning, match=r"0 \(Deep\).*random numbers from Python or NumPy"):
        out = array(normal_tensor(3, 4))
    drawn = {float(o.sum()) for o in out.detach()}
    assert len(drawn) == 2
    random.seed(0)
    np.random.seed(0)
    assert_same(
        out, torch.stack([model(normal_tensor(3, 4)) for _ in range(40)]), "as drawn one after another"
    )


def test_hooks_run() -> None:
    def make(where: str) -> Callable[[], nn.Module]:
        def made() -> nn.Module:
            model = nn.Sequential(
                nn.Linear(4, 4), UnusualLayer(decides) if "alone" in where else nn.Tanh(), nn.Linear(4, 2)
            )
            target = model if "whole" in where else model[1]
            target.register_forward_hook(lambda m, i, o: o * 2 + i[0].mean())
            target.register_forward_pre_hook(lambda m, i: (i[0] + 1,))
            target.register_forward_pre_hook(lambda m, a, k: (a, k), with_kwargs=True)
            return model

        return made

    for where in ("layer", "whole", "alone layer", "alone whole"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if "alone" in where else "error", FusionWarning)
            assert_same_training(make(where), normal_tensor(3, 4))
    with pytest.warns(FusionWarning):
        assert_same_training(hooked_whole, normal_tensor(3, 4))


def hooked_whole() -> nn.Module:
    model = UnusualLayer(decides)
    model.register_forward_hook(lambda m, i, o: o * 2)
    model.register_forward_pre_hook(lambda m, i: (i[0] + 1,))
    return model


@pytest.mark.parametrize("whole", [False, True])
def test_hooks_on_gradients_of_modules_are_refused(whole: bool) -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        (model if whole else model[1]).register_full_backward_hook(lambda m, i, o: None)
        return model

    with pytest.raises(NotFusible, match="Sequential has hooks" if whole else "1 has hooks on its gradient"):
        fuse([make(), make()])


def test_models_with_generators_of_their_own() -> None:
    class Draws(nn.Module):
        def __init__(self, seed: int, decide: bool) -> None:
            super().__init__()
            self.fc, self.random, self.decide = nn.Linear(4, 4), random.Random(seed), decide
            self.other = np.random.default_rng(seed)

        def forward(self, x: Tensor) -> Tensor:
            y = self.fc(x) * self.random.random() + self.other.random()
            return decides(self, y) if self.decide else y

    assert_same_training(lambda: Draws(1, False), normal_tensor(3, 4))
    with pytest.warns(FusionWarning, match="Draws"):
        assert_same_training(lambda: Draws(1, True), normal_tensor(3, 4))
    with pytest.raises(NotFusible, match="random"):
        fuse([Draws(1, False), Draws(2, False)])


def test_a_loss_that_cannot_be_fused_runs_per_member_with_one_warning() -> None:
    def loss(out: Tensor, target: Tensor) -> Tensor:
        return out.mean() if float(out.detach().sum()) > 0 else (out - target).square().sum()

    models = build_members(lambda: nn.Linear(4, 3))
    array = fuse(models)
    with pytest.warns(FusionWarning, match="loss cannot be fused"):
        losses = array.loss(loss, array(normal_tensor(5, 4)), normal_tensor(5, 3))
    assert_same(
        losses, torch.stack([loss(m(normal_tensor(5, 4)), normal_tensor(5, 3)) for m in models]), "losses"
    )
    assert_same(
        select_member(array.loss(loss, array(normal_tensor(5, 4)), normal_tensor(5, 3)), 0),
        losses[0],
        "losses",
    )


def test_an_error_of_one_member_names_the_member() -> None:
    def fails(m: Any, y: Tensor) -> Tensor:
        if m.fc.weight.sum() > 1e6:
            raise ValueError("too large")
        return y

    models = build_members(lambda: UnusualLayer(fails))
    nn.init.constant_(models[1].fc.weight, 1e7)
    with pytest.raises(ValueError, match="too large") as raised:
        fuse(models)(normal_tensor(3, 4))
    assert raised.value.__notes__ == ["(in member 1 of an array)"]

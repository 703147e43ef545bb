"""Members that differ in numbers: temperatures, probabilities of dropout and the like."""

from __future__ import annotations

import copy
import io
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from support.fusion_equality import (  # noqa: E402
    assert_same,
    assert_same_state,
    assert_same_training,
    integer_tensor,
    normal_tensor,
    select_member,
)
from wattline.errors import NotFusible  # noqa: E402
from wattline.fusion import SGD, FusionWarning, fuse, train_step  # noqa: E402
from wattline.fusion.architecture_check import fingerprint  # noqa: E402

X = normal_tensor(6, 4)
Y = integer_tensor(3, 6)


class Cooled(nn.Module):
    """A network with a temperature."""

    def __init__(self, tau: float, fn: Callable[[Tensor, Any], Tensor] = torch.div) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.tau = tau
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(self.fc(x), self.tau)


def cooled(taus: Sequence[float], fn: Callable[[Tensor, Any], Tensor] = torch.div) -> list[nn.Module]:
    models = []
    for seed, tau in enumerate(taus):
        torch.manual_seed(seed)
        models.append(Cooled(tau, fn).double())
    return models


def sequential(layers: Sequence[nn.Module]) -> list[nn.Module]:
    models = []
    for seed, layer in enumerate(layers):
        torch.manual_seed(seed)
        models.append(nn.Sequential(nn.Linear(4, 3), layer, nn.Linear(3, 3)).double())
    return models


FUSED: list[tuple[str, Callable[[Tensor, Any], Tensor]]] = [
    ("division", lambda y, t: y / t),
    ("a factor in front", lambda y, t: t * y),
    ("a power", lambda y, t: y.abs() ** t),
    ("arithmetic of numbers", lambda y, t: y * (1 - t) ** 2 / (t + 1.5)),
    ("a limit", lambda y, t: torch.clamp(y, -t, t)),
    ("where", lambda y, t: torch.where(y > 0, y, t)),
    ("lerp", lambda y, t: torch.lerp(y, y.square(), t)),
    ("in place", lambda y, t: y.clone().mul_(t)),
    ("leaky relu", lambda y, t: F.leaky_relu(y, t)),
    ("elu", lambda y, t: F.elu(y * 3, t)),
    ("attention's scale", lambda y, t: F.scaled_dot_product_attention(y, y, y, scale=t)),
    ("huber loss", lambda y, t: F.huber_loss(y, y.detach().roll(1), delta=t)),
    ("smooth l1 loss", lambda y, t: F.smooth_l1_loss(y, y.detach().roll(1), beta=t)),
    ("label smoothing", lambda y, t: F.cross_entropy(y, Y, label_smoothing=t / 8)),
    (
        "label smoothing with weights and classes left out",
        lambda y, t: F.cross_entropy(
            y, Y, torch.tensor([1.0, 2.0, 0.5]).double(), ignore_index=1, label_smoothing=t / 8
        ),
    ),
    (
        "label smoothing of probabilities",
        lambda y, t: F.cross_entropy(y, y.detach().softmax(-1), label_smoothing=t / 8),
    ),
]
PER_MEMBER: list[tuple[str, Callable[[Tensor, Any], Tensor]]] = [
    ("a branch", lambda y, t: y * 2 if t > 1.5 else y - 1),
    ("mathematics of Python", lambda y, t: y * math.exp(t)),
    ("a range", lambda y, t: sum(y**n for n in range(int(t) + 1))),
    ("a new tensor", lambda y, t: y + torch.full((3,), t, dtype=y.dtype)),
    ("an option without a rule", lambda y, t: F.softplus(y, beta=t)),
    ("an option of an operator with a rule", lambda y, t: F.layer_norm(y, (3,), eps=t)),
    ("a test of the type", lambda y, t: y / t if t.is_integer() else y),
]


@pytest.mark.parametrize(("taus"), [(1.0, 2.0, 4.0), (0.5, 1, 2), (0.1, 0.1, 0.3)])
@pytest.mark.parametrize("fn", [fn for _, fn in FUSED], ids=[name for name, _ in FUSED])
def test_members_train_with_their_own_numbers(fn: Any, taus: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionWarning)
        assert_same_training(nn.Module, X, models=cooled(taus, fn))


@pytest.mark.parametrize("fn", [fn for _, fn in PER_MEMBER], ids=[name for name, _ in PER_MEMBER])
def test_where_python_needs_a_number_members_run_one_by_one_and_see_floats(fn: Any) -> None:
    seen: list[Any] = []

    def noted(y: Tensor, t: Any) -> Tensor:
        seen.append(type(t))
        return fn(y, t)

    with pytest.warns(FusionWarning, match=r"the whole model \(Cooled\) cannot be fused"):
        assert_same_training(nn.Module, X, models=cooled((1.0, 2.0, 4.0), noted))
    assert seen[-1] is float


LAYERS: list[Callable[[float], nn.Module]] = [
    lambda p: nn.LeakyReLU(p),
    lambda p: nn.ELU(p),
    lambda p: nn.BatchNorm1d(3, momentum=p, eps=p / 10),
    lambda p: nn.LayerNorm(3, eps=p),
    lambda p: nn.Hardtanh(-p, p),
]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.filterwarnings("ignore::wattline.fusion.FusionWarning")
def test_layers_of_pytorch_may_differ_in_their_numbers(layer: Any) -> None:
    assert_same_training(nn.Module, X, models=sequential([layer(p) for p in (0.1, 0.3, 0.7)]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fn", [fn for _, fn in FUSED[:8]], ids=[name for name, _ in FUSED[:8]])
def test_numbers_do_not_change_the_type_of_a_result(fn: Any, dtype: Any) -> None:
    models = [model.to(dtype) for model in cooled((0.1, 0.3, 0.7), fn)]
    out = fuse(models)(X.to(dtype))
    for index, model in enumerate(models):
        alone = model(X.to(dtype))
        assert out.dtype == alone.dtype
        torch.testing.assert_close(out[index], alone)


def test_a_temperature_in_half_precision_is_not_rounded_to_it() -> None:
    models = [model.bfloat16() for model in cooled((0.1, 0.3, 0.7), lambda y, t: (y * 0 + 1) * 3 / t)]
    out = fuse(models)(X.bfloat16())
    assert out[:, 0, 0].tolist() == [model(X.bfloat16())[0, 0].item() for model in models]


def test_numbers_times_integers_have_the_default_type() -> None:
    models = [model.float() for model in cooled((0.5, 0.3, 0.7), lambda y, t: y + torch.arange(3) * t)]
    out = fuse(models)(X.float())
    assert_same(out, torch.stack([model(X.float()) for model in models]), "output", 1e-6)
    assert out.dtype == torch.float32


DROPOUTS: list[tuple[str, Callable[[float], nn.Module], tuple[int, ...]]] = [
    ("dropout", nn.Dropout, (40, 50)),
    ("dropout in place", lambda p: nn.Dropout(p, inplace=True), (40, 50)),
    ("alpha dropout", nn.AlphaDropout, (40, 50)),
    ("dropout of channels", nn.Dropout1d, (40, 50, 2)),
    ("dropout of channels of images", nn.Dropout2d, (40, 50, 2, 2)),
]


@pytest.mark.parametrize(("layer", "shape"), [d[1:] for d in DROPOUTS], ids=[d[0] for d in DROPOUTS])
@pytest.mark.filterwarnings("ignore::wattline.fusion.FusionWarning")
def test_members_drop_with_their_own_probability(layer: Any, shape: Any) -> None:
    torch.manual_seed(0)
    probabilities = (0, 0.2, 0.7, 1.0)
    array = fuse([nn.Sequential(layer(p)) for p in probabilities])
    out = array(torch.ones(4, *shape), members=True)
    for index, p in enumerate(probabilities):
        if layer is nn.AlphaDropout:
            kept = (out[index] == out[index].max()).double().mean() if p < 1 else 0.0
        else:
            kept = (out[index] != 0).double().mean()
            values = {round(v, 4) for v in out[index].unique().tolist()}
            assert values == {0.0, round(1 / (1 - p), 4)} if 0 < p < 1 else {float(p == 0)}
        assert float(kept) == pytest.approx(1 - p, abs=0.05)
    array.eval()
    assert_same(array(torch.ones(4, *shape), members=True), torch.ones(4, *shape), "in evaluation")


def test_dropout_has_the_derivative_of_its_mask() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 20, 20, requires_grad=True)
    array = fuse([nn.Dropout(p) for p in (0.1, 0.5, 0.9)])
    out = array(x, members=True)
    out.sum().backward()
    assert x.grad is not None
    assert_same(x.grad * x, out, "gradient", 1e-6)


def test_attention_drops_with_the_probability_of_each_member() -> None:
    torch.manual_seed(0)
    models = [nn.MultiheadAttention(8, 2, dropout=p, batch_first=True) for p in (0.0, 0.5, 1.0)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionWarning)
        for need_weights in (True, False):
            array = fuse(models)
            x = torch.randn(30, 5, 8)
            out = array(x, x, x, need_weights=need_weights)[0]
            assert_same(out[0], models[0](x, x, x)[0], "without dropout", 1e-5)
            assert_same(out[2], models[2].out_proj.bias.expand(30, 5, 8), "all dropped", 1e-5)
            assert not torch.allclose(out[1], models[1].eval()(x, x, x)[0])
            models[1].train()


def test_a_probability_above_one_is_the_error_of_pytorch() -> None:
    array = fuse([nn.Sequential(nn.Dropout(p)) for p in (0.1, 0.5)])
    array.body[0].p[1] = 1.5
    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
        array(X)


def test_members_come_out_with_ordinary_floats() -> None:
    models = cooled((0.1, 1 / 3, 1e-300))
    array = fuse(models)
    for index, (member, model) in enumerate(zip(array.split(), models, strict=True)):
        assert type(member.tau) is float
        assert member.tau == model.tau
        assert list(dict(member.named_buffers())) == []
        assert list(array.member_state_dict(index)) == list(model.state_dict())
        assert vars(member).keys() == vars(model).keys()
        assert_same(member(X), model(X), "output")
    assert_same(fuse(array.split())(X), array(X), "of an array of the members")


@pytest.mark.parametrize("convert", [lambda a: a.half(), lambda a: a.float(), lambda a: a.to(torch.bfloat16)])
def test_conversions_of_an_array_leave_numbers_exact(convert: Any) -> None:
    array = convert(fuse(cooled((0.1, 1 / 3, 0.7))))
    assert [member.tau for member in array.split()] == [0.1, 1 / 3, 0.7]
    assert array.body.fc.weight.dtype != torch.float64


def test_a_conversion_of_the_body_alone_is_refused() -> None:
    array = fuse(cooled((0.1, 0.2, 0.3)))
    array.body.half()
    with pytest.raises(NotFusible, match=r"tau is a tensor of torch.float16 and shape \(3,\), expected"):
        array(X.half())


def test_state_dicts_and_copies_keep_numbers() -> None:
    models = cooled((0.1, 0.2, 0.3))
    array = fuse(models)
    assert "body.tau" not in array.state_dict()
    array.load_member(1, models[0].state_dict())
    assert array.member(1).tau == 0.2
    file = io.BytesIO()
    torch.save(fuse([nn.Dropout(0.1), nn.Dropout(0.2)]), file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    assert [m.p for m in saved.split()] == [0.1, 0.2]
    assert_same(copy.deepcopy(array)(X), array(X), "copy")


def test_numbers_are_read_and_set_by_name() -> None:
    models = cooled((1.0, 2.0, 4.0))
    array = fuse(models)
    assert array.tau.tolist() == [1.0, 2.0, 4.0]
    for value in ([0.5, 3, 8.0], torch.tensor([2.0, 3.0, 4.0]), 7, 0.25):
        array.tau = value
        own = value if isinstance(value, list) else torch.as_tensor(value).expand(3).tolist()
        for model, tau in zip(models, own, strict=True):
            model.tau = tau
        assert_same(array(X), torch.stack([model(X) for model in models]), f"after setting {value}")
    array.tau[1] = 5.0
    assert [m.tau for m in array.split()] == [0.25, 5.0, 0.25]
    for wrong in ([1.0, 2.0], "warm", True, [1.0, 2.0, True], None):
        with pytest.raises(NotFusible, match=r"tau is set to .*, expected a number, or one for each of 3"):
            array.tau = wrong
    assert [m.tau for m in array.split()] == [0.25, 5.0, 0.25]


def test_a_number_of_all_members_becomes_one_of_each_when_a_list_is_assigned() -> None:
    models = cooled((2.0, 2.0, 2.0))
    array = fuse(models)
    array.tau = [1.0, 2.0, 4.0]
    for model, tau in zip(models, (1.0, 2.0, 4.0), strict=True):
        model.tau = tau
    assert_same(array(X), torch.stack([model(X) for model in models]), "output")
    with pytest.raises(NotFusible, match="expected a number, or one for each of 3"):
        fuse(cooled((2.0, 2.0, 2.0))).tau = [1.0, 2.0]
    with pytest.raises(NotFusible, match="must not differ in ints"):
        fuse(cooled((2, 2, 2))).tau = [1, 2, 4]


def test_members_leave_and_join_with_their_numbers() -> None:
    models = cooled((1.0, 2.0, 4.0, 8.0, 16, 16))
    array = fuse(models[:3])
    array.drop([1])
    array.add(models[3:5])
    rest = [models[0], *models[2:5]]
    assert_same(array(X), torch.stack([model(X) for model in rest]), "output")
    assert [m.tau for m in array.split()] == [1.0, 4.0, 8.0, 16.0]


def test_a_joining_member_may_be_the_first_with_another_number() -> None:
    models = cooled((2.0, 2.0, 4.0))
    array = fuse(models[:2])
    array.add(models[2:])
    assert_same(array(X), torch.stack([model(X) for model in models]), "output")
    assert [m.tau for m in array.split()] == [2.0, 2.0, 4.0]


class Annealed(nn.Module):
    """A network that changes its temperature in every call."""

    def __init__(self, tau: float, is_limited: bool) -> None:
        super().__init__()
        self.fc, self.tau, self.is_limited = nn.Linear(4, 3), tau, is_limited

    def forward(self, x: Tensor) -> Tensor:
        self.tau = max(0.5, self.tau * 0.9) if self.is_limited else self.tau * 0.9
        return self.fc(x) / self.tau


@pytest.mark.parametrize("is_limited", [False, True])
@pytest.mark.filterwarnings("ignore::wattline.fusion.FusionWarning")
def test_a_forward_may_change_the_numbers_of_each_member(is_limited: bool) -> None:
    models = [Annealed(tau, is_limited).double() for tau in (0.51, 1.0, 2.0)]
    array = assert_same_training(nn.Module, X, models=models, steps=4)
    assert [m.tau for m in array.split()] == [model.tau for model in models]


@pytest.mark.parametrize("compile", [False, "graph"])
@pytest.mark.parametrize("width", [None, 2, 1])
def test_steps_read_the_numbers_of_each_member(compile: Any, width: Any) -> None:
    taus = [(1.0, 2.0, 4.0)] * 3 + [(0.5, 3.0, 1.0)] * 2
    models = cooled(taus[0])
    array = fuse(models)
    step = train_step(array, F.cross_entropy, SGD(array, lr=0.1), compile=compile, width=width)
    theirs = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionWarning)
        for now in taus:
            array.tau = now
            losses = step(X, Y)
            for index, (model, optimiser) in enumerate(zip(models, theirs, strict=True)):
                model.tau = now[index]
                optimiser.zero_grad()
                loss = F.cross_entropy(model(X), Y)
                loss.backward()
                optimiser.step()
                assert_same(losses[index], loss, "loss")
    assert_same_state(array, models)
    assert step.way.compiled is bool(compile)


def test_a_step_with_a_branch_on_a_number_runs_uncompiled_and_says_so() -> None:
    models = cooled((1.0, 2.0, 4.0), lambda y, t: y * 2 if t > 1.5 else y / t)
    array = fuse(models)
    step = train_step(array, F.cross_entropy, SGD(array, lr=0.1), compile="graph")
    with pytest.warns(FusionWarning, match="the whole model"):
        step(X, Y)
    with pytest.warns(FusionWarning, match="cannot be compiled.*has a number of its own for each member"):
        losses = step(X, Y)
    array.tau = [4.0, 1.0, 1.0]
    assert not torch.equal(step(X, Y), losses)


@pytest.mark.parametrize("compile", ["graph", pytest.param(True, marks=pytest.mark.slow)])
def test_compiled_dropout_has_the_probability_of_each_member(compile: Any) -> None:
    torch.manual_seed(0)

    class Dropped(nn.Module):
        def __init__(self, p: float) -> None:
            super().__init__()
            self.w, self.drop = nn.Parameter(torch.ones(100, 100)), nn.Dropout(p)

        def forward(self) -> Tensor:
            return self.drop(self.w.detach() * 0 + 1) + self.w * 0

    array = fuse([Dropped(p) for p in (0.0, 0.25, 0.75)])
    step = train_step(
        array, lambda out: (out > 0).float().mean() + out.sum() * 0, SGD(array, lr=0.0), compile=compile
    )
    for p in ((0.0, 0.25, 0.75), (0.0, 0.25, 0.75), (0.5, 0.0, 1.0)):
        array.body.drop.p.copy_(torch.tensor(p))
        assert step().tolist() == pytest.approx([1 - each for each in p], abs=0.03)
    assert step.way.compiled


def test_fingerprints_are_equal_for_models_that_differ_in_floats() -> None:
    one, other = nn.Sequential(nn.Dropout(0.1)), nn.Sequential(nn.Dropout(0.2))
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint(one) == fingerprint(fuse([one, other]).member(1))
    assert fingerprint(nn.Conv2d(1, 1, 1)) != fingerprint(nn.Conv2d(1, 1, 1, padding=1))


def test_the_members_of_an_array_do_not_share_a_number_with_the_models() -> None:
    models = cooled((1.0, 2.0, 4.0))
    array = fuse(models)
    before = array(X)
    models[0].tau = 9.0  # type: ignore[assignment]
    assert_same(select_member(array(X), 0), select_member(before, 0), "output")

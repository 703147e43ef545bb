"""Differences between models that fusing allows, and the errors for all others."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

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
from wattline.fusion import fuse  # noqa: E402


class Scaled(nn.Module):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.factor: Any = 1.0
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * self.factor


class WithDefault(nn.Module):
    tau = 0.5  # would be found before a buffer of that name

    def __init__(self, tau: float = 1.0) -> None:
        super().__init__()
        self.tau = tau


def net(width: int = 4, act: Callable[[], nn.Module] = nn.ReLU, **knobs: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(3, width), act(), nn.Linear(width, 2, **knobs))


def frozen(model: nn.Module, name: str) -> nn.Module:
    model.get_parameter(name).requires_grad_(False)
    return model


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


def other_order() -> nn.Module:
    model = nn.Module()
    model.b, model.a = nn.Linear(3, 3), nn.Linear(3, 3)
    return model


def one_order() -> nn.Module:
    model = nn.Module()
    model.a, model.b = nn.Linear(3, 3), nn.Linear(3, 3)
    return model


def with_buffer(value: Any) -> nn.Module:
    model = Scaled()
    model.register_buffer("note", value)
    return model


def double(x: Tensor) -> Tensor:
    return x * 2


def triple(x: Tensor) -> Tensor:
    return x * 3


DIFFERENT: list[tuple[str, Callable[[], nn.Module], Callable[[], nn.Module], list[str]]] = [
    ("shape", net, lambda: net(5), ["member 1", "0.weight", "(5, 3)", "(4, 3)"]),
    ("dtype", net, lambda: net().double(), ["0.weight", "torch.float64", "torch.float32"]),
    ("device", net, lambda: net().to("meta"), ["0.weight", "meta", "cpu"]),
    ("mode", net, lambda: net().eval(), ["evaluation mode", "expected training"]),
    ("mode of a layer", net, lambda: (m := net(), m[2].eval())[0], ["2 is in evaluation mode"]),
    ("class of a layer", net, lambda: net(act=nn.Tanh), ["1 is a Tanh", "expected ReLU"]),
    ("class", net, Scaled, ["is in only one"]),
    ("number of layers", net, lambda: nn.Sequential(*net(), nn.ReLU()), ["module 3", "only one"]),
    ("order of layers", one_order, other_order, ["order"]),
    ("bias", net, lambda: net(bias=False), ["2.bias", "only one"]),
    ("frozen", net, lambda: frozen(net(), "0.bias"), ["0.bias", "frozen"]),
    ("tied", lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), tied, ["1.weight", "tied"]),
    (
        "stride",
        lambda: nn.Conv2d(2, 2, 3),
        lambda: nn.Conv2d(2, 2, 3, stride=2),
        ["stride", "(2, 2)", "(1, 1)"],
    ),
    ("an int", lambda: Scaled(factor=1), lambda: Scaled(factor=2), ["factor is 2", "expected 1"]),
    ("a bool", Scaled, lambda: Scaled(factor=True), ["factor is True", "expected 1.0"]),
    ("a float and a string", Scaled, lambda: Scaled(factor="1"), ["factor is '1'", "expected 1.0"]),
    ("floats in a tuple", lambda: Scaled(betas=(0.9, 1)), lambda: Scaled(betas=(0.8, 1)), ["betas"]),
    ("a float of the class", WithDefault, lambda: WithDefault(2.0), ["tau is 2.0", "expected 1.0"]),
    ("an attribute more", Scaled, lambda: Scaled(more=1), ["more", "only one"]),
    ("a list", lambda: Scaled(sizes=[1, 2]), lambda: Scaled(sizes=[1, 3]), ["sizes is [1, 3]"]),
    ("a dict", lambda: Scaled(sizes={"a": 1}), lambda: Scaled(sizes={"a": 2}), ["sizes"]),
    ("a function", lambda: Scaled(act=double), lambda: Scaled(act=triple), ["act"]),
    ("what a function closes over", lambda: Scaled(act=closing(1)), lambda: Scaled(act=closing(2)), ["act"]),
    ("a partial function", lambda: Scaled(act=partial(max, 1)), lambda: Scaled(act=partial(max, 2)), ["act"]),
    (
        "a tensor's shape",
        lambda: Scaled(factor=torch.ones(2)),
        lambda: Scaled(factor=torch.ones(1)),
        ["factor"],
    ),
    (
        "a buffer",
        lambda: with_buffer(torch.ones(2)),
        lambda: with_buffer(torch.ones(3)),
        ["note", "(3,)", "(2,)"],
    ),
    (
        "a buffer that is there",
        lambda: with_buffer(None),
        lambda: with_buffer(torch.ones(3)),
        ["note", "only one"],
    ),
    ("an instance's own forward", Scaled, lambda: with_forward(Scaled()), ["forward"]),
]


def closing(n: int) -> Callable[[Tensor], Tensor]:
    return lambda x: x * n


def with_forward(model: nn.Module) -> nn.Module:
    model.forward = lambda x: x  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize(("what", "make", "other", "words"), DIFFERENT, ids=[d[0] for d in DIFFERENT])
def test_a_difference_is_named_with_its_values(
    what: str, make: Callable[[], nn.Module], other: Callable[[], nn.Module], words: list[str]
) -> None:
    with pytest.raises(NotFusible) as said:
        fuse([make(), other()])
    for word in words:
        assert word in str(said.value)
    with pytest.raises(NotFusible, match="member 2"):
        fuse([make(), make(), other()])


def test_models_that_differ_only_in_values_are_alike() -> None:
    for make in (net, tied, lambda: Scaled(act=closing(2)), lambda: Scaled(act=partial(max, 1)), one_order):
        assert len(fuse([make(), make()])) == 2


def test_tensors_in_plain_attributes_may_differ_and_each_member_keeps_its_own() -> None:
    def make() -> nn.Module:
        return Scaled(factor=torch.randn(2, dtype=torch.float64))

    array = assert_same_training(make, normal_tensor(4, 3))
    models = build_members(make)
    assert all(torch.equal(m.factor, a.factor) for m, a in zip(models, array.split(), strict=True))


def test_the_same_model_twice_is_refused() -> None:
    model = net()
    with pytest.raises(NotFusible, match="member 2 is the same object"):
        fuse([model, net(), model])


def test_an_empty_list_and_a_non_module_are_refused() -> None:
    with pytest.raises(NotFusible, match="no models were given, expected at least one"):
        fuse([])
    with pytest.raises(NotFusible, match="member 1 is int, expected"):
        fuse([net(), 3])  # type: ignore[list-item]


def test_one_model_is_an_array_of_one() -> None:
    models = build_members(net, 1)
    array = fuse(models)
    assert_same(select_member(array(normal_tensor(4, 3)), 0), models[0](normal_tensor(4, 3)), "output")


def test_models_are_left_as_they_are() -> None:
    models = build_members(net)
    before = copy.deepcopy([m.state_dict() for m in models])
    array = fuse(models)
    array(normal_tensor(4, 3)).sum().backward()
    with torch.no_grad():
        for p in array.parameters():
            p.zero_()
    assert_same([m.state_dict() for m in models], before, "weights")
    assert all(p.grad is None for m in models for p in m.parameters())


def test_weights_that_some_members_share_are_refused() -> None:
    models = [net() for _ in range(3)]
    models[2][0].weight = models[1][0].weight
    with pytest.raises(NotFusible, match=r"members 1 and 2 share 0\.weight"):
        fuse(models)


def test_trained_weights_that_all_members_share_are_refused() -> None:
    base = nn.Linear(3, 3)
    with pytest.raises(NotFusible, match=r"members 0 and 1 share 0\.weight") as said:
        fuse([nn.Sequential(base, nn.Linear(3, 2)) for _ in range(3)])
    assert "freeze" in str(said.value) or "freeze" in str(getattr(said.value, "hint", ""))


def test_a_shared_buffer_that_is_written_to_is_refused_and_left_as_it_was() -> None:
    base = nn.BatchNorm1d(3).requires_grad_(False).double()
    array = fuse(build_members(lambda: nn.Sequential(base, nn.Linear(3, 2))))
    with pytest.raises(NotFusible, match=r"0\.\w+ is shared by all members"):
        array(normal_tensor(4, 3))
    assert base.num_batches_tracked == 0
    assert not base.running_mean.any()


def adapted(seed: int = 0) -> nn.Module:
    torch.manual_seed(7)
    base = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).requires_grad_(False)
    torch.manual_seed(seed)
    return nn.Sequential(base, nn.Linear(3, 2)).double()


def test_frozen_parameters_of_equal_value_are_stored_once() -> None:
    models = [adapted(seed) for seed in range(3)]
    array = assert_same_training(adapted, normal_tensor(4, 3), models=models, input_grad=False)
    assert set(array.common) == {"0.0.weight", "0.0.bias", "0.1.weight", "0.1.bias"}
    assert array.body[0][1].running_mean.shape == (3, 3)  # a forward writes to buffers
    assert array.body[1].weight.shape == (3, 2, 3)


def test_an_array_does_not_share_a_base_of_equal_value_with_a_model() -> None:
    models = [adapted(seed) for seed in range(2)]
    array = fuse(models).to(torch.float32)
    assert array.common["0.0.weight"].dtype == torch.float32
    assert models[0][0][0].weight.dtype == torch.float64


def test_some_models_may_share_a_base_of_which_others_have_a_copy() -> None:
    models = [adapted(seed) for seed in range(3)]
    models[2][0][0].weight = models[1][0][0].weight
    assert "0.0.weight" in fuse(models).common


def test_trained_parameters_of_equal_value_are_stored_for_each_member() -> None:
    models = [copy.deepcopy(net()) for _ in range(2)]
    assert not fuse(models).common


def test_a_frozen_parameter_of_which_one_member_has_another_value_is_stored_for_each() -> None:
    models = [adapted(seed) for seed in range(3)]
    with torch.no_grad():
        models[2][0][0].weight[0, 0] += 1e-12
    array = fuse(models)
    assert "0.0.weight" not in array.common
    assert "0.0.bias" in array.common


def test_zero_biases_of_different_frozen_layers_are_no_shared_base() -> None:
    models = build_members(lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)))
    for model in models:
        nn.init.zeros_(model[0].bias)
        model[0].requires_grad_(False)
    assert not fuse(models).common


def test_a_model_that_trains_nothing_is_stored_for_each_member() -> None:
    assert not fuse([adapted().requires_grad_(False) for _ in range(2)]).common


def test_tied_weights_stay_tied() -> None:
    array = assert_same_training(tied, normal_tensor(4, 3))
    assert array.body[0].weight is array.body[1].weight
    member = array.member(1)
    assert member[0].weight is member[1].weight


def test_lazy_modules_must_have_seen_a_batch() -> None:
    with pytest.raises(NotFusible, match="weight has no shape yet") as said:
        fuse([nn.LazyLinear(3), nn.LazyLinear(3)])
    assert "batch" in str(said.value) or "batch" in str(getattr(said.value, "hint", ""))
    models = [nn.LazyLinear(3), nn.LazyLinear(3)]
    for model in models:
        model(torch.ones(2, 4))
    assert fuse(models)(torch.ones(2, 4)).shape == (2, 2, 3)


@pytest.mark.parametrize("keep", [lambda t: [t], lambda t: {"a": t}, lambda t: (1, [t])])
def test_parameters_in_plain_containers_are_refused(keep: Callable[[Any], Any]) -> None:
    with pytest.raises(NotFusible, match=r"Scaled\.held holds a parameter"):
        fuse([Scaled(held=keep(nn.Parameter(torch.ones(2)))) for _ in range(2)])
    with pytest.raises(NotFusible, match=r"Scaled\.held holds a module that is not registered"):
        fuse([Scaled(held=keep(nn.Linear(2, 2))) for _ in range(2)])


def test_a_registered_parameter_in_a_plain_list_is_refused_too() -> None:
    models = [Scaled() for _ in range(2)]
    for model in models:
        model.held = [model.fc.weight]
    with pytest.raises(NotFusible, match=r"Scaled\.held holds a parameter"):
        fuse(models)


def test_modules_without_weights_may_be_in_plain_lists() -> None:
    assert len(fuse([Scaled(acts=[nn.ReLU()]) for _ in range(2)])) == 2


def test_hooks_on_gradients_are_refused() -> None:
    models = [net() for _ in range(2)]
    models[0][0].weight.register_hook(lambda g: g * 2)
    with pytest.raises(NotFusible, match=r"0\.weight has hooks on its gradient"):
        fuse(models)
    models = [net() for _ in range(2)]
    models[1][0].weight.register_hook(lambda g: g * 2)
    with pytest.raises(NotFusible, match=r"0\.weight has hooks on its gradient"):
        fuse(models)


def test_an_array_may_have_more_members_than_samples() -> None:
    assert_same_training(net, normal_tensor(1, 3))
    assert_same_training(net, normal_tensor(B, 3))  # as many samples as members: dimensions are not confused
    assert_same_training(net, normal_tensor(B, B, 3), members=True)


def test_functions_that_capture_a_model_are_refused() -> None:
    def make() -> nn.Module:
        model = Scaled()
        model.forward = lambda x: model.fc(x)  # type: ignore[method-assign]
        return model

    with pytest.raises(NotFusible, match=r"Scaled\.forward is a function that captures a Scaled"):
        fuse([make(), make()])

    def hooked() -> nn.Module:
        model = Scaled()
        model.fc.register_forward_hook(lambda m, i, o: o + model.fc.bias)
        return model

    with pytest.raises(NotFusible, match=r"fc\._forward_hooks is a function that captures a Scaled"):
        fuse([hooked(), hooked()])


def test_members_with_different_hooks_are_refused() -> None:
    models = [Scaled(), Scaled()]
    models[1].fc.register_forward_hook(lambda m, i, o: o * 2)
    with pytest.raises(NotFusible, match="fc has different forward hooks"):
        fuse(models)

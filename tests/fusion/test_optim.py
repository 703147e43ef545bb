"""Optimisers of arrays, compared with separate PyTorch optimisers on separate parameters."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from wattline.errors import ConfigError  # noqa: E402
from wattline.fusion import optim  # noqa: E402

SHAPES = [(4, 3), (4,), (2, 3, 2), ()]
B = 4
CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": [0.1, 0.01, 0.0, 0.3]}),
    ("SGD", {"lr": 0.1, "momentum": [0.9, 0, 0.5, 0.99], "dampening": [0, 0.5, 0.2, 0.0]}),
    ("SGD", {"lr": [0.1, 0.01, 0.02, 0.3], "momentum": [0.9, 0.1, 0.5, 0.99], "nesterov": True}),
    ("SGD", {"momentum": 0.9, "weight_decay": [0, 0.1, 0, 0.01], "maximize": True}),
    ("Adam", {"lr": [0.1, 0.01, 0.0, 0.3]}),
    (
        "Adam",
        {"betas": [(0.9, 0.999), (0.5, 0.9), (0.0, 0.0), (0.99, 0.9999)], "eps": [1e-8, 1e-3, 1e-6, 1e-5]},
    ),
    ("Adam", {"lr": [0.1, 0.01, 0.02, 0.3], "weight_decay": [0, 0.1, 0, 0.01], "amsgrad": True}),
    ("AdamW", {"lr": [0.1, 0.01, 0.02, 0.3], "weight_decay": [0, 0.1, 0, 0.01]}),
    ("AdamW", {"lr": 0.05, "maximize": True, "amsgrad": True}),
    ("Adadelta", {"lr": [1, 0.5, 0.0, 2], "rho": [0.9, 0.5, 1.0, 0.0], "weight_decay": [0, 0.1, 0, 0.01]}),
    ("Adadelta", {"eps": [1e-6, 1e-3, 1e-4, 1e-8], "maximize": True}),
    ("RMSprop", {"lr": [0.1, 0.01, 0.0, 0.3], "alpha": [0.99, 0.9, 0.5, 0.0]}),
    ("RMSprop", {"momentum": [0.9, 0, 0.5, 0.99], "weight_decay": [0, 0.1, 0, 0.01]}),
    ("RMSprop", {"momentum": 0.9, "centered": True, "eps": [1e-8, 1e-3, 1e-6, 1e-5], "maximize": True}),
]
EACH = [
    ("SGD", {"momentum": [0.9, 0, 0.5, 0.99]}),
    *[(name, {}) for name in ("Adam", "AdamW", "Adadelta", "RMSprop")],
]


def own(hyper: dict[str, Any], member: int) -> dict[str, Any]:
    return {key: value[member] if isinstance(value, list) else value for key, value in hyper.items()}


class Both:
    """An array and the same members one by one."""

    def __init__(self, name: str, hyper: dict[str, Any], width: int = B, dtype: Any = None) -> None:
        self.random = torch.Generator().manual_seed(1)
        self.dtype = dtype or torch.float64
        self.name = name
        self.alone = [self.fresh() for _ in range(width)]
        self.params = [
            nn.Parameter(torch.stack([p.detach() for p in row])) for row in zip(*self.alone, strict=True)
        ]
        self.array = getattr(optim, name)(self.params, **hyper)
        self.singles = [self.single(self.alone[i], own(hyper, i)) for i in range(width)]

    def fresh(self) -> list[Any]:
        return [nn.Parameter(torch.randn(shape, dtype=self.dtype, generator=self.random)) for shape in SHAPES]

    def single(self, params: list[Any], hyper: dict[str, Any]) -> Any:
        return getattr(torch.optim, self.name)(params, **hyper)

    def grads(self, without: tuple[int, ...] = ()) -> None:
        for place, param in enumerate(self.params):
            grad = torch.randn(param.shape, dtype=self.dtype, generator=self.random)
            param.grad = None if place in without else grad
            for member, row in enumerate(self.alone):
                row[place].grad = None if place in without else grad[member].clone()

    def step(self, count: int = 1, without: tuple[int, ...] = ()) -> None:
        for _ in range(count):
            self.grads(without)
            self.array.step()
            for single in self.singles:
                single.step()

    def agree(self, atol: float = 1e-10, rtol: float = 1e-10) -> None:
        for place, param in enumerate(self.params):
            for member, row in enumerate(self.alone):
                torch.testing.assert_close(param[member], row[place], atol=atol, rtol=rtol)

    def exchange(self, alone: list[list[Any]]) -> dict[Any, Any]:
        self.alone = alone
        old = self.params
        self.params = [
            nn.Parameter(torch.stack([p.detach() for p in row])) for row in zip(*alone, strict=True)
        ]
        return dict(zip(old, self.params, strict=True))


@pytest.mark.parametrize(("name", "hyper"), CASES)
def test_every_member_moves_as_if_it_were_alone(name: str, hyper: dict[str, Any]) -> None:
    both = Both(name, hyper)
    both.step(22)
    both.agree()


@pytest.mark.parametrize(("name", "hyper"), CASES)
def test_every_member_moves_as_if_alone_in_single_precision(name: str, hyper: dict[str, Any]) -> None:
    both = Both(name, hyper, dtype=torch.float32)
    both.step(20)
    both.agree(atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize(("name", "hyper"), EACH)
def test_16_bit_parameters_are_computed_in_32_bits(name: str, hyper: dict[str, Any]) -> None:
    both = Both(name, hyper, dtype=torch.bfloat16)
    both.step(5)
    both.agree(atol=0.1, rtol=0.05)
    assert all(tensor.dtype in (torch.bfloat16, torch.float64) for tensor in both.array.state_tensors())


@settings(deadline=None, max_examples=25)
@given(data=st.data(), name=st.sampled_from(["SGD", "Adam", "AdamW", "Adadelta", "RMSprop"]))
def test_every_member_moves_as_if_alone_for_random_hyper_parameters(data: Any, name: str) -> None:
    kind = getattr(optim, name)
    spans = {"lr": 0.5, "momentum": 0.95, "dampening": 0.9, "weight_decay": 0.3, "rho": 1.0, "alpha": 0.99}
    hyper: dict[str, Any] = {}
    for key in kind.keys:
        one = st.one_of(st.just(0.0), st.floats(0.01, spans.get(key, 0.5)))
        if key == "eps":
            one = st.floats(1e-8, 1e-2)
        if key == "alpha":
            one = st.floats(
                0.2, 0.99
            )  # a centred variance without memory is 0, or the root of a rounding error
        if key == "betas":
            one = st.tuples(st.floats(0, 0.99), st.floats(0, 0.999))
        hyper[key] = data.draw(st.one_of(one, st.lists(one, min_size=B, max_size=B)), key)
    for switch in set(kind.switches) - {"nesterov"}:
        hyper[switch] = data.draw(st.booleans(), switch)
    both = Both(name, hyper)
    both.step(6)
    both.agree(atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("name", "hyper"), CASES)
def test_a_traced_update_follows_hyper_parameters_that_change(name: str, hyper: dict[str, Any]) -> None:
    both = Both(name, hyper)
    array = both.array
    array.init_state()
    both.grads()
    update = array.build_update()

    def step(params: Any, grads: Any, tensors: Any, values: Any) -> Any:
        update(params, grads, tensors, values)
        return params

    graph = make_fx(step, tracing_mode="fake")(
        [param.detach() for param in both.params],
        [p.grad for p in both.params],
        array.state_tensors(),
        array.hyper_tensors(),
    )
    for rate in (0.02, 0.3, 0.001):
        array.param_groups[0]["lr"] *= rate
        for single in both.singles:
            single.param_groups[0]["lr"] *= rate
        both.grads()
        graph(
            [p.detach() for p in both.params],
            [p.grad for p in both.params],
            array.state_tensors(),
            array.hyper_tensors(),
        )
        for single in both.singles:
            single.step()
        both.agree()
        assert array.build_update() == update


@pytest.mark.slow
@pytest.mark.parametrize(("name", "hyper"), EACH)
def test_a_compiled_update_is_not_compiled_again_for_another_rate(name: str, hyper: dict[str, Any]) -> None:
    both = Both(name, hyper)
    array = both.array
    array.init_state()
    update, compiled = array.build_update(), []

    def count(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    step = torch.compile(lambda *given: update(*given), backend=count, fullgraph=True)
    for rate in (1.0, 0.5, 0.1):
        array.param_groups[0]["lr"] *= rate
        for single in both.singles:
            single.param_groups[0]["lr"] *= rate
        both.grads()
        step(
            [p.detach() for p in both.params],
            [p.grad for p in both.params],
            array.state_tensors(),
            array.hyper_tensors(),
        )
        for single in both.singles:
            single.step()
    both.agree()
    assert len(compiled) == 1


def test_another_update_is_given_when_the_trace_no_longer_holds() -> None:
    both = Both("SGD", {"momentum": 0.9})
    both.array.init_state()
    before = both.array.build_update()
    both.array.param_groups[0]["lr"] = 0.3
    both.array.hyper_tensors()
    assert both.array.build_update() == before
    assert hash(both.array.build_update()) == hash(before)
    both.array.param_groups[0]["momentum"][1] = 0
    assert both.array.build_update() != before


@pytest.mark.parametrize(("name", "hyper"), EACH)
def test_inactive_members_are_left_as_they_are(name: str, hyper: dict[str, Any]) -> None:
    both = Both(name, hyper)
    both.step(2)
    for active in ([True, False, True, True], [False, False, True, False], [True] * B):
        both.grads()
        for param in both.params:
            param.grad[~torch.tensor(active)] = torch.nan
        both.array.step(active=torch.tensor(active))
        for single, moves in zip(both.singles, active, strict=True):
            if moves:
                single.step()
        both.agree()
    both.step(2)
    both.agree()


@pytest.mark.parametrize(("name", "hyper"), EACH)
def test_members_may_leave_and_others_join(name: str, hyper: dict[str, Any]) -> None:
    both = Both(name, {"lr": [0.1, 0.01, 0.02, 0.3], **hyper})
    both.step(3)
    mapping = both.exchange([both.alone[2], both.alone[0]])
    both.singles = [both.singles[2], both.singles[0]]
    both.array.keep([2, 0], mapping)
    both.step(3)
    both.agree()
    new = [both.fresh(), both.fresh()]
    more = {"momentum": [0.9, 0.0], "dampening": 0.5} if name == "SGD" else {}
    mapping = both.exchange([*both.alone, *new])
    both.array.extend(2, mapping, lr=[0.05, 0.07], **more)
    both.singles += [both.single(row, {"lr": [0.05, 0.07][i], **own(more, i)}) for i, row in enumerate(new)]
    both.step(4)
    both.agree()
    assert both.array.width == 4
    assert both.array.param_groups[0]["lr"].tolist() == [0.02, 0.1, 0.05, 0.07]
    if name != "SGD":
        assert both.array.state[both.params[0]]["step"].tolist() == [10, 10, 4, 4]


def test_members_that_join_an_array_of_different_rates_need_their_own() -> None:
    both = Both("Adam", {"lr": [0.1, 0.01, 0.02, 0.3]})
    mapping = both.exchange([*both.alone, both.fresh()])
    with pytest.raises(ConfigError, match="lr differs between members"):
        both.array.extend(1, mapping)
    with pytest.raises(ConfigError, match="Adam has no momentum"):
        both.array.extend(1, mapping, lr=0.1, momentum=0.9)
    both.array.extend(1, mapping, lr=0.5)
    assert both.array.param_groups[0]["betas"][0].tolist() == [0.9] * 5


def test_kept_members_must_exist_and_have_parameters() -> None:
    both = Both("Adam", {})
    with pytest.raises(ConfigError, match="no member 4, expected 0 to 3"):
        both.array.keep([4], {})
    with pytest.raises(
        ConfigError, match=r"a parameter of the shape \[4, 4, 3\] has no successor of 1 members"
    ):
        both.array.keep([0], {})


@pytest.mark.parametrize(("name", "hyper"), CASES)
def test_a_member_continues_in_an_ordinary_optimiser_and_back(name: str, hyper: dict[str, Any]) -> None:
    both = Both(name, hyper)
    both.step(3)
    for member, single in enumerate(both.singles):
        taken = both.single(both.alone[member], {})
        taken.load_state_dict(both.array.member_state_dict(member))
        assert taken.state_dict()["state"].keys() == single.state_dict()["state"].keys()
        assert taken.param_groups[0].keys() == single.param_groups[0].keys()
        both.singles[member] = taken
    for single in both.singles:
        single.param_groups[0]["lr"] *= 0.5
    both.array.param_groups[0]["lr"] *= 0.5
    both.step(3)
    both.agree()
    switches = {key: value for key, value in hyper.items() if isinstance(value, bool)}
    both.array = getattr(optim, name)(
        both.params, **switches, **({"momentum": 0.1} if "nesterov" in hyper else {})
    )
    for member, single in enumerate(both.singles):
        both.array.load_member(member, single.state_dict())
    both.step(3)
    both.agree()


def test_a_member_of_another_kind_is_refused() -> None:
    both = Both("Adam", {})
    saved = torch.optim.Adam(both.fresh(), amsgrad=True).state_dict()
    with pytest.raises(ConfigError, match="the saved state has amsgrad=True, the array False"):
        both.array.load_member(0, saved)
    with pytest.raises(ConfigError, match=r"the saved state has groups of \[2\] parameters, expected \[4\]"):
        both.array.load_member(0, torch.optim.Adam(both.fresh()[:2]).state_dict())
    with pytest.raises(ConfigError, match="no member 9, expected 0 to 3"):
        both.array.member_state_dict(9)


@pytest.mark.parametrize(("name", "hyper"), EACH)
def test_a_saved_array_continues_exactly(name: str, hyper: dict[str, Any]) -> None:
    both = Both(name, {"lr": [0.1, 0.01, 0.02, 0.3], **hyper})
    both.step(3)
    file = io.BytesIO()
    torch.save(both.array.state_dict(), file)
    file.seek(0)
    fresh = getattr(optim, name)(both.params, lr=0.7, **({"momentum": 0.5} if name == "SGD" else {}))
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert len(fresh.state_tensors()) == len(both.array.state_tensors())
    both.array = fresh
    both.step(3)
    both.agree()


def test_a_loaded_state_is_a_copy_and_has_as_many_members() -> None:
    both = Both("Adam", {})
    both.step()
    other = optim.Adam(both.params)
    other.load_state_dict(both.array.state_dict())
    assert not {id(t) for t in other.state_tensors()} & {id(t) for t in both.array.state_tensors()}
    narrow = optim.Adam([nn.Parameter(param[:2].detach().clone()) for param in both.params])
    with pytest.raises(ConfigError, match="the saved state has 4 members, this optimiser has 2"):
        narrow.load_state_dict(both.array.state_dict())


def test_a_copied_optimiser_continues_independently() -> None:
    both = Both("Adam", {"lr": [0.1, 0.01, 0.02, 0.3]})
    both.step()
    other = copy.deepcopy(both.array)
    assert other.width == B
    assert other.hyper_tensors()[0]["lr"].tolist() == [0.1, 0.01, 0.02, 0.3]


def test_groups_have_hyper_parameters_of_their_own() -> None:
    both = Both("Adam", {})
    first, rest = both.params[:1], both.params[1:]
    both.array = optim.Adam(
        [{"params": first, "lr": [0.1, 0.2, 0.3, 0.4]}, {"params": rest, "eps": 1e-3}], lr=0.05
    )
    both.singles = [
        torch.optim.Adam(
            [{"params": row[:1], "lr": 0.1 * (i + 1)}, {"params": row[1:], "eps": 1e-3}], lr=0.05
        )
        for i, row in enumerate(both.alone)
    ]
    both.step(5)
    both.agree()
    loaded = torch.optim.Adam([{"params": both.alone[1][:1]}, {"params": both.alone[1][1:]}])
    loaded.load_state_dict(both.array.member_state_dict(1))
    both.singles[1] = loaded
    both.step(2)
    both.agree()


@pytest.mark.parametrize(("name", "hyper"), EACH)
def test_a_parameter_without_gradient_does_not_count_the_step(name: str, hyper: dict[str, Any]) -> None:
    both = Both(name, hyper)
    both.step(2, without=(1,))
    both.step(2)
    both.step(1, without=(0, 1))
    both.step(2)
    both.agree()


def test_a_frozen_parameter_is_left_alone_but_counted() -> None:
    both = Both("Adam", {})
    shared = nn.Parameter(torch.zeros(7), requires_grad=False)
    both.array = optim.Adam([shared, *both.params])
    both.step(2)
    both.agree()
    assert both.array.member_state_dict(0)["state"].keys() == {1, 2, 3, 4}
    assert both.array.member_state_dict(0)["param_groups"][0]["params"] == [0, 1, 2, 3, 4]


def test_momentum_may_come_and_go() -> None:
    both = Both("SGD", {"dampening": 0.3})
    for momentum in ([0.0] * B, [0.9, 0, 0.5, 0], [0, 0.9, 0.5, 0.1], [0.9] * B):
        both.array.param_groups[0]["momentum"] = momentum
        for member, single in enumerate(both.singles):
            single.param_groups[0]["momentum"] = momentum[member]
        both.step(3)
        both.agree()


def test_an_array_can_be_passed_as_parameters() -> None:
    module = nn.Linear(3, 5, dtype=torch.float64)  # its parameters have the shapes of five members
    assert optim.SGD(module).width == 5
    with pytest.raises(ConfigError, match="got no parameters"):
        optim.SGD([])


def test_a_closure_gives_its_loss() -> None:
    both = Both("SGD", {})
    both.grads()
    assert both.array.step(lambda: 3.0) == 3.0


@pytest.mark.parametrize(
    ("hyper", "message"),
    [
        ({"lr": [0.1, 0.1, 0.1, -0.1]}, "lr of member 3 is -0.1, expected at least 0"),
        ({"lr": -1}, "lr is -1.0, expected at least 0"),
        ({"lr": [0.1, 0.2, 0.3]}, r"lr has 3 values, expected one or 4 \(one per member\)"),
        ({"lr": float("nan")}, "lr is nan"),
        (
            {"betas": ([0.9, 0.9, 1.0, 0.9], 0.99)},
            r"betas\[0\] of member 2 is 1.0, expected at least 0 and below 1",
        ),
        ({"betas": [(0.9, 0.99)] * 3}, "betas has 3 pairs, expected one or 4"),
        ({"betas": (0.9, 0.99, 0.999)}, "betas has 3 values, expected a pair"),
        ({"eps": torch.tensor([1.0, 1.0, -1.0, 1.0])}, "eps of member 2"),
    ],
)
def test_an_invalid_hyper_parameter_is_refused_with_the_member(hyper: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Both("Adam", {}).array.__class__([nn.Parameter(torch.zeros(4, 2))], **hyper)


def test_nesterov_needs_momentum_of_every_member() -> None:
    with pytest.raises(ConfigError, match=r"but member 1 has momentum 0.0 and dampening 0.0"):
        optim.SGD([nn.Parameter(torch.zeros(2, 2))], momentum=[0.9, 0], nesterov=True)


def test_values_written_into_groups_are_checked_too() -> None:
    array = optim.Adam([nn.Parameter(torch.zeros(2, 3))])
    array.param_groups[0]["lr"] = [0.1, -0.2]
    with pytest.raises(ConfigError, match=r"lr of member 1 is -0\.2"):
        array.hyper_tensors()


def test_pairs_of_two_members_are_read_by_their_brackets() -> None:
    params = [nn.Parameter(torch.zeros(2, 3))]
    members = optim.Adam(params, betas=[(0.9, 0.99), (0.8, 0.98)]).hyper_tensors()[0]
    assert members["beta1"].tolist() == [0.9, 0.8]
    pair = optim.Adam(params, betas=((0.9, 0.8), (0.99, 0.98))).hyper_tensors()[0]
    assert pair["beta1"].tolist() == [0.9, 0.8]


def test_widths_that_differ_are_refused_with_their_shapes() -> None:
    params = [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(4, 3))]
    with pytest.raises(ConfigError, match=r"got the shapes \[2, 3\], \[4, 3\]"):
        optim.Adam(params)
    array = optim.Adam(params[:1])
    with pytest.raises(ConfigError, match="the new group has 4 members, the others have 2"):
        array.add_param_group({"params": params[1:]})
    assert len(array.param_groups) == 1
    with pytest.raises(ConfigError, match="no parameter requires gradients"):
        optim.Adam([nn.Parameter(torch.zeros(2), requires_grad=False)])
    with pytest.raises(ConfigError, match="complex"):
        optim.Adam([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])


def test_sparse_gradients_are_refused() -> None:
    param = nn.Parameter(torch.zeros(2, 3))
    param.grad = torch.zeros(2, 3).to_sparse()
    with pytest.raises(ConfigError, match="sparse"):
        optim.SGD([param]).step()

"""Optimisers of arrays, compared with separate PyTorch optimisers on separate parameters."""

from __future__ import annotations

import copy
import inspect
import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from support.optimiser_pairs import CASES, EACH, NAMES, B, Both, select_own  # noqa: E402
from wattline.errors import ConfigError  # noqa: E402
from wattline.fusion import fuse, optim  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def double_precision() -> Any:
    """Compute in float64 where torch.optim rounds, to compare the formulas.

    NAdam's product of momenta has the default type; Muon converts to bfloat16 for its iterations.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
        yield
    torch.set_default_dtype(default)


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
    hyper = {"lr": 30.0 if name == "Adadelta" else 0.05, **hyper}  # Adadelta starts with tiny steps
    both = Both(name, hyper, dtype=torch.bfloat16)
    both.alone = [[nn.Parameter(param.detach().float()) for param in row] for row in both.alone]
    both.singles = [both.single(row, select_own(hyper, member)) for member, row in enumerate(both.alone)]
    before = [param.detach().clone() for param in both.params]
    for _ in range(5):
        both.step()
        for single in both.singles:  # the array keeps its results in 16 bits from step to step
            round_state(single)
    for place, param in enumerate(both.params):
        for member, row in enumerate(both.alone):
            # At most one rounding to 8 bits differs.
            torch.testing.assert_close(param[member].float(), row[place], atol=1e-3, rtol=2**-7)
        assert (param - before[place]).abs().max() > 0.05
    assert all(tensor.dtype in (torch.bfloat16, torch.float64) for tensor in both.array.state_tensors())


def round_state(single: Any) -> None:
    for param in single.param_groups[0]["params"]:
        for name, tensor in {"param": param.data, **single.state[param]}.items():
            if name not in ("step", "mu_product"):
                tensor.copy_(tensor.to(torch.bfloat16))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=8)
@given(data=st.data())
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
    for switch in set(kind.switches) & {"amsgrad", "centered", "decoupled_weight_decay", "maximize"}:
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


@pytest.mark.parametrize("name", NAMES)
def test_the_defaults_are_those_of_the_ordinary_optimiser(name: str) -> None:
    both = Both(name, {})
    ordinary = both.singles[0].defaults
    saved = both.array.member_state_dict(0)["param_groups"][0]
    assert {key: saved[key] for key in ordinary} == ordinary
    positions = [
        list(inspect.signature(kind).parameters) for kind in (type(both.array), type(both.singles[0]))
    ]
    ours, theirs = ([key for key in names if key in both.array.defaults] for names in positions)
    assert ours == theirs


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
    both.singles += [
        both.single(row, {"lr": [0.05, 0.07][i], **select_own(more, i)}) for i, row in enumerate(new)
    ]
    both.step(4)
    both.agree()
    assert both.array.width == 4
    assert both.array.param_groups[0]["lr"].tolist() == [0.02, 0.1, 0.05, 0.07]
    if name != "SGD":
        assert both.array.state[both.params[0]]["step"].tolist() == [10, 10, 4, 4]


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
    switches = {key: value for key, value in hyper.items() if key in both.array.switches}
    both.array = getattr(optim, name)(
        both.params, **switches, **({"momentum": 0.1} if "nesterov" in hyper else {})
    )
    for member, single in enumerate(both.singles):
        both.array.load_member(member, single.state_dict())
    both.step(3)
    both.agree()


@pytest.mark.parametrize(("name", "hyper"), EACH)
def test_a_loaded_member_may_have_parameters_without_steps(name: str, hyper: dict[str, Any]) -> None:
    both, other = Both(name, hyper), Both(name, hyper)
    both.step(3)
    other.step(2, without=(1,))
    both.array.load_member(0, other.singles[0].state_dict())
    both.singles[0].load_state_dict(other.singles[0].state_dict())
    both.step(3)
    both.agree()


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
    ours, theirs = ({t.data_ptr() for t in o.state_tensors()} for o in (other, both.array))
    assert ours
    assert not ours & theirs
    narrow = optim.Adam([nn.Parameter(param[:2].detach().clone()) for param in both.params])
    with pytest.raises(ConfigError, match="the saved state has 4 members, this optimiser has 2"):
        narrow.load_state_dict(both.array.state_dict())


def test_a_copied_optimiser_continues_independently() -> None:
    both = Both("Adam", {"lr": [0.1, 0.01, 0.02, 0.3]})
    both.step()
    other, params = copy.deepcopy((both.array, both.params))
    both.step()
    assert all(not torch.equal(param, new) for param, new in zip(params, both.params, strict=True))
    for param, new in zip(params, both.params, strict=True):
        param.grad = new.grad
    other.step()
    torch.testing.assert_close(params, both.params, atol=0, rtol=0)
    both.agree()


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


@pytest.mark.parametrize(("name", "hyper"), EACH)
def test_a_frozen_parameter_is_left_alone_but_counted(name: str, hyper: dict[str, Any]) -> None:
    both = Both(name, hyper)
    shared = nn.Parameter(torch.zeros(7), requires_grad=False)
    both.array = getattr(optim, name)([shared, *both.params], **hyper)
    both.step(2)
    both.agree()
    assert shared.eq(0).all()
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
    array = fuse([nn.Linear(3, 5, dtype=torch.float64) for _ in range(2)])
    assert optim.SGD(array).width == 2
    assert optim.SGD(nn.ModuleDict({"part": array})).width == 2
    with pytest.raises(ConfigError, match="got a Linear, an ordinary model, expected an array"):
        optim.SGD(nn.Linear(3, 5))  # its parameters have the shapes of five members
    with pytest.raises(ConfigError, match="got no parameters"):
        optim.SGD([])


def test_a_closure_gives_its_loss() -> None:
    both = Both("SGD", {})
    both.grads()
    assert both.array.step(lambda: 3.0) == 3.0


def test_sparse_gradients_are_refused() -> None:
    param = nn.Parameter(torch.zeros(2, 3))
    param.grad = torch.zeros(2, 3).to_sparse()
    with pytest.raises(ConfigError, match="sparse"):
        optim.SGD([param]).step()

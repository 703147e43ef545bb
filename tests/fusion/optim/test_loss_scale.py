"""Loss scaling, compared with one torch.amp.GradScaler for each member."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from support.optimiser_pairs import NAMES, ordinary_class  # noqa: E402
from wattline.errors import ConfigError  # noqa: E402
from wattline.fusion import optim  # noqa: E402
from wattline.fusion.optim import loss_scale  # noqa: E402

B = 3


class Both:
    """An array and its scaler; the same members with scalers of their own."""

    def __init__(self, name: str = "Adam", **numbers: Any) -> None:
        self.random = torch.Generator().manual_seed(0)
        self.param = nn.Parameter(torch.randn(B, 4, 2, generator=self.random))
        self.alone = [nn.Parameter(row.clone()) for row in self.param.detach()]
        self.array = getattr(optim, name)([self.param], lr=0.1)
        self.scaler = loss_scale.Scaler(B, **numbers)
        self.singles = [ordinary_class(name)([param], lr=0.1) for param in self.alone]
        self.scalers = [
            torch.amp.GradScaler("cpu", **{k: v[i] if isinstance(v, list) else v for k, v in numbers.items()})
            for i in range(B)
        ]

    def step(self, overflows: list[bool], bad: float = float("inf")) -> None:
        target = torch.randn(B, 4, 2, generator=self.random)
        self.array.zero_grad()
        losses = (self.param * target).sum((1, 2))
        self.scaler.scale(losses).sum().backward()
        assert self.param.grad is not None
        for member, overflow in enumerate(overflows):
            if overflow:
                self.param.grad[member, 2] = bad
        self.scaler.step(self.array)
        self.scaler.update()
        for member, (single, scaler) in enumerate(zip(self.singles, self.scalers, strict=True)):
            single.zero_grad()
            scaler.scale((self.alone[member] * target[member]).sum()).backward()
            if overflows[member]:
                self.alone[member].grad[2] = bad  # type: ignore[index]
            scaler.step(single)
            scaler.update()

    def agree(self) -> None:
        for member, scaler in enumerate(self.scalers):
            assert self.scaler.scales[member].item() == scaler.get_scale()
            assert self.scaler.streaks[member].item() == scaler._get_growth_tracker()
            torch.testing.assert_close(self.param[member], self.alone[member], rtol=1e-6, atol=1e-6)
            state = self.singles[member].state_dict()["state"]
            assert self.array.member_state_dict(member)["state"].keys() == state.keys()
            for name, value in state.get(0, {}).items():
                torch.testing.assert_close(self.array.member_state_dict(member)["state"][0][name], value)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=5)
@given(
    overflows=st.lists(st.lists(st.booleans(), min_size=B, max_size=B), min_size=1, max_size=8),
    bad=st.sampled_from([float("inf"), float("-inf"), float("nan")]),
    interval=st.sampled_from([1, 2, 3, [1, 2, 4]]),
)
def test_every_member_is_scaled_and_skipped_as_if_alone(
    name: str, overflows: Any, bad: float, interval: Any
) -> None:
    both = Both(
        name, init_scale=[2.0**10, 2.0**16, 3.0], growth_interval=interval, backoff_factor=[0.5, 0.25, 0.5]
    )
    for row in overflows:
        both.step(row, bad)
    both.agree()


def test_a_scale_never_grows_to_infinity() -> None:
    both = Both(init_scale=2.0**126, growth_interval=1)
    for _ in range(4):
        both.step([False] * B)
    both.agree()
    assert both.scaler.scales.isfinite().all()
    assert both.scaler.scales.max() == 2.0**127


def test_gradients_can_be_inspected_between_unscaling_and_stepping() -> None:
    both = Both(init_scale=8.0)
    both.param.grad = torch.full((B, 4, 2), 16.0)
    assert both.scaler.unscale_(both.array).tolist() == [False] * B
    assert both.param.grad.eq(2).all()
    with pytest.raises(ConfigError, match="have been unscaled"):
        both.scaler.unscale_(both.array)
    both.scaler.step(both.array)
    assert both.param.grad.eq(2).all()
    with pytest.raises(ConfigError, match=r"step\(\) has been called"):
        both.scaler.step(both.array)
    both.scaler.update()
    with pytest.raises(ConfigError, match="no gradients have been unscaled"):
        both.scaler.update()
    both.array.zero_grad()
    with pytest.raises(ConfigError, match="no parameter has a gradient to unscale"):
        both.scaler.step(both.array)


def test_members_leave_and_join() -> None:
    scaler = loss_scale.Scaler(3, init_scale=[2, 4, 8], growth_interval=5)
    scaler.keep([2, 0])
    assert scaler.scales.tolist() == [8, 2]
    with pytest.raises(ConfigError, match="init_scale differs between members"):
        scaler.extend(1)
    scaler.extend(2, init_scale=16)
    assert scaler.scales.tolist() == [8, 2, 16, 16]
    assert scaler.numbers["growth_interval"].tolist() == [5] * 4


def test_a_saved_scaler_continues() -> None:
    both = Both(growth_interval=2)
    both.step([True, False, False])
    other = loss_scale.Scaler(B, init_scale=1.0)
    other.load_state_dict(both.scaler.state_dict())
    both.scaler = other
    both.step([False, False, True])
    both.agree()
    with pytest.raises(ConfigError, match="the saved state has 3 members, this scaler has 2"):
        loss_scale.Scaler(2).load_state_dict(other.state_dict())


def test_ordinary_optimisers_and_foreign_states_are_refused() -> None:
    scaler = loss_scale.Scaler(3)
    optimiser = torch.optim.NAdam([nn.Parameter(torch.zeros(3))])
    for call in (scaler.step, scaler.unscale_):
        with pytest.raises(ConfigError, match=r"got torch\.optim\.nadam\.NAdam, expected") as caught:
            call(optimiser)  # type: ignore[arg-type]
        assert "fusion.NAdam(array" in caught.value.hint
    with pytest.raises(ConfigError, match="the saved state has no scales, expected scales, streaks"):
        scaler.load_state_dict(torch.amp.GradScaler("cpu").state_dict())


def test_losses_are_one_per_member() -> None:
    with pytest.raises(ConfigError, match=r"expected one loss for each of 3 members, got \[2\]"):
        loss_scale.Scaler(3).scale(torch.ones(2))
    with pytest.raises(
        ConfigError, match=r"backoff_factor of member 1 is 1\.0, expected at least 0 and below 1"
    ):
        loss_scale.Scaler(2, backoff_factor=[0.5, 1.0])


def test_the_whole_scaled_step_can_be_traced() -> None:
    both, other = Both(growth_interval=2), Both(growth_interval=2)
    both.array.init_state()
    update, numbers = both.array.build_update(), both.scaler.numbers

    def step(params: Any, grads: Any, tensors: Any, hyper: Any, scales: Any, streaks: Any) -> Any:
        found = loss_scale.unscale(grads, scales)
        update(params, grads, tensors, hyper, ~found)
        loss_scale.adjust_scales(scales, streaks, found, numbers)
        return found

    def inputs(of: Both) -> Any:
        return (
            [of.param.detach()],
            [grad.clone()],
            of.array.state_tensors(),
            of.array.hyper_tensors(),
            *scales(of),
        )

    def scales(of: Both) -> Any:
        return of.scaler.scales, of.scaler.streaks

    grad = torch.ones(B, 4, 2)
    graph = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs(both))
    for bad in (None, 1, 0):
        grad = torch.randn(B, 4, 2, generator=both.random)
        if bad is not None:
            grad[bad, 1] = torch.inf
        found = graph(*inputs(both))
        assert found.tolist() == [member == bad for member in range(B)]
        other.param.grad = grad.clone()
        other.scaler.step(other.array)
        other.scaler.update()
        torch.testing.assert_close(both.param, other.param)
        torch.testing.assert_close(scales(both), scales(other))

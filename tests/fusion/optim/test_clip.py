"""Gradient clipping, compared with PyTorch's own on every member."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from wattline.errors import ConfigError  # noqa: E402
from wattline.fusion.optim import clip  # noqa: E402

SHAPES = [(3, 4, 3), (3, 4), (3,)]


def stacked(seed: int = 0) -> list[Any]:
    random = torch.Generator().manual_seed(seed)
    params = [nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in SHAPES]
    for param in params:
        param.grad = torch.randn(param.shape, dtype=torch.float64, generator=random)
    return params


def separate(params: list[Any]) -> list[list[Any]]:
    members = []
    for member in range(3):
        rows = [nn.Parameter(param[member].detach().clone()) for param in params]
        for row, param in zip(rows, params, strict=True):
            row.grad = param.grad[member].clone()
        members.append(rows)
    return members


def same_gradients(params: list[Any], members: list[list[Any]]) -> None:
    for place, param in enumerate(params):
        for member, rows in enumerate(members):
            torch.testing.assert_close(param.grad[member], rows[place].grad, rtol=1e-12, atol=1e-12)


@settings(deadline=None, max_examples=20)
@given(
    bounds=st.one_of(st.floats(0.1, 10), st.lists(st.floats(0.1, 10), min_size=3, max_size=3)),
    kind=st.sampled_from([1.0, 2.0, 3.0, float("inf")]),
    seed=st.integers(0, 99),
)
def test_every_member_is_clipped_by_its_own_norm(bounds: Any, kind: float, seed: int) -> None:
    params = stacked(seed)
    members = separate(params)
    norms = clip.clip_grad_norm_(params, bounds, kind)
    for member, rows in enumerate(members):
        bound = bounds[member] if isinstance(bounds, list) else bounds
        expected = torch.nn.utils.clip_grad_norm_(rows, bound, kind)
        torch.testing.assert_close(norms[member], expected, rtol=1e-12, atol=1e-12)
    same_gradients(params, members)


def test_one_overflowing_member_does_not_touch_the_others() -> None:
    params = stacked()
    params[0].grad[1, 0, 0] = torch.inf
    members = separate(params)
    clip.clip_grad_norm_(params, 1.0)
    for rows in members:
        torch.nn.utils.clip_grad_norm_(rows, 1.0)
    for member in (0, 2):
        torch.testing.assert_close(params[1].grad[member], members[member][1].grad)
    assert params[1].grad[1].eq(0).all()


def test_values_are_cut_off_for_each_member() -> None:
    params = stacked()
    members = separate(params)
    clip.clip_grad_value_(params, [0.1, 0.5, 2.0])
    for rows, bound in zip(members, [0.1, 0.5, 2.0], strict=True):
        torch.nn.utils.clip_grad_value_(rows, bound)
    same_gradients(params, members)


def test_a_traced_clipping_follows_its_bound() -> None:
    def clipped(grads: Any, bound: Any) -> Any:
        norms = clip.clip_norm(grads, bound)
        clip.clip_by_value(grads, bound / 4)
        return norms

    grads = [param.grad for param in stacked()]
    graph = make_fx(clipped, tracing_mode="fake")(grads, torch.ones(3, dtype=torch.float64))
    bound = torch.tensor([0.5, 1.0, 100.0], dtype=torch.float64)
    traced, plain = [[param.grad for param in stacked(5)] for _ in range(2)]
    torch.testing.assert_close(graph(traced, bound), clipped(plain, bound))
    torch.testing.assert_close(traced, plain)


def test_halves_keep_their_type() -> None:
    param = nn.Parameter(torch.zeros(2, 4, dtype=torch.float16))
    param.grad = torch.ones(2, 4, dtype=torch.float16)
    assert clip.clip_grad_norm_(param, 1.0).tolist() == [2, 2]
    assert param.grad.dtype == torch.float16
    assert param.grad.eq(0.5).all()


def test_without_gradients_there_is_nothing_to_clip() -> None:
    module = nn.Linear(2, 3)
    assert clip.clip_grad_norm_(module, 1.0).tolist() == [0, 0, 0]
    clip.clip_grad_value_(module, 1.0)


def test_invalid_clipping_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"max_norm has 2 values, expected one or 3 \(one per member\)"):
        clip.clip_grad_norm_(stacked(), [1.0, 2.0])
    with pytest.raises(ConfigError, match=r"got the shapes: \[3, 4, 3\], \[2\]"):
        clip.clip_grad_norm_([stacked()[0], nn.Parameter(torch.zeros(2))], 1.0)

"""Recurrent layers of all members: one product for the inputs of all time steps, then step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from wattline.fusion.lowering.rules import (
    BatchedTensor,
    RuleNotApplicable,
    Ways,
    expand_to_members,
    lowering_rule,
    rewrite_rule,
)
from wattline.fusion.ops.dropout import drop

_DESCRIPTION = "batched matrix products: one for the inputs of all time steps, then one per time step"
Cell = Callable[[Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


@lowering_rule(torch.lstm, description=_DESCRIPTION)
def lstm(size: int, ways: Ways, input: Any, hx: Any, *rest: Any) -> tuple[BatchedTensor, ...]:
    """Compute [B, T, N, F]; the state is output and cell state."""
    out, states = _layers(_lstm, size, input, hx, *rest)
    return out, *states


@lowering_rule(torch.gru, description=_DESCRIPTION)
def gru(size: int, ways: Ways, input: Any, hx: Any, *rest: Any) -> tuple[BatchedTensor, ...]:
    """Compute [B, T, N, F]."""
    out, states = _layers(_gru, size, input, [hx], *rest)
    return out, *states


@lowering_rule(torch.rnn_tanh, description=_DESCRIPTION)
def rnn_tanh(size: int, ways: Ways, input: Any, hx: Any, *rest: Any) -> tuple[BatchedTensor, ...]:
    """Compute [B, T, N, F]."""
    out, states = _layers(_tanh, size, input, [hx], *rest)
    return out, *states


@lowering_rule(torch.rnn_relu, description=_DESCRIPTION)
def rnn_relu(size: int, ways: Ways, input: Any, hx: Any, *rest: Any) -> tuple[BatchedTensor, ...]:
    """Compute [B, T, N, F]."""
    out, states = _layers(_relu, size, input, [hx], *rest)
    return out, *states


def _lstm(x: Tensor, h: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    i, f, g, o = (x + h).chunk(4, dim=-1)
    cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def _gru(x: Tensor, h: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, dim=-1), h.chunk(3, dim=-1)
    new = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
    return (new + torch.sigmoid(xz + hz) * (state[0] - new),)


def _tanh(x: Tensor, h: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (torch.tanh(x + h),)


def _relu(x: Tensor, h: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (torch.relu(x + h),)


def _layers(
    cell: Cell,
    size: int,
    input: Tensor | BatchedTensor,
    start: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[BatchedTensor, list[BatchedTensor]]:
    weights = list(params)
    directions = 2 if bidirectional else 1
    each = len(weights) // (num_layers * directions)
    if each != (4 if has_biases else 2) or not all(isinstance(w, BatchedTensor) for w in weights):
        raise RuleNotApplicable  # a projection, or weights that members share
    states = [expand_to_members(s, size).members_first for s in start]  # [B, layers·directions, N, H]
    x = expand_to_members(input, size).members_first
    x = x.transpose(1, 2) if batch_first else x  # [B, T, N, F]
    last: list[list[Tensor]] = [[] for _ in states]
    for layer in range(num_layers):
        if layer and dropout and train:
            x = drop(x, dropout)
        outs = []
        for direction in range(directions):
            at = layer * directions + direction
            own = [w.members_first for w in weights[at * each : (at + 1) * each]]
            out, ended = _run_direction(
                cell, x, tuple(s[:, at] for s in states), own, backwards=direction == 1
            )
            outs.append(out)
            for layers, state in zip(last, ended, strict=True):
                layers.append(state)
        x = outs[0] if directions == 1 else torch.cat(outs, dim=-1)
    x = x.transpose(1, 2) if batch_first else x
    return BatchedTensor(x, 0), [BatchedTensor(torch.stack(layers, dim=1), 0) for layers in last]


def _run_direction(
    cell: Cell, x: Tensor, state: tuple[Tensor, ...], own: list[Tensor], *, backwards: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run all time steps of one layer in one direction."""
    w_in, w_state = own[0], own[1]
    b_in, b_state = (own[2], own[3]) if len(own) == 4 else (None, None)
    steps = x.shape[1]
    flat = x.reshape(x.shape[0], -1, x.shape[-1])
    projected = flat @ w_in.mT if b_in is None else torch.baddbmm(b_in.unsqueeze(1), flat, w_in.mT)
    projected = projected.reshape(*x.shape[:-1], -1)
    outs: list[Tensor] = []
    for t in reversed(range(steps)) if backwards else range(steps):
        h = state[0]
        recurrent = h @ w_state.mT if b_state is None else torch.baddbmm(b_state.unsqueeze(1), h, w_state.mT)
        state = cell(projected[:, t], recurrent, state)
        outs.append(state[0])
    return torch.stack(outs[::-1] if backwards else outs, dim=1), state


def _run_cell(
    cell: Cell,
    x: Tensor,
    state: tuple[Tensor, ...],
    w_in: Tensor,
    w_state: Tensor,
    b_in: Tensor | None,
    b_state: Tensor | None,
) -> tuple[Tensor, ...]:
    return cell(F.linear(x, w_in, b_in), F.linear(state[0], w_state, b_state), state)


@rewrite_rule(torch.lstm_cell, description="batched matrix products")
def lstm_cell(
    x: Tensor, state: Any, w_in: Tensor, w_state: Tensor, b_in: Any = None, b_state: Any = None
) -> Any:
    """Compute one time step."""
    return _run_cell(_lstm, x, tuple(state), w_in, w_state, b_in, b_state)


@rewrite_rule(torch.gru_cell, description="batched matrix products")
def gru_cell(
    x: Tensor, h: Tensor, w_in: Tensor, w_state: Tensor, b_in: Any = None, b_state: Any = None
) -> Tensor:
    """Compute one time step."""
    return _run_cell(_gru, x, (h,), w_in, w_state, b_in, b_state)[0]


@rewrite_rule(torch.rnn_tanh_cell, description="batched matrix products")
def rnn_tanh_cell(
    x: Tensor, h: Tensor, w_in: Tensor, w_state: Tensor, b_in: Any = None, b_state: Any = None
) -> Tensor:
    """Compute one time step."""
    return _run_cell(_tanh, x, (h,), w_in, w_state, b_in, b_state)[0]


@rewrite_rule(torch.rnn_relu_cell, description="batched matrix products")
def rnn_relu_cell(
    x: Tensor, h: Tensor, w_in: Tensor, w_state: Tensor, b_in: Any = None, b_state: Any = None
) -> Tensor:
    """Compute one time step."""
    return _run_cell(_relu, x, (h,), w_in, w_state, b_in, b_state)[0]

"""Recurrent layers of all members: the input of all moments in one product, then moment after moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from wattline.fusion.lowering.rules import Declined, Many, Ways, lowers, rewrites, spread
from wattline.fusion.ops.noise import drop

_HOW = "batched matrix products: of all moments for the input, then moment after moment"
Cell = Callable[[Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


@lowers(torch.lstm, how=_HOW)
def lstm(size: int, ways: Ways, input: Any, hx: Any, *rest: Any) -> tuple[Many, ...]:
    """[B, T, N, F]; the state is what is put out and what is kept."""
    out, states = _layers(_lstm, size, input, hx, *rest)
    return out, *states


@lowers(torch.gru, how=_HOW)
def gru(size: int, ways: Ways, input: Any, hx: Any, *rest: Any) -> tuple[Many, ...]:
    """[B, T, N, F]."""
    out, states = _layers(_gru, size, input, [hx], *rest)
    return out, *states


@lowers(torch.rnn_tanh, how=_HOW)
def rnn_tanh(size: int, ways: Ways, input: Any, hx: Any, *rest: Any) -> tuple[Many, ...]:
    """[B, T, N, F]."""
    out, states = _layers(_tanh, size, input, [hx], *rest)
    return out, *states


@lowers(torch.rnn_relu, how=_HOW)
def rnn_relu(size: int, ways: Ways, input: Any, hx: Any, *rest: Any) -> tuple[Many, ...]:
    """[B, T, N, F]."""
    out, states = _layers(_relu, size, input, [hx], *rest)
    return out, *states


def _lstm(x: Tensor, h: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    i, f, g, o = (x + h).chunk(4, dim=-1)
    kept = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(kept), kept


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
    input: Tensor | Many,
    start: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Many, list[Many]]:
    weights = list(params)
    ways = 2 if bidirectional else 1
    each = len(weights) // (num_layers * ways)
    if each != (4 if has_biases else 2) or not all(isinstance(w, Many) for w in weights):
        raise Declined  # a projection, or weights that members share
    states = [spread(s, size).first for s in start]  # [B, layers·ways, N, H]
    x = spread(input, size).first
    x = x.transpose(1, 2) if batch_first else x  # [B, T, N, F]
    last: list[list[Tensor]] = [[] for _ in states]
    for layer in range(num_layers):
        if layer and dropout and train:
            x = drop(x, dropout)
        outs = []
        for way in range(ways):
            at = layer * ways + way
            own = [w.first for w in weights[at * each : (at + 1) * each]]
            out, ended = _through(cell, x, tuple(s[:, at] for s in states), own, backwards=way == 1)
            outs.append(out)
            for kept, state in zip(last, ended, strict=True):
                kept.append(state)
        x = outs[0] if ways == 1 else torch.cat(outs, dim=-1)
    x = x.transpose(1, 2) if batch_first else x
    return Many(x, 0), [Many(torch.stack(kept, dim=1), 0) for kept in last]


def _through(
    cell: Cell, x: Tensor, state: tuple[Tensor, ...], own: list[Tensor], *, backwards: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """All moments of one layer in one direction."""
    w_in, w_state = own[0], own[1]
    b_in, b_state = (own[2], own[3]) if len(own) == 4 else (None, None)
    moments = x.shape[1]
    flat = x.reshape(x.shape[0], -1, x.shape[-1])
    given = flat @ w_in.mT if b_in is None else torch.baddbmm(b_in.unsqueeze(1), flat, w_in.mT)
    given = given.reshape(*x.shape[:-1], -1)
    outs: list[Tensor] = []
    for t in reversed(range(moments)) if backwards else range(moments):
        h = state[0]
        kept = h @ w_state.mT if b_state is None else torch.baddbmm(b_state.unsqueeze(1), h, w_state.mT)
        state = cell(given[:, t], kept, state)
        outs.append(state[0])
    return torch.stack(outs[::-1] if backwards else outs, dim=1), state


def _step(
    cell: Cell,
    x: Tensor,
    state: tuple[Tensor, ...],
    w_in: Tensor,
    w_state: Tensor,
    b_in: Tensor | None,
    b_state: Tensor | None,
) -> tuple[Tensor, ...]:
    return cell(F.linear(x, w_in, b_in), F.linear(state[0], w_state, b_state), state)


@rewrites(torch.lstm_cell, how="batched matrix products")
def lstm_cell(
    x: Tensor, state: Any, w_in: Tensor, w_state: Tensor, b_in: Any = None, b_state: Any = None
) -> Any:
    """One moment."""
    return _step(_lstm, x, tuple(state), w_in, w_state, b_in, b_state)


@rewrites(torch.gru_cell, how="batched matrix products")
def gru_cell(
    x: Tensor, h: Tensor, w_in: Tensor, w_state: Tensor, b_in: Any = None, b_state: Any = None
) -> Tensor:
    """One moment."""
    return _step(_gru, x, (h,), w_in, w_state, b_in, b_state)[0]


@rewrites(torch.rnn_tanh_cell, how="batched matrix products")
def rnn_tanh_cell(
    x: Tensor, h: Tensor, w_in: Tensor, w_state: Tensor, b_in: Any = None, b_state: Any = None
) -> Tensor:
    """One moment."""
    return _step(_tanh, x, (h,), w_in, w_state, b_in, b_state)[0]


@rewrites(torch.rnn_relu_cell, how="batched matrix products")
def rnn_relu_cell(
    x: Tensor, h: Tensor, w_in: Tensor, w_state: Tensor, b_in: Any = None, b_state: Any = None
) -> Tensor:
    """One moment."""
    return _step(_relu, x, (h,), w_in, w_state, b_in, b_state)[0]

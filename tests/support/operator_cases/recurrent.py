"""Cases of recurrent layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from support.fusion_equality import normal_tensor
from support.operator_cases.base import AfterLinear, CustomCall, case


class Packed(nn.Module):
    def __init__(self, module: nn.Module, first: bool) -> None:
        super().__init__()
        self.module = module
        self.first = first

    def forward(self, x: Tensor) -> Any:
        packed = pack_padded_sequence(x, torch.tensor([3, 1]), batch_first=self.first, enforce_sorted=False)
        out, state = self.module(packed)
        return *pad_packed_sequence(out, batch_first=self.first), state


RECURRENT = [
    *(
        case(
            f"{kind} {options}",
            lambda kind=kind, options=options: getattr(nn, kind)(2, 3, **options),
            normal_tensor(4, 2, 2),
        )
        for kind in ("LSTM", "GRU", "RNN")
        for options in (
            {},
            {"num_layers": 2},
            {"bidirectional": True},
            {"batch_first": True, "bias": False},
            {"num_layers": 2, "bidirectional": True, "batch_first": True},
        )
    ),
    case("RNN with ReLU", lambda: nn.RNN(2, 3, nonlinearity="relu"), normal_tensor(4, 2, 2)),
    *(
        case(f"{kind} of one sample", lambda kind=kind: getattr(nn, kind)(2, 3, 2), normal_tensor(4, 2))
        for kind in ("LSTM", "GRU", "RNN")
    ),
    *(
        case(
            f"{kind} with a beginning",
            lambda kind=kind: getattr(nn, kind)(2, 3),
            normal_tensor(4, 2, 2),
            normal_tensor(1, 2, 3),
        )
        for kind in ("GRU", "RNN")
    ),
    case(
        "LSTM with a beginning",
        lambda: CustomCall(nn.LSTM(2, 3, 2, batch_first=True), lambda m, x, h, c: m(x, (h, c))),
        normal_tensor(2, 4, 2),
        normal_tensor(2, 2, 3),
        normal_tensor(2, 2, 3, seed=1),
    ),
    case(
        "LSTM of one sample with a beginning",
        lambda: CustomCall(nn.LSTM(2, 3), lambda m, x, h, c: m(x, (h, c))),
        normal_tensor(4, 2),
        normal_tensor(1, 3),
        normal_tensor(1, 3, seed=1),
    ),
    *(
        case(
            f"{kind} with dropout, evaluated",
            lambda kind=kind: getattr(nn, kind)(2, 3, 2, dropout=0.5),
            normal_tensor(4, 2, 2),
            evaluate=True,
        )
        for kind in ("LSTM", "GRU", "RNN")
    ),
    *(
        case(
            f"{kind} behind weights",
            lambda kind=kind: AfterLinear(getattr(nn, kind)(2, 3, 2), 2),
            normal_tensor(4, 2, 2),
        )
        for kind in ("LSTM", "GRU", "RNN")
    ),
    case("LSTM with projections", lambda: nn.LSTM(2, 4, proj_size=3), normal_tensor(4, 2, 2), warning="LSTM"),
    *(
        case(
            f"packed {kind}",
            lambda kind=kind: Packed(getattr(nn, kind)(2, 3, bidirectional=True), first=False),
            normal_tensor(4, 2, 2),
            warning=f"{kind}|pack",
        )
        for kind in ("LSTM", "GRU", "RNN")
    ),
    case("LSTM cell", lambda: nn.LSTMCell(2, 3), normal_tensor(4, 2)),
    case(
        "LSTM cell with a beginning",
        lambda: CustomCall(nn.LSTMCell(2, 3), lambda m, x, h, c: m(x, m(x, (h, c)))),
        normal_tensor(4, 2),
        normal_tensor(4, 3),
        normal_tensor(4, 3, seed=1),
    ),
    case("GRU cell", lambda: nn.GRUCell(2, 3), normal_tensor(4, 2), normal_tensor(4, 3)),
    case("RNN cell", lambda: nn.RNNCell(2, 3), normal_tensor(4, 2), normal_tensor(4, 3)),
    case(
        "RNN cell with ReLU", lambda: nn.RNNCell(2, 3, nonlinearity="relu", bias=False), normal_tensor(4, 2)
    ),
    case(
        "GRU cell over time",
        lambda: CustomCall(nn.GRUCell(2, 3), lambda m, x: m(x, m(x, m(x)))),
        normal_tensor(4, 2),
    ),
]

"""Array optimisers beside ordinary optimisers of the same members, and cases of hyper-parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from support.plain_lion import PlainLion
from wattline.fusion import optim

SHAPES = [(4, 3), (4,), (2, 3, 2), ()]
MATRICES = [(4, 3), (3, 4), (5, 5), (1, 6)]  # for Muon
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
    ("NAdam", {"lr": [0.1, 0.01, 0.0, 0.3], "momentum_decay": [4e-3, 0.0, 0.5, 2.0]}),
    (
        "NAdam",
        {"betas": [(0.9, 0.999), (0.5, 0.9), (0.0, 0.0), (0.99, 0.9999)], "eps": [1e-8, 1e-3, 1e-6, 1e-5]},
    ),
    ("NAdam", {"weight_decay": [0, 0.1, 0, 0.01], "maximize": True}),
    ("NAdam", {"lr": 0.05, "weight_decay": [0, 0.1, 0, 0.01], "decoupled_weight_decay": True}),
    ("RAdam", {"lr": [0.1, 0.01, 0.0, 0.3]}),
    (  # the longest averages are of 1999, 19, 4 and 5 steps: the last two are never rectified
        "RAdam",
        {"betas": [(0.9, 0.999), (0.5, 0.9), (0.0, 0.6), (0.9, 2 / 3)], "eps": [1e-8, 1e-3, 1e-6, 1e-5]},
    ),
    ("RAdam", {"betas": (0.9, 0.0), "weight_decay": [0, 0.1, 0, 0.01], "maximize": True}),
    ("RAdam", {"lr": 0.05, "weight_decay": [0, 0.1, 0, 0.01], "decoupled_weight_decay": True}),
    ("Adagrad", {"lr": [0.1, 0.01, 0.0, 0.3], "lr_decay": [0.0, 0.1, 1.0, 2.0]}),
    ("Adagrad", {"initial_accumulator_value": [0.0, 0.1, 1.0, 3.0], "eps": [1e-10, 1e-3, 1e-4, 1e-8]}),
    ("Adagrad", {"weight_decay": [0, 0.1, 0, 0.01], "maximize": True}),
    ("Lion", {"lr": [0.1, 0.01, 0.0, 0.3]}),
    (
        "Lion",
        {
            "betas": [(0.9, 0.99), (0.5, 0.9), (0.0, 0.0), (0.95, 0.98)],
            "weight_decay": [0, 0.1, 0, 0.01],
        },
    ),
    ("Muon", {"lr": [0.1, 0.01, 0.0, 0.3], "weight_decay": [0, 0.1, 0.5, 0.01]}),
    ("Muon", {"momentum": [0.95, 0.0, 0.5, 0.9], "nesterov": False, "adjust_lr_fn": "match_rms_adamw"}),
    ("Muon", {"ns_steps": 2, "ns_coefficients": (2.0, -1.5, 0.5), "eps": [1e-7, 100.0, 1e-3, 1.0]}),
]
NAMES = ["SGD", "Adam", "AdamW", "Adadelta", "RMSprop", "NAdam", "RAdam", "Adagrad", "Lion", "Muon"]
EACH: list[tuple[str, dict[str, Any]]] = [
    (name, {"momentum": [0.9, 0, 0.5, 0.99]} if name == "SGD" else {}) for name in NAMES
]


def ordinary_class(name: str) -> Any:
    """Return the ordinary optimiser of one model."""
    return PlainLion if name == "Lion" else getattr(torch.optim, name)


def select_own(hyper: dict[str, Any], member: int) -> dict[str, Any]:
    return {key: value[member] if isinstance(value, list) else value for key, value in hyper.items()}


class Both:
    """An array and the same members one by one."""

    def __init__(self, name: str, hyper: dict[str, Any], width: int = B, dtype: Any = None) -> None:
        self.random = torch.Generator().manual_seed(1)
        self.dtype = dtype or torch.float64
        self.name = name
        self.shapes = MATRICES if name == "Muon" else SHAPES
        self.alone = [self.fresh() for _ in range(width)]
        self.params = [
            nn.Parameter(torch.stack([p.detach() for p in row])) for row in zip(*self.alone, strict=True)
        ]
        self.array = getattr(optim, name)(self.params, **hyper)
        self.singles = [self.single(self.alone[i], select_own(hyper, i)) for i in range(width)]

    def fresh(self) -> list[Any]:
        return [
            nn.Parameter(torch.randn(shape, dtype=self.dtype, generator=self.random)) for shape in self.shapes
        ]

    def single(self, params: list[Any], hyper: dict[str, Any]) -> Any:
        return ordinary_class(self.name)(params, **hyper)

    def grads(self, without: tuple[int, ...] = ()) -> None:
        for place, param in enumerate(self.params):
            grad = torch.randn(param.shape, dtype=self.dtype, generator=self.random)
            param.grad = None if place in without else grad
            for member, row in enumerate(self.alone):
                row[place].grad = None if place in without else grad[member].to(row[place].dtype, copy=True)

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

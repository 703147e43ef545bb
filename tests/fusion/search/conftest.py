"""A small classification problem in float64: two opposite quadrants against the other two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def double() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def problem(double: None) -> Callable[..., Callable[[Any], Any]]:
    """Return a factory of objective functions; its arguments replace parts of the objective."""
    import torch
    import torch.nn.functional as F  # noqa: N812
    from torch import nn

    from wattline import fusion

    rng = torch.Generator().manual_seed(0)
    points = torch.randn(48, 2, generator=rng)
    labels = (points[:, 0] * points[:, 1] > 0).long()

    def make(**given: Any) -> Callable[[Any], Any]:
        def objective(shared: Any) -> Any:
            def batches(epoch: int) -> Any:
                size = shared.get("batch_size", 16)
                return [(points[part], labels[part]) for part in torch.randperm(48).split(size)]

            def build(config: dict[str, Any]) -> nn.Module:
                hidden = config.get("hidden", 4)
                return nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 2))

            parts: dict[str, Any] = {
                "build": build,
                "batches": batches,
                "loss": F.cross_entropy,
                "evaluate": lambda array: array.loss(F.cross_entropy, array(points), labels),
                "optimiser": fusion.Adam,
                "hyper": ("lr", "weight_decay"),
            }
            return fusion.Objective(**{**parts, **given})

        return objective

    return make

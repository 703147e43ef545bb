"""Steps that map their memory anew."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from wattline import fusion  # noqa: E402
from wattline.fusion.step import malloc  # noqa: E402

X, Y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])


def count_announcements(
    monkeypatch: pytest.MonkeyPatch, faults_per_step: int, *, is_kept: bool = False
) -> int:
    """Return the number of warnings in ten steps, during each of which so many pages are mapped."""
    faults = [0]

    def read_usage(_: int) -> SimpleNamespace:
        faults[0] += faults_per_step
        return SimpleNamespace(ru_minflt=faults[0])

    monkeypatch.setattr(malloc, "getrusage", read_usage)
    monkeypatch.setattr(malloc, "_is_kept", is_kept)
    monkeypatch.setattr(malloc, "_MIN_SHARE", 0.0)  # whatever the speed of this machine
    array = fusion.fuse([nn.Linear(3, 2) for _ in range(2)])
    step = fusion.train_step(array, nn.CrossEntropyLoss(), fusion.SGD(array, lr=0.1), compile=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(10):
            step(X, Y)
    return sum("keep_freed_memory" in str(one.message) for one in caught)


def test_steps_that_map_much_memory_are_announced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_announcements(monkeypatch, 100_000) == 1


def test_small_steps_are_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_announcements(monkeypatch, 100) == 0


def test_nothing_is_announced_where_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_announcements(monkeypatch, 100_000, is_kept=True) == 0

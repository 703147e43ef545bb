"""Batches of one step for members that are in different epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from wattline.errors import ConfigError
from wattline.fusion.torch_internals import tree_flatten, tree_unflatten

Batch = tuple[Any, ...]
_SHARED_HINT = "make batches an iterable, which members of all ages share"


class SeededBatches:
    """An iterable with its own PyTorch (CPU) random state, unaffected by other draws."""

    def __init__(self, source: Callable[[], Iterable[Any]], seed: int) -> None:
        self._source = source
        self._state = torch.Generator().manual_seed(seed).get_state()
        self._batches: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        outside = torch.get_rng_state()
        torch.set_rng_state(self._state)
        try:
            if self._batches is None:
                self._batches = iter(self._source())
            batch = next(self._batches)
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(outside)
        return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


def epoch_batches(batches: Callable[[int], Iterable[Any]], epoch: int, seed: int) -> Iterator[Batch]:
    """Return the batches of one epoch, which all members share."""
    return SeededBatches(lambda: batches(epoch), seed + epoch)


def stack_epochs(
    batches: Callable[[int], Iterable[Any]], epochs: Sequence[int], seed: int
) -> Iterator[Batch]:
    """Yield batches with a row for each member; *epochs* has the epoch of each."""
    ages = sorted(set(epochs))
    streams = [epoch_batches(batches, age, seed) for age in ages]
    rows = [ages.index(epoch) for epoch in epochs]
    while True:
        step_batches = [next(stream, None) for stream in streams]
        present = [batch for batch in step_batches if batch is not None]
        if not present:
            return
        if len(present) < len(step_batches):
            raise ConfigError(
                f"epochs {ages} differ in their number of batches",
                f"make the numbers equal, or {_SHARED_HINT}",
            )
        yield _stack([present[row] for row in rows], ages)


def _stack(batches: Sequence[Batch], ages: Sequence[int]) -> Batch:
    flat = [tree_flatten(batch) for batch in batches]
    shapes = {
        tuple(leaf.shape if isinstance(leaf, Tensor) else None for leaf in leaves) for leaves, _ in flat
    }
    if len(shapes) > 1:
        raise ConfigError(
            f"batches of the epochs {list(ages)} differ in shape: {' and '.join(map(str, list(shapes)[:2]))}",
            f"make the shapes equal, or {_SHARED_HINT}",
        )
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    stacked = [torch.stack(column) if isinstance(column[0], Tensor) else column[0] for column in columns]
    built: Batch = tree_unflatten(stacked, flat[0][1])
    return built

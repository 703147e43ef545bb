"""The batches that members of different ages get in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from wattline.errors import ConfigError

Batch = tuple[Any, ...]
_TOGETHER = "let batches be an iterable, which is the same for members of all ages"


class Seeded:
    """An iterable that draws the same random numbers of PyTorch (CPU) whatever else is drawn meanwhile."""

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


def of_epoch(batches: Callable[[int], Iterable[Any]], epoch: int, seed: int) -> Iterator[Batch]:
    """The batches of one epoch, which all members share."""
    return Seeded(lambda: batches(epoch), seed + epoch)


def side_by_side(
    batches: Callable[[int], Iterable[Any]], epochs: Sequence[int], seed: int
) -> Iterator[Batch]:
    """Batches with a row for each member, which are in these *epochs*."""
    ages = sorted(set(epochs))
    streams = [of_epoch(batches, age, seed) for age in ages]
    rows = [ages.index(epoch) for epoch in epochs]
    while True:
        found = [next(stream, None) for stream in streams]
        there = [batch for batch in found if batch is not None]
        if not there:
            return
        if len(there) < len(found):
            raise ConfigError(
                f"epochs {ages} differ in how many batches they have", f"give all as many, or {_TOGETHER}"
            )
        yield _stacked([there[row] for row in rows], ages)


def _stacked(batches: Sequence[Batch], ages: Sequence[int]) -> Batch:
    flat = [tree_flatten(batch) for batch in batches]
    shapes = {
        tuple(leaf.shape if isinstance(leaf, Tensor) else None for leaf in leaves) for leaves, _ in flat
    }
    if len(shapes) > 1:
        raise ConfigError(
            f"batches of the epochs {list(ages)} differ in shape: {' and '.join(map(str, list(shapes)[:2]))}",
            f"give all the same shapes, or {_TOGETHER}",
        )
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    stacked = [torch.stack(column) if isinstance(column[0], Tensor) else column[0] for column in columns]
    built: Batch = tree_unflatten(stacked, flat[0][1])
    return built

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wattline.backend.engine.local.gpu_allocator import GpuAllocator
from wattline.errors import MeterError
from wattline.meter import open_meter


@pytest.fixture
def allocator(tmp_path: Path) -> Iterator[GpuAllocator]:
    one = GpuAllocator(open_meter(f"simulated:8xa100,state={tmp_path / 'gpus'}"), tmp_path / "caps")
    yield one
    one.close()


@pytest.mark.parametrize(
    ("count", "leased", "chosen"),
    [
        (1, (), (0,)),
        (2, (0,), (2, 3)),  # a pair starts at an even index
        (3, (0, 1, 2, 3), (4, 5, 6)),
        (4, (1,), (4, 5, 6, 7)),
        (4, (1, 5), (0, 2, 3, 4)),  # no aligned block is free
        (8, (), tuple(range(8))),
    ],
)
def test_aligned_blocks_of_neighbours_are_preferred(
    allocator: GpuAllocator, count: int, leased: tuple[int, ...], chosen: tuple[int, ...]
) -> None:
    assert allocator.choose(count, range(8), leased) == chosen


def test_more_gpus_than_are_free_are_an_error(allocator: GpuAllocator) -> None:
    with pytest.raises(MeterError, match="3 GPUs were allocated on a node with 2 free GPUs"):
        allocator.choose(3, range(4), (0, 1))


def test_power_limits_are_kept_within_their_range_and_restored(allocator: GpuAllocator) -> None:
    gpu = allocator.meter.gpus[0]
    low, high = gpu.cap_range_w()
    before_w = gpu.cap_w()
    for watts, expected_w in ((1, low), (10_000, high), (200, 200.0)):
        assert allocator.set_cap([0], watts)
        assert gpu.cap_w() == expected_w
    assert allocator.set_cap([0], 0)
    assert gpu.cap_w() == before_w

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.backend.engine.local.gpu_allocator import EnergySplit, GpuAllocator
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
        assert allocator.set_cap([0], watts) == (expected_w <= watts)
        assert gpu.cap_w() == allocator.cap_w([0]) == expected_w
    assert allocator.set_cap([0], 0)
    assert gpu.cap_w() == before_w


# -- energy


@dataclass
class Counter:
    """A GPU with a counter that a test advances."""

    value_j: float = 0.0
    readable: bool = True
    uuid: str = "C-0"
    method: str = "counter"

    def energy_j(self) -> float:
        if not self.readable:
            raise MeterError("the GPU is lost")
        return self.value_j

    def cap_w(self) -> float:
        return 300.0


@dataclass
class CounterMeter:
    gpus: tuple[Counter, ...]

    def now_s(self) -> float:
        return 0.0

    def close(self) -> None:
        pass


steps = st.lists(
    st.one_of(
        st.tuples(st.just("use"), st.integers(0, 1), st.floats(0.0, 1e6)),
        st.tuples(st.sampled_from(("lose", "find")), st.integers(0, 1), st.just(0.0)),
        st.tuples(st.sampled_from(("enter", "leave")), st.integers(0, 3), st.just(0.0)),
        st.tuples(st.sampled_from(("sample", "restart")), st.just(0), st.just(0.0)),
    ),
    max_size=40,
)


@given(steps)
def test_joules_never_fall_and_add_up_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, float]]
) -> None:
    counters = (Counter(uuid="C-0"), Counter(uuid="C-1"))
    state = tmp_path_factory.getbasetemp() / "caps"

    def opened() -> GpuAllocator:
        return GpuAllocator(CounterMeter(counters), state)  # type: ignore[arg-type]

    allocator = opened()
    gpus = {"0": (0,), "1": (0,), "2": (0, 1), "3": (1,)}  # jobs 0 and 1 share a GPU, job 2 has both
    shown: dict[str, float] = {}
    ended_j, used_j, complete = 0.0, 0.0, True
    for verb, at, amount in steps:
        job = str(at)
        if verb == "use":
            counters[at].value_j += amount
            used_j += amount if any(at in gpus[name] for name in shown) else 0.0
        elif verb in ("lose", "find"):
            counters[at].readable = verb == "find"
        elif verb == "enter" and job not in shown:
            allocator.occupy([job], gpus[job])
            shown[job] = 0.0
        elif verb == "leave" and job in shown:
            counted_j, left_j = allocator.counted_j(job), allocator.leave(job)
            complete = complete and left_j is not None
            assert left_j is None or left_j >= shown[job]
            ended_j += counted_j if left_j is None else left_j
            del shown[job]
        elif verb == "restart":
            splits = {name: allocator.split([name], gpus[name]) for name in shown}
            allocator.close()
            allocator = opened()
            for name, split in splits.items():
                allocator.occupy([name], gpus[name], EnergySplit.from_dict(split.as_dict()))
        allocator.sample()
        for name in shown:
            now_j = allocator.energy_j(name)
            complete = complete and now_j is not None
            if now_j is not None:
                assert now_j >= shown[name] * (1 - 1e-12)
                shown[name] = now_j
    allocator.close()
    counted_j = ended_j + sum(shown.values())
    if complete:
        assert counted_j == pytest.approx(used_j)
    else:
        assert counted_j <= used_j * (1 + 1e-9)


def test_the_joules_of_a_gpu_that_cannot_be_read_are_unknown_until_it_can_be_read_again(
    tmp_path: Path,
) -> None:
    counter = Counter()
    allocator = GpuAllocator(CounterMeter((counter,)), tmp_path)  # type: ignore[arg-type]
    allocator.occupy(["1"], [0])
    counter.value_j, counter.readable = 10.0, False
    allocator.sample()
    assert allocator.energy_j("1") is None
    counter.readable = True
    allocator.sample()
    assert allocator.energy_j("1") == 10.0
    counter.value_j, counter.readable = 20.0, False
    assert allocator.total_energy_j() == 10.0
    assert (allocator.counted_j("1"), allocator.leave("1")) == (10.0, None)
    allocator.close()


def test_the_mean_power_is_the_energy_since_the_last_call(tmp_path: Path) -> None:
    meter = open_meter(f"simulated:1xa100,model=resnet50,time=virtual,state={tmp_path / 'gpus'}")
    allocator = GpuAllocator(meter, tmp_path / "caps")
    assert allocator.mean_power_w() == {0: 59.0}
    before_s, before_j = meter.now_s(), meter.gpus[0].energy_j()
    meter.stepped(256)
    mean_w = (meter.gpus[0].energy_j() - before_j) / (meter.now_s() - before_s)
    assert allocator.mean_power_w() == {0: pytest.approx(mean_w)}
    allocator.close()

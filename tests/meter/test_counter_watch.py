"""Renewal periods of energy counters that do not state them."""

from __future__ import annotations

import json

import pytest

from support.nvml_stub import NvmlStub
from wattline.errors import MeterError
from wattline.meter import counter_watch, open_meter


class Clock:
    """A clock that only sleeping advances."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class NvmlLike:
    """A GPU with a counter that is renewed every 20 ms."""

    uuid, method, is_lost = "GPU-watch", "nvml energy counter", False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def energy_j(self) -> float:
        if self.is_lost:
            raise MeterError("GPU 0 is lost")
        return 2.0 * int(self._clock.now_s / 0.02)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(counter_watch, "time", found)
    monkeypatch.setattr(counter_watch, "_periods_s", {})
    monkeypatch.setattr(counter_watch, "_watched", set())
    return found


def test_the_period_of_a_counter_is_measured_once(clock: Clock) -> None:
    gpu = NvmlLike(clock)
    assert counter_watch.counter_period_s(gpu) == 0.1  # assumed
    thread = counter_watch.watch_counter(gpu)
    assert thread is not None
    thread.join()
    assert counter_watch.counter_period_s(gpu) == pytest.approx(0.02, abs=0.004)
    assert clock.now_s < 1.0
    assert counter_watch.watch_counter(gpu) is None


def test_a_lost_gpu_and_a_counter_that_stands_still_leave_the_assumption(clock: Clock) -> None:
    gpu = NvmlLike(clock)
    gpu.is_lost = True
    counter_watch.measure_period(gpu)
    assert counter_watch.counter_period_s(gpu) == 0.1
    gpu.is_lost = False
    gpu.energy_j = lambda: 5.0  # type: ignore[method-assign]
    counter_watch.measure_period(gpu)
    assert counter_watch.counter_period_s(gpu) == 0.1
    assert clock.now_s < 1.1


def test_a_stated_period_is_not_measured(clock: Clock) -> None:
    meter = open_meter("simulated:1xv100,model=resnet50,batch=64,time=virtual,counter=50")
    assert counter_watch.watch_counter(meter.gpus[0]) is None
    assert counter_watch.counter_period_s(meter.gpus[0]) == 0.05
    meter.close()


def test_a_window_on_nvml_reads_the_visible_gpus_and_states_its_error(stub: NvmlStub) -> None:
    output = stub.run(
        "import json, time, wattline\n"
        "with wattline.window('w', meter='nvml', cpu=False) as w: time.sleep(0.3)\n"
        "print(json.dumps([w.gpu_j, w.time_s, w.error_j, w.method]))",
        CUDA_VISIBLE_DEVICES="1",
    )
    gpu_j, time_s, error_j, method = json.loads(output)
    assert set(gpu_j) == {"0"}  # as the process sees it
    assert 0 < error_j < gpu_j["0"]
    assert error_j <= 0.1 / time_s * gpu_j["0"] * (1 + 1e-9)  # at most the assumed period
    assert method.startswith("gpu: nvml energy counter; cpu and dram: unmetered (not asked for)")

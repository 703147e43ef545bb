"""Search for the best cap while a job trains."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.errors import ConfigError
from wattline.profiler.cap_window import Aim, CapMeasurement, CapSearch, WindowLength, find_best, list_caps

SHORT = WindowLength(wait=1, warmup=2, steps=5)


class SimulatedJob:
    """A job with longer steps and less power under lower caps."""

    def __init__(self, knee_w: float = 180.0) -> None:
        self.now_s, self.energy_j, self.knee_w = 0.0, 0.0, knee_w
        self.readings = 0

    def step(self, cap_w: float) -> None:
        watts = min(cap_w, 230.0)
        rate = min(1.0, 0.3 + 0.7 * watts / self.knee_w)
        self.now_s += 0.1 / rate
        self.energy_j += watts * 0.1 / rate

    def train(self, search: CapSearch, steps: int) -> int:
        """Train until the search has ended, at most *steps*; return the number of steps."""
        for number in range(steps):
            if search.is_done:
                return number
            self.step(search.cap_w)
            needs_reading = search.needs_reading
            self.readings += needs_reading
            search.record_step(*((self.now_s, self.energy_j) if needs_reading else (math.nan, math.nan)))
        return steps


def compute_best_cap(aim: Aim, caps: tuple[float, ...], knee_w: float) -> float:
    measurements = []
    for cap_w in caps:
        job = SimulatedJob(knee_w)
        job.step(cap_w)
        measurements.append(CapMeasurement(cap_w, 1, job.now_s, job.energy_j))
    return find_best(measurements, aim, caps[0]).cap_w


@given(
    knee_w=st.floats(60.0, 260.0),
    aim=st.sampled_from(
        [Aim("energy"), Aim("time"), Aim("cost", 0.5), Aim("cost", 0.9), Aim("slowdown", 1.15)]
    ),
)
def test_a_search_finds_the_best_cap_and_leaves_hopeless_ones_out(knee_w: float, aim: Aim) -> None:
    caps = list_caps(100.0, 250.0)
    search, job = CapSearch(caps, aim, SHORT), SimulatedJob(knee_w)
    job.train(search, 10_000)
    assert search.is_done
    chosen = next(one for one in search.measurements if one.cap_w == search.cap_w)
    expected = next(
        (one for one in search.measurements if one.cap_w == compute_best_cap(aim, caps, knee_w)), None
    )
    if expected is None:  # it was left out, and is hardly better than the chosen one
        assert aim.by != "slowdown"
    else:
        costs = aim.costs([chosen, expected, search.measurements[0]], caps[0], 1)
        assert costs[0] <= costs[1] * (1 + 1e-9)
    assert job.readings == 2 * len(search.measurements)


def test_measurements_match_the_job() -> None:
    search, job = CapSearch((250.0, 150.0), Aim("energy"), SHORT), SimulatedJob()
    job.train(search, 1000)
    alone = SimulatedJob()
    alone.step(150.0)
    assert search.measurements[1].step_s == pytest.approx(alone.now_s)
    assert search.measurements[1].step_j == pytest.approx(alone.energy_j)


def test_a_window_in_seconds_is_at_least_that_long() -> None:
    search, job = CapSearch((250.0,), Aim("energy"), WindowLength(0, 0, 1, seconds=3.0)), SimulatedJob()
    job.train(search, 1000)
    assert 3.0 <= search.measurements[0].seconds <= 3.2


def test_a_window_cut_off_by_the_end_of_an_epoch_restarts() -> None:
    search, job = CapSearch((250.0, 200.0), Aim("energy"), SHORT), SimulatedJob()
    job.train(search, 10)  # the first cap is measured, the second has started
    assert len(search.measurements) == 1
    search.end_epoch()
    assert job.train(search, 100) == 8  # the length of a whole window
    assert [one.steps for one in search.measurements] == [5, 5]


def test_windows_that_do_not_fit_in_an_epoch_get_shorter() -> None:
    search, job = CapSearch(list_caps(100.0, 250.0), Aim("energy"), WindowLength(1, 10, 40)), SimulatedJob()
    for _ in range(60):  # epochs of nine steps
        job.train(search, 9)
        search.end_epoch()
    assert search.is_done
    assert max(one.steps for one in search.measurements) <= 8


def test_ranks_are_combined_at_the_same_step() -> None:
    search = CapSearch((250.0,), Aim("energy"), SHORT, gpus=2, combine=lambda s, j: (s + 1.0, 2 * j))
    SimulatedJob().train(search, 100)
    alone = CapSearch((250.0,), Aim("energy"), SHORT)
    SimulatedJob().train(alone, 100)
    assert search.measurements[0].seconds == pytest.approx(alone.measurements[0].seconds + 1.0)
    assert search.measurements[0].joules == pytest.approx(2 * alone.measurements[0].joules)


def test_caps_go_down_in_steps_to_the_smallest() -> None:
    assert list_caps(100.0, 250.0) == (250.0, 225.0, 200.0, 175.0, 150.0, 125.0, 100.0)
    assert list_caps(90.0, 150.0) == (150.0, 125.0, 100.0, 90.0)
    assert list_caps(150.0, 150.0) == (150.0,)


def test_each_aim_chooses_its_own_cap() -> None:
    measurements = [
        CapMeasurement(250, 1, 1.0, 240.0),
        CapMeasurement(200, 1, 1.05, 200.0),
        CapMeasurement(150, 1, 1.3, 180.0),
        CapMeasurement(100, 1, 2.2, 220.0),
    ]
    chosen = {text: find_best(measurements, Aim.parse(text), 250.0).cap_w for text in (
        "time", "energy", "cost:1", "cost:0", "slowdown:1.1", "slowdown:1.5", "watts:195", "watts:50",
    )}  # fmt: skip
    assert chosen == {
        "time": 250, "energy": 150, "cost:1": 150, "cost:0": 250, "slowdown:1.1": 200, "slowdown:1.5": 150,
        "watts:195": 200, "watts:50": 100,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["joy", "cost:2", "cost:x", "slowdown:0.5", "watts", "watts:-5", ""])
def test_an_invalid_aim_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"aim|cost|slowdown|watts"):
        Aim.parse(text)


def test_aims_are_formatted_as_they_are_parsed() -> None:
    for text in ("energy", "time", "cost:0.7", "slowdown:1.2", "watts:180"):
        assert str(Aim.parse(text)) == text

"""Search for the best cap while a job trains."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattline.errors import ConfigError
from wattline.profiler.cap_aim import Aim, CapMeasurement, find_best
from wattline.profiler.cap_window import CapSearch, WindowLength, list_caps

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
            search.record_step(self.now_s, self.energy_j if needs_reading else math.nan)
        return steps


class SteppedJob(SimulatedJob):
    """A job with steps of *step_s* on a GPU with an energy counter that is renewed every *period_s*."""

    def __init__(self, step_s: float, period_s: float, phase_s: float = 0.0, knee_w: float = 180.0) -> None:
        super().__init__(knee_w)
        self.exact_j, self._step_s, self._period_s, self._phase_s = 0.0, step_s, period_s, phase_s

    def step(self, cap_w: float) -> None:
        watts = min(cap_w, 230.0)
        seconds = self._step_s / min(1.0, 0.3 + 0.7 * watts / self.knee_w)
        end_s = self.now_s + seconds
        renewed_s = math.floor((end_s + self._phase_s) / self._period_s) * self._period_s - self._phase_s
        if renewed_s > self.now_s:
            self.energy_j = self.exact_j + watts * (renewed_s - self.now_s)
        self.now_s, self.exact_j = end_s, self.exact_j + watts * seconds


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
    # The counter's period is measured first; then a window is read when it begins, and when it may end.
    assert job.readings <= 11 + 4 * len(search.measurements)


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


def test_no_window_is_shorter_than_two_seconds_or_twenty_periods_of_the_counter() -> None:
    for period_s, least_s in ((0.02, 2.0), (0.1, 2.0), (0.5, 10.0)):
        search, job = CapSearch((250.0, 200.0), Aim("energy"), SHORT), SteppedJob(0.004, period_s)
        job.train(search, 50_000)
        assert search.period_s == pytest.approx(period_s, abs=0.008)
        assert all(one.seconds >= least_s - 0.05 for one in search.measurements)
        assert all(one.seconds <= 1.2 * least_s + 2 * period_s for one in search.measurements)


@pytest.mark.slow
@given(phase_s=st.floats(0.0, 0.1), knee_w=st.floats(100.0, 260.0), step_s=st.floats(0.002, 0.3))
@settings(max_examples=30, deadline=None)
def test_a_stepped_counter_does_not_change_the_measured_energy(
    phase_s: float, knee_w: float, step_s: float
) -> None:
    search = CapSearch(list_caps(100.0, 250.0), Aim("energy"), SHORT)
    job = SteppedJob(step_s, 0.1, phase_s, knee_w)
    job.train(search, 100_000)
    for one in search.measurements:
        exact = SteppedJob(step_s, 0.1, knee_w=knee_w)
        exact.step(one.cap_w)
        # Edges are seen within a step where steps are short; else the reading is up to a period old.
        allowed = 0.01 if step_s < 0.01 else 0.06
        assert one.step_j == pytest.approx(exact.exact_j, rel=allowed)


def test_a_counter_that_stands_still_ends_the_search_with_a_reason() -> None:
    search, job = CapSearch((250.0, 200.0), Aim("energy"), SHORT), SteppedJob(0.1, 1e6)
    job.train(search, 1000)
    assert search.is_done
    assert "not renewed often enough" in search.failed
    assert search.measurements == []


def test_a_window_cut_off_by_the_end_of_an_epoch_restarts() -> None:
    search, job = CapSearch((250.0, 200.0), Aim("energy"), SHORT), SimulatedJob()
    job.train(search, 40)  # the first cap is measured, the second has started
    assert len(search.measurements) == 1
    search.end_epoch(job.now_s, job.energy_j)
    assert 23 <= job.train(search, 100) <= 25  # the length of a whole window of 2 s
    assert all(2.0 <= one.seconds < 2.2 for one in search.measurements)


def test_windows_that_do_not_fit_in_an_epoch_get_shorter() -> None:
    search, job = CapSearch((250.0, 200.0), Aim("energy"), WindowLength(1, 10, 400)), SimulatedJob()
    for _ in range(10):  # epochs of about twelve seconds
        job.train(search, 120)
        search.end_epoch(job.now_s, job.energy_j)
    assert search.is_done
    assert all(2.0 <= one.seconds <= 12.0 for one in search.measurements)


def test_epochs_shorter_than_a_window_are_measured_several_at_a_time() -> None:
    search, job = CapSearch(list_caps(100.0, 250.0), Aim("energy"), SHORT), SteppedJob(0.02, 0.1)
    for _ in range(400):  # epochs of nine steps, 0.2 s
        job.train(search, 9)
        if search.is_done:
            break
        needs_reading = search.needs_epoch_reading
        search.end_epoch(job.now_s, job.energy_j if needs_reading else math.nan)
    assert search.is_done
    assert all(one.steps % 9 == 0 and one.seconds >= 2.0 for one in search.measurements)
    for one in search.measurements:
        exact = SteppedJob(0.02, 0.1)
        exact.step(one.cap_w)
        assert one.step_j == pytest.approx(exact.exact_j, rel=0.06)


def test_a_disturbed_window_is_measured_again_and_marked_if_it_stays_disturbed() -> None:
    search, job = CapSearch((250.0, 200.0), Aim("energy"), SHORT), SimulatedJob()
    while not search.is_done:
        job.step(search.cap_w)
        disturbed = "a neighbour" if search.cap_w == 250.0 and job.now_s < 4.0 else ""
        search.record_step(job.now_s, job.energy_j, disturbed)
    assert [one.spoilt for one in search.measurements] == [False, False]
    assert search.spoilt == "a neighbour"
    always = CapSearch((250.0,), Aim("energy"), SHORT)
    while not always.is_done:
        job.step(always.cap_w)
        always.record_step(job.now_s, job.energy_j, "a neighbour")
    assert [one.spoilt for one in always.measurements] == [True]


def test_a_window_in_which_a_part_of_the_steps_is_much_slower_is_measured_again() -> None:
    search, job = CapSearch((250.0,), Aim("energy"), SHORT), SimulatedJob()
    while not search.is_done:
        job.step(250.0)
        job.now_s += 0.2 if 1.5 < job.now_s < 2.5 else 0.0  # another process takes the GPU for a second
        search.record_step(job.now_s, job.energy_j)
    assert "within one window" in search.spoilt
    assert [one.spoilt for one in search.measurements] == [False]
    assert search.measurements[0].step_s == pytest.approx(0.1)


def test_caps_that_are_known_are_not_tried_again() -> None:
    known = [CapMeasurement(250, 1, 1.0, 240.0), CapMeasurement(225, 1, 1.0, 220.0)]
    search = CapSearch((250.0, 225.0, 200.0), Aim("energy"), SHORT, measurements=list(known))
    assert (search.is_done, search.cap_w) == (False, 200.0)
    SimulatedJob().train(search, 1000)
    assert [one.cap_w for one in search.measurements] == [250, 225, 200]
    hopeless = [*known, CapMeasurement(200, 1, 2.0, 400.0), CapMeasurement(175, 1, 2.0, 400.0)]
    assert CapSearch(list_caps(100.0, 250.0), Aim("energy"), SHORT, measurements=hopeless).cap_w == 225


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

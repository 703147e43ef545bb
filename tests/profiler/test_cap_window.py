"""Caps that are tried while a job trains."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.errors import ConfigError
from wattline.profiler.cap_window import Aim, Length, Sweep, Tried, best, caps_between

SHORT = Length(wait=1, warmup=2, steps=5)


class Job:
    """A job whose step takes longer, and whose watts are fewer, under lower caps."""

    def __init__(self, knee_w: float = 180.0) -> None:
        self.now_s, self.energy_j, self.knee_w = 0.0, 0.0, knee_w
        self.readings = 0

    def step(self, cap_w: float) -> None:
        watts = min(cap_w, 230.0)
        rate = min(1.0, 0.3 + 0.7 * watts / self.knee_w)
        self.now_s += 0.1 / rate
        self.energy_j += watts * 0.1 / rate

    def train(self, sweep: Sweep, steps: int) -> int:
        """Steps done until the sweep has ended, at most *steps*."""
        for number in range(steps):
            if sweep.done:
                return number
            self.step(sweep.cap_w)
            wanted = sweep.wants_reading
            self.readings += wanted
            sweep.stepped(*((self.now_s, self.energy_j) if wanted else (math.nan, math.nan)))
        return steps


def true_best(aim: Aim, caps: tuple[float, ...], knee_w: float) -> float:
    tried = []
    for cap_w in caps:
        job = Job(knee_w)
        job.step(cap_w)
        tried.append(Tried(cap_w, 1, job.now_s, job.energy_j))
    return best(tried, aim, caps[0]).cap_w


@given(
    knee_w=st.floats(60.0, 260.0),
    aim=st.sampled_from(
        [Aim("energy"), Aim("time"), Aim("cost", 0.5), Aim("cost", 0.9), Aim("slowdown", 1.15)]
    ),
)
def test_a_sweep_finds_the_best_cap_and_leaves_hopeless_ones_out(knee_w: float, aim: Aim) -> None:
    caps = caps_between(100.0, 250.0)
    sweep, job = Sweep(caps, aim, SHORT), Job(knee_w)
    job.train(sweep, 10_000)
    assert sweep.done
    found = next(one for one in sweep.tried if one.cap_w == sweep.cap_w)
    wanted = next((one for one in sweep.tried if one.cap_w == true_best(aim, caps, knee_w)), None)
    if wanted is None:  # it was left out: then it is hardly better than what was found
        assert aim.by != "slowdown"
    else:
        costs = aim.costs([found, wanted, sweep.tried[0]], caps[0], 1)
        assert costs[0] <= costs[1] * (1 + 1e-9)
    assert job.readings == 2 * len(sweep.tried)


def test_what_is_measured_is_what_the_job_does() -> None:
    sweep, job = Sweep((250.0, 150.0), Aim("energy"), SHORT), Job()
    job.train(sweep, 1000)
    alone = Job()
    alone.step(150.0)
    assert sweep.tried[1].step_s == pytest.approx(alone.now_s)
    assert sweep.tried[1].step_j == pytest.approx(alone.energy_j)


def test_a_window_in_seconds_is_at_least_that_long() -> None:
    sweep, job = Sweep((250.0,), Aim("energy"), Length(0, 0, 1, seconds=3.0)), Job()
    job.train(sweep, 1000)
    assert 3.0 <= sweep.tried[0].seconds <= 3.2


def test_an_epoch_that_ends_cuts_a_window_off_and_it_begins_anew() -> None:
    sweep, job = Sweep((250.0, 200.0), Aim("energy"), SHORT), Job()
    job.train(sweep, 10)  # the first cap is tried, the second has begun
    assert len(sweep.tried) == 1
    sweep.epoch_ended()
    assert job.train(sweep, 100) == 8  # as many as a whole window takes
    assert [one.steps for one in sweep.tried] == [5, 5]


def test_windows_that_do_not_fit_in_an_epoch_get_shorter_until_they_do() -> None:
    sweep, job = Sweep(caps_between(100.0, 250.0), Aim("energy"), Length(1, 10, 40)), Job()
    for _ in range(60):  # epochs of nine steps
        job.train(sweep, 9)
        sweep.epoch_ended()
    assert sweep.done
    assert max(one.steps for one in sweep.tried) <= 8


def test_ranks_are_combined_at_the_same_step() -> None:
    sweep = Sweep((250.0,), Aim("energy"), SHORT, gpus=2, combine=lambda s, j: (s + 1.0, 2 * j))
    Job().train(sweep, 100)
    alone = Sweep((250.0,), Aim("energy"), SHORT)
    Job().train(alone, 100)
    assert sweep.tried[0].seconds == pytest.approx(alone.tried[0].seconds + 1.0)
    assert sweep.tried[0].joules == pytest.approx(2 * alone.tried[0].joules)


def test_caps_go_down_in_steps_and_never_below_the_least() -> None:
    assert caps_between(100.0, 250.0) == (250.0, 225.0, 200.0, 175.0, 150.0, 125.0, 100.0)
    assert caps_between(90.0, 150.0) == (150.0, 125.0, 100.0, 90.0)
    assert caps_between(150.0, 150.0) == (150.0,)


def test_each_aim_chooses_its_own() -> None:
    tried = [
        Tried(250, 1, 1.0, 240.0),
        Tried(200, 1, 1.05, 200.0),
        Tried(150, 1, 1.3, 180.0),
        Tried(100, 1, 2.2, 220.0),
    ]
    chosen = {text: best(tried, Aim.parse(text), 250.0).cap_w for text in (
        "time", "energy", "cost:1", "cost:0", "slowdown:1.1", "slowdown:1.5", "watts:195", "watts:50",
    )}  # fmt: skip
    assert chosen == {
        "time": 250, "energy": 150, "cost:1": 150, "cost:0": 250, "slowdown:1.1": 200, "slowdown:1.5": 150,
        "watts:195": 200, "watts:50": 100,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["joy", "cost:2", "cost:x", "slowdown:0.5", "watts", "watts:-5", ""])
def test_what_is_no_aim_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"aim|cost|slowdown|watts"):
        Aim.parse(text)


def test_aims_are_read_as_they_are_written() -> None:
    for text in ("energy", "time", "cost:0.7", "slowdown:1.2", "watts:180"):
        assert str(Aim.parse(text)) == text

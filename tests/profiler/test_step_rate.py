"""Step rates, and steps found in the output of a command."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.profiler.step_rate import STEP_PATTERN, OutputStepCounter, estimate_rate


def test_even_steps_have_an_exact_rate() -> None:
    rate = estimate_rate([0.5 * i for i in range(101)], list(range(101)), 20)
    assert rate is not None
    assert rate.steps_s == pytest.approx(2.0)
    assert rate.stderr == pytest.approx(0.0, abs=1e-9)
    assert rate.steps == 80


def test_warm_up_steps_are_left_out() -> None:
    slow = [float(i) for i in range(11)]
    rate = estimate_rate(slow + [10 + 0.1 * (i + 1) for i in range(100)], list(range(111)), 10)
    assert rate is not None
    assert rate.steps_s == pytest.approx(10.0)


def test_steps_in_bursts_have_the_same_rate_and_error() -> None:
    times_s = [float(i // 8) for i in range(401)]  # eight workers, all at once
    rate = estimate_rate(times_s, list(range(401)), 0)
    assert rate is not None
    assert rate.steps_s == pytest.approx(8.0, rel=0.02)
    assert rate.stderr < 0.1


def test_a_drifting_rate_has_a_large_error() -> None:
    times_s = [0.01 * i**2 for i in range(101)]
    rate = estimate_rate(times_s, list(range(101)), 0)
    assert rate is not None
    assert rate.stderr > 0.1 * rate.steps_s


@given(
    st.lists(st.tuples(st.floats(1e-3, 10.0), st.integers(1, 9)), min_size=2, max_size=60),
    st.integers(0, 50),
    st.floats(-1e3, 1e3),
)
def test_a_rate_is_steps_over_seconds_from_any_start(
    increments: list[tuple[float, int]], warmup: int, start_s: float
) -> None:
    at_s, done, now_s, count = [], [], start_s, 0
    for passed_s, steps in increments:
        now_s, count = now_s + passed_s, count + steps
        at_s.append(now_s)
        done.append(count)
    rate = estimate_rate(at_s, done, warmup)
    left = [(t, n) for t, n in zip(at_s, done, strict=True) if n >= warmup]
    if len(left) < 2:
        assert rate is None
        return
    assert rate is not None
    assert rate.steps == left[-1][1] - left[0][1]
    assert rate.steps_s == pytest.approx(rate.steps / (left[-1][0] - left[0][0]))
    assert rate.stderr >= 0


@pytest.mark.parametrize(
    "line",
    [
        "step 12",
        "Step: 12, loss 0.5",
        "Epoch 3 | iter 12 | lr 1e-3",
        "iteration=12",
        "train: batch [12/391] 0.1 s",
        "{'loss': 0.3, 'global_step': 12}",
        "global_step=12",
        "2026-11-16 09:00:01 INFO steps 12 done",
        " 31%|███       | 12/391 [00:03<01:33,  4.05it/s]",
        "Epoch 0:   3%|▎  | 12/391 [00:03<01:33,  4.05it/s, loss=2.3]",
    ],
)
def test_common_lines_contain_the_step_number(line: str) -> None:
    counter = OutputStepCounter(STEP_PATTERN)
    assert not counter.add_line("loading 7 files, 10/12 done")
    assert counter.add_line(line.replace("12", "2", 1))
    assert counter.add_line(line)
    assert counter.steps == 10


@pytest.mark.parametrize("line", ["loss 12", "epoch 12", "2026/11/16 12:00", "footstep 12", "batch size: 12"])
def test_other_lines_are_not_steps(line: str) -> None:
    assert not OutputStepCounter(STEP_PATTERN).add_line(line)


def test_step_numbers_may_skip_and_restart_with_an_epoch() -> None:
    counter = OutputStepCounter(STEP_PATTERN)
    for number in (0, 50, 100, 100, 0, 50):
        counter.add_line(f"step {number}")
    assert counter.steps == 200


def test_a_pattern_without_a_number_counts_one_step_per_line() -> None:
    counter = OutputStepCounter("tick|tock")
    assert [counter.add_line(line) for line in ("tick", "tock", "boom")] == [True, True, False]
    assert counter.steps == 2


def test_the_last_state_of_a_redrawn_progress_bar_counts() -> None:
    counter = OutputStepCounter(r"step (\d+)")
    counter.add_line("step 1")
    counter.add_line("step 2 step 3 step 4")
    assert counter.steps == 3

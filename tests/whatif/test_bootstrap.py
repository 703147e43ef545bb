"""Intervals of ratios."""

import math

import numpy as np

from wattline.whatif.bootstrap import Ratio, average_seeds, bootstrap_ratio


def test_a_constant_ratio_has_no_spread_because_blocks_are_paired() -> None:
    busy = np.array([1.0, 100.0, 5.0, 30.0, 2.0, 80.0])
    ratio = bootstrap_ratio(0.8 * busy, busy)
    assert np.allclose((ratio.value, ratio.low, ratio.high), 0.8)


def test_the_interval_covers_the_true_ratio_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        theirs = rng.gamma(5.0, 1.0, 30)
        ratio = bootstrap_ratio(theirs * rng.normal(0.9, 0.15, 30), theirs)
        covered += ratio.low <= 0.9 <= ratio.high
    assert 170 <= covered <= 200  # 95 % of 200 are 190


def test_one_block_has_no_interval() -> None:
    assert not bootstrap_ratio(np.array([2.0]), np.array([4.0])).has_interval
    assert bootstrap_ratio(np.array([2.0]), np.array([4.0])).value == 0.5
    assert math.isnan(bootstrap_ratio(np.array([2.0]), np.array([0.0])).value)


def test_seeds_are_averaged_with_students_interval() -> None:
    mean = average_seeds([Ratio(0.9), Ratio(1.1), Ratio(1.0)])
    assert math.isclose(mean.value, 1.0)
    assert math.isclose(mean.high - mean.value, 4.302653 * 0.1 / math.sqrt(3), rel_tol=1e-6)


def test_seeds_that_change_nothing_keep_the_interval_over_blocks() -> None:
    assert average_seeds([Ratio(0.9, 0.8, 1.0), Ratio(0.9, 0.8, 1.0)]) == Ratio(0.9, 0.8, 1.0)

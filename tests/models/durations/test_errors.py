"""Errors of estimated durations."""

import numpy as np

from wattline.models.durations.errors import measure_errors


def test_errors_are_factors_in_both_directions() -> None:
    errors = measure_errors(np.array([50.0, 200.0, 100.0, 1000.0]), np.full(4, 100.0))
    assert (errors.count, errors.within_factor_2, errors.too_short) == (4, 0.75, 0.25)
    assert round(errors.median_factor, 6) == 2.0


def test_jobs_without_an_estimate_do_not_count() -> None:
    errors = measure_errors(np.array([np.nan, 100.0, 10.0]), np.array([5.0, 100.0, 0.0]))
    assert (errors.count, errors.median_factor) == (1, 1.0)
    assert str(measure_errors(np.array([np.nan]), np.ones(1))) == "no estimate was made"

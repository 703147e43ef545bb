"""Shares of GPU kinds, in cases small enough to do by hand and against the linear program."""

import numpy as np
import pytest

from wattline.core.table import Floats
from wattline.policy.gavel.max_min import maximise_least_value
from wattline.policy.gavel.objectives import ShareProblem, compute_isolated_throughputs, compute_shares


def build_problem(steps_s: Floats, room: Floats, *, equal: bool = False, **columns: Floats) -> ShareProblem:
    count = len(steps_s)
    one = {name: np.ones(count) for name in ("gpus", "weight", "steps_left", "age_s", "isolated_s")}
    return ShareProblem(
        steps_s=steps_s, possible=steps_s > 0, room=room, equal_speeds=equal, **{**one, **columns}
    )


def test_max_min_fairness_gives_the_fast_kind_to_the_job_that_gains_more() -> None:
    # The example of Gavel's paper: one V100 and one K80; the first job gains four times, the second twice.
    shares = compute_shares(build_problem(np.array([[4.0, 1.0], [2.0, 1.0]]), np.ones(2)), "maxmin")
    values = (shares * [[4.0, 1.0], [2.0, 1.0]]).sum(axis=1) / np.array([2.5, 1.5])
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    assert values.min() > 1.0  # more than half of each
    assert shares[0, 0] > shares[1, 0]


def test_the_makespan_is_least_when_all_jobs_end_together() -> None:
    problem = build_problem(np.array([[2.0], [2.0]]), np.ones(1), steps_left=np.array([300.0, 100.0]))
    assert compute_shares(problem, "makespan")[:, 0] == pytest.approx([0.75, 0.25], abs=1e-6)


def test_fair_finish_times_give_more_to_a_job_that_has_waited() -> None:
    problem = build_problem(
        np.ones((2, 1)), np.ones(1), steps_left=np.full(2, 1000.0), age_s=np.array([2000.0, 0.0])
    )
    shares = compute_shares(problem, "ftf")[:, 0]
    assert shares[0] > shares[1]
    assert shares.sum() == pytest.approx(1.0, abs=1e-3)


def test_wide_jobs_get_a_smaller_fraction_of_time() -> None:
    problem = build_problem(np.ones((3, 1)), np.array([4.0]), gpus=np.array([1.0, 4.0, 4.0]))
    shares = compute_shares(problem, "maxmin")[:, 0]
    assert shares[1] * 4 == pytest.approx(shares[2] * 4, rel=1e-6)
    assert shares[0] >= shares[1]


@pytest.mark.parametrize("seed", range(20))
def test_equal_kinds_are_filled_to_the_optimum_of_the_linear_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, room = int(rng.integers(1, 12)), np.array([8.0, 4.0])
    gpus, left = rng.choice([1.0, 2.0, 4.0], count), rng.uniform(10, 500, count)
    problem = build_problem(np.ones((count, 2)), room, equal=True, gpus=gpus, steps_left=left)
    shares = compute_shares(problem, "makespan")
    _, least = maximise_least_value(np.repeat(1 / left[:, None], 2, axis=1), gpus, room, problem.possible)
    assert (shares.sum(axis=1) / left).min() == pytest.approx(least, rel=1e-6)
    assert (gpus[:, None] * shares).sum() == pytest.approx(min(12.0, gpus.sum()), rel=1e-6)


def test_an_isolated_job_has_its_part_of_every_kind_but_not_more_than_all_its_time() -> None:
    problem = build_problem(np.array([[4.0, 2.0]]), np.array([1.0, 3.0]))
    assert compute_isolated_throughputs(problem) == pytest.approx([0.25 * 4 + 0.75 * 2])


def test_no_jobs_need_no_shares() -> None:
    problem = build_problem(np.empty((0, 2)), np.ones(2))
    for objective in ("maxmin", "ftf", "makespan"):
        assert compute_shares(problem, objective).shape == (0, 2)

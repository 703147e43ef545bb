"""Step time model: fit and online updates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.synthetic_workloads import SPEED, max_relative_error
from wattline.measurement.settings import Settings
from wattline.models.speed import Speed, fit_speed

WIDE = {(1, 1), (2, 1), (4, 1), (8, 1), (4, 2), (8, 2), (16, 2), (16, 4), (32, 4)}


def settings(
    *gpus_nodes: tuple[int, int], local: tuple[float, ...] = (8.0, 16.0, 32.0, 64.0, 128.0)
) -> Settings:
    rows = [(g, n, g * b) for g, n in sorted(gpus_nodes) for b in local]
    gpus, nodes, batch = np.array(rows, dtype=np.float64).T
    return Settings.of(gpus=gpus, nodes=nodes, batch=batch)


def step_s(speed: Speed, rows: Settings) -> np.ndarray:
    return speed.compute_s(rows.local_batch) + speed.sync_s(rows.gpus, rows.nodes)


def one(speed: Speed, batch: float, gpus: float = 1, nodes: float = 1) -> float:
    return float(step_s(speed, Settings.of(gpus=gpus, nodes=nodes, batch=batch * gpus))[0])


def fitted(truth: Speed, rows: Settings, noise: float = 0.0, seed: int = 0) -> Speed:
    wrong = np.exp(noise * np.random.default_rng(seed).standard_normal(len(rows)))
    return fit_speed(rows, step_s(truth, rows) * wrong, np.full(len(rows), max(noise, 0.01)))


def test_a_step_is_the_sum_of_its_parts() -> None:
    speed = Speed(1.0, 0.1, 0.2, 2.0, 0.5, 3.0, 0.25)
    assert one(speed, 9) == pytest.approx(1 + 0.9 + 0.6)
    assert one(speed, 9, 2) == pytest.approx(2.5 + 2)
    assert one(speed, 9, 8) == pytest.approx(2.5 + 2 + 0.5 * 6)
    assert one(speed, 9, 8, 2) == pytest.approx(2.5 + 2 + 0.5 * 2 + 3)
    assert one(speed, 9, 16, 4) == pytest.approx(2.5 + 2 + 0.5 * 2 + 3 + 0.25 * 2)


def test_a_step_does_not_depend_on_its_neighbours() -> None:
    rows = settings(*WIDE)
    alone = [float(step_s(SPEED, rows.take(slice(r, r + 1)))[0]) for r in range(len(rows))]
    assert step_s(SPEED, rows).tolist() == alone


def test_every_coefficient_is_found_again() -> None:
    truth = Speed(0.02, 0.001, 0.0, 0.012, 0.003, 0.02, 0.005)
    found = fitted(truth, settings(*WIDE))
    for name in ("fixed_s", "sample_s", "second_gpu_s", "more_gpus_s", "second_node_s", "more_nodes_s"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=1e-3), name
    assert found.root_s == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "truth",
    [SPEED, Speed(0.05, 5e-4, 0.0, 0.001, 0.0, 0.05, 0.0), Speed(0.0, 2e-3, 4e-3, 0.01, 0.001, 0.0, 0.002)],
)
def test_settings_that_were_left_out_are_predicted_through_noise(truth: Speed, seed: int) -> None:
    found = fitted(truth, settings(*WIDE), noise=0.01, seed=seed)
    unseen = settings((1, 1), (6, 1), (12, 2), (8, 4), (24, 3), local=(12.0, 48.0, 100.0))
    assert max_relative_error(step_s(found, unseen), step_s(truth, unseen)) < 0.03


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(WIDE)), st.floats(1, 512), st.floats(1e-3, 10)),
        min_size=1,
        max_size=12,
    )
)
def test_more_work_and_more_gpus_never_make_a_step_shorter(rows: list) -> None:
    gpus, nodes = np.array([row[0] for row in rows], dtype=np.float64).T
    batch, seconds = np.array([row[1:] for row in rows]).T
    found = fit_speed(
        Settings.of(gpus=gpus, nodes=nodes, batch=batch * gpus), seconds, np.full(len(rows), 0.01)
    )
    computes = found.compute_s(np.linspace(1, 1024, 50))
    assert np.isfinite(computes).all()
    assert (computes > 0).all()
    assert (np.diff(computes) >= 0).all()
    inside = found.sync_s(np.arange(1.0, 17.0), np.ones(16))
    assert inside[0] == 0.0
    assert (np.diff(inside) >= 0).all()
    full = found.sync_s(8 * np.arange(1.0, 9.0), np.arange(1.0, 9.0))
    assert (np.diff(full) >= 0).all()


def test_one_batch_size_only_means_steps_in_proportion_to_it() -> None:
    found = fitted(SPEED, settings((1, 1), (4, 1), local=(32.0,)))
    assert found.fixed_s == found.root_s == 0.0
    assert one(found, 64) == pytest.approx(2 * one(found, 32))


def test_one_gpu_only_means_perfect_scaling() -> None:
    found = fitted(SPEED, settings((1, 1)))
    assert one(found, 32, 64, 8) == one(found, 32)


@pytest.mark.parametrize(
    ("measured", "gpus"),
    [(((1, 1), (2, 1)), 2), (((1, 1), (2, 1), (4, 1), (8, 1)), 8), (((1, 1), (8, 1)), 4)],
)
def test_until_a_second_node_is_measured_it_costs_a_tenth_more_than_staying_on_one(
    measured: tuple[tuple[int, int], ...], gpus: float
) -> None:
    found = fitted(SPEED, settings(*measured))
    inside, across = found.sync_s(np.array([gpus, gpus]), np.array([1.0, 2.0]))
    assert inside > 0
    assert across >= 1.1 * inside * (1 - 1e-9)


def test_a_second_node_costs_what_it_was_measured_to() -> None:
    truth = Speed(0.02, 0.001, 0.0, 0.012, 0.0, 0.0, 0.0)
    found = fitted(truth, settings((1, 1), (2, 1), (4, 1), (4, 2), (8, 2)))
    assert found.second_node_s == pytest.approx(0.0, abs=1e-6)


def test_a_bend_has_to_earn_its_place() -> None:
    rows = settings((1, 1), local=(1, 2, 4, 8, 16, 32, 64, 128))
    assert fitted(Speed(0.02, 0.001), rows, noise=0.01, seed=1).root_s == 0.0
    bent = fitted(Speed(0.0, 0.001, 0.02), rows, noise=0.01, seed=1)
    assert bent.root_s == pytest.approx(0.02, rel=0.1)


def looked(speed: Speed, truth: Speed, rows: Settings, times: int = 1) -> Speed:
    """Return *speed* updated with unthrottled steps of *truth*."""
    for _ in range(times):
        speed = speed.observe(rows, np.ones(len(rows)), step_s(truth, rows))
    return speed


@pytest.mark.parametrize("factor", [0.4, 0.7, 1.5, 4.0])
def test_a_few_observations_are_enough_to_learn(factor: float) -> None:
    truth = Speed(*(factor * value for value in vars(SPEED).values() if isinstance(value, float)))
    for row in (Settings.of(batch=32), Settings.of(gpus=8, nodes=2, batch=256)):
        seen = looked(SPEED, truth, row, 3)
        assert max_relative_error(step_s(seen, row), step_s(truth, row)) < 0.03


def test_many_looks_at_several_settings_find_all_of_the_truth() -> None:
    truth = Speed(0.05, 0.002, 0.0, 0.04, 0.001, 0.06, 0.01)
    seen = looked(SPEED, truth, settings(*WIDE), 12)
    unseen = settings((6, 1), (12, 2), (24, 3), local=(12.0, 48.0))
    assert max_relative_error(step_s(seen, unseen), step_s(truth, unseen)) < 0.03


def test_observations_of_one_gpu_keep_the_scaling_coefficients() -> None:
    slower = Speed(0.03, 0.0015)
    seen = looked(SPEED, slower, Settings.of(batch=[32, 64]), 3)
    for gpus, nodes in ((2, 1), (8, 1), (8, 2), (32, 4)):
        was, now = (s.sync_s(np.array([1.0 * gpus]), np.array([1.0 * nodes]))[0] for s in (SPEED, seen))
        assert now == pytest.approx(was, rel=0.05)


def test_many_observations_of_one_gpu_keep_the_scaling_coefficients() -> None:
    seen = looked(SPEED, Speed(0.03, 0.0015), Settings.of(batch=[32, 64]), 100)
    assert one(seen, 32, 8, 2) - one(seen, 32) == pytest.approx(
        one(SPEED, 32, 8, 2) - one(SPEED, 32), rel=0.05
    )


def test_a_slow_second_node_does_not_make_one_gpu_slow() -> None:
    known = fitted(SPEED, settings((1, 1), (2, 1), (4, 1), (8, 1)))
    truth = Speed(0.02, 0.001, 0.0, 0.012, 0.003, 0.3, 0.0)
    row = Settings.of(gpus=8, nodes=2, batch=256)
    seen = looked(known, truth, row, 3)
    assert max_relative_error(step_s(seen, row), step_s(truth, row)) < 0.05
    assert one(seen, 32) == pytest.approx(one(known, 32), rel=0.1)
    assert one(seen, 32, 8) == pytest.approx(one(known, 32, 8), rel=0.1)


def test_a_throttled_step_tells_what_a_free_one_takes() -> None:
    truth = Speed(0.04, 0.002, 0.0, 0.01)
    row = Settings.of(gpus=[1, 2], batch=[32, 64])
    throttled = 2 * truth.compute_s(row.local_batch) + truth.sync_s(row.gpus, row.nodes)
    seen = SPEED
    for _ in range(4):
        seen = seen.observe(row, np.full(2, 2.0), throttled)
    assert max_relative_error(step_s(seen, row), step_s(truth, row)) < 0.03


@given(st.lists(st.tuples(st.sampled_from(sorted(WIDE)), st.floats(1, 512), st.floats(0.2, 5)), max_size=20))
def test_after_any_observation_steps_stay_positive_and_grow_with_the_work(rows: list) -> None:
    speed = SPEED
    for (gpus, nodes), batch, factor in rows:
        row = Settings.of(gpus=gpus, nodes=nodes, batch=batch * gpus)
        speed = speed.observe(row, np.ones(1), factor * step_s(SPEED, row))
    computes = speed.compute_s(np.linspace(1, 1024, 50))
    assert np.isfinite(computes).all()
    assert (computes > 0).all()
    assert (np.diff(computes) >= 0).all()
    assert (speed.sync_s(np.arange(1.0, 17.0), np.ones(16)) >= 0).all()


def test_speed_prints_its_coefficients_and_nothing_else() -> None:
    seen = looked(Speed(0.02, 0.001), SPEED, Settings.of(batch=32))
    assert str(Speed(0.02, 0.001)).startswith("Speed(fixed_s=0.02, sample_s=0.001, root_s=0.0")
    assert "known" not in str(seen)

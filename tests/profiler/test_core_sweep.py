"""Selection of core counts to measure, and estimates for the others."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.errors import ConfigError
from wattline.measurement.points import read_profile, write_profile
from wattline.models.demand import DemandModel
from wattline.models.fit import fit
from wattline.profiler.core_sweep import (
    MEMORY_SHARES,
    CoreSweep,
    SpeedPoint,
    build_profile,
    interpolate_speed,
)

CORES = tuple(float(c) for c in range(1, 25))
GRID = np.array(CORES)


@st.composite
def loaders(draw: st.DrawFn) -> tuple[DemandModel, float]:
    """Return a loader and the seconds of its GPU per sample: up to some core count the loader is slower."""
    core_s = draw(st.floats(1e-3, 1e-1))
    fixed_s = draw(st.sampled_from((0.0, 0.05, 0.2))) * core_s
    enough = draw(st.floats(0.5, 48.0))
    demand = DemandModel(fixed_s, core_s, core_s * draw(st.floats(0.02, 2.0)), draw(st.floats(1.0, 500.0)))
    return demand, fixed_s + core_s / enough


def speed(loader: tuple[DemandModel, float], cpus: np.ndarray, mem_gib: float = np.nan) -> np.ndarray:
    demand, gpu_s = loader
    return 1 / np.maximum(demand.sample_s(cpus, np.full(len(cpus), mem_gib)), gpu_s)


def relative_error(estimate: np.ndarray, truth: np.ndarray) -> np.ndarray:
    return np.abs(estimate / truth - 1.0)


def measure_speeds(
    loader: tuple[DemandModel, float], noise: float = 0.0, seed: int = 0
) -> dict[float, float]:
    rng = np.random.default_rng(seed)
    return CoreSweep(CORES)(
        lambda c: float(speed(loader, np.array([c]))[0] * (1 + noise * rng.uniform(-1, 1)))
    )


def build_points(known: dict[float, float]) -> list[SpeedPoint]:
    return [SpeedPoint(c, s, 0.01 * s, 30) for c, s in known.items()]


def measure_linear(most: float) -> dict[float, float]:
    return CoreSweep(CORES)(lambda c: min(c, most))


def test_all_cores_are_measured_first_and_then_the_fewest() -> None:
    assert list(measure_linear(99.0))[:2] == [24, 1]


def test_a_job_that_is_as_fast_on_one_core_is_measured_twice() -> None:
    known = CoreSweep(CORES)(lambda c: 100.0 + c / 10)
    assert list(known) == [24, 1]
    assert CoreSweep(CORES).is_flat(known)
    assert not CoreSweep(CORES).is_flat(measure_linear(4.0))


def test_a_machine_with_one_core_is_measured_once() -> None:
    known = CoreSweep((1.0,))(lambda c: 5.0)
    assert known == {1.0: 5.0}
    assert not CoreSweep((1.0,)).is_flat(known)


def test_a_sharp_bend_is_located() -> None:
    known = measure_linear(8.0)
    assert len(known) <= 8
    assert relative_error(interpolate_speed(known, GRID), np.minimum(GRID, 8.0)).max() < 0.03


@given(loaders(), st.floats(0.0, 0.3))
def test_intervals_with_nearly_equal_ends_are_left_alone(
    loader: tuple[DemandModel, float], threshold: float
) -> None:
    known: dict[float, float] = {}
    sweep = CoreSweep(CORES, threshold, points=24)
    while (cpus := sweep.next_cpus(known)) is not None:
        if len(known) >= 2:
            below, above = max(c for c in known if c < cpus), min(c for c in known if c > cpus)
            assert known[above] / known[below] - 1 >= threshold
        known[cpus] = float(speed(loader, np.array([cpus]))[0])
    for below, above in itertools.pairwise(sorted(known)):
        assert above - below == 1 or known[above] / known[below] - 1 < threshold


@given(st.lists(st.floats(0.1, 1e4), min_size=24, max_size=24), st.integers(2, 24))
def test_a_sweep_ends_within_its_points(speeds: list[float], most: int) -> None:
    requested = []

    def measure(cpus: float) -> float:
        requested.append(cpus)
        return speeds[int(cpus) - 1]

    known = CoreSweep(CORES, points=most)(measure)
    assert len(requested) == len(set(requested)) == len(known) <= most
    assert set(requested) <= set(CORES)
    estimate = interpolate_speed(known, GRID)
    assert np.isfinite(estimate).all()
    assert (estimate > 0).all()
    assert all(estimate[int(c) - 1] == s for c, s in known.items())


@given(loaders(), st.integers(0, 8))
def test_an_interrupted_sweep_resumes_with_the_same_points(
    loader: tuple[DemandModel, float], done: int
) -> None:
    whole = measure_speeds(loader)
    known = dict(itertools.islice(whole.items(), done))
    requested = []

    def measure(cpus: float) -> float:
        requested.append(cpus)
        return whole[cpus]

    assert CoreSweep(CORES)(measure, known) == whole
    assert requested == list(whole)[done:]


@given(loaders())
def test_core_counts_that_were_not_measured_are_estimated_within_3_percent(
    loader: tuple[DemandModel, float],
) -> None:
    assert relative_error(interpolate_speed(measure_speeds(loader), GRID), speed(loader, GRID)).max() < 0.03


@given(loaders(), st.integers(0, 99))
def test_noise_of_1_percent_stays_noise(loader: tuple[DemandModel, float], seed: int) -> None:
    errors = relative_error(interpolate_speed(measure_speeds(loader, 0.01, seed), GRID), speed(loader, GRID))
    assert errors.mean() < 0.015
    assert errors.max() < 0.05


@given(loaders())
def test_the_whole_matrix_is_estimated_within_3_percent_for_a_tenth_of_the_work(
    loader: tuple[DemandModel, float],
) -> None:
    known = measure_speeds(loader)
    assert 10 * len(known) <= len(CORES) * len(MEMORY_SHARES)
    demand, _ = loader
    for share in np.linspace(0, 1, 11):
        mem_gib = float(share * demand.dataset_gib)
        estimate = demand.speed_with_memory(interpolate_speed(known, GRID), np.full(24, mem_gib))
        assert relative_error(estimate, speed(loader, GRID, mem_gib)).max() < 0.03


@pytest.mark.parametrize("count", range(2, 65))
def test_any_machine_is_profiled_with_a_tenth_of_the_work(count: int) -> None:
    cores = tuple(float(c + 1) for c in range(count))
    assert 10 * len(CoreSweep(cores)(lambda c: c)) <= count * len(MEMORY_SHARES)


@given(loaders(), st.sampled_from((1, 4)))
def test_models_fitted_to_the_table_match_the_loader(
    tmp_path_factory: pytest.TempPathFactory, loader: tuple[DemandModel, float], gpus: int
) -> None:
    truth, gpu_s = loader
    known = {c * gpus: s * gpus for c, s in measure_speeds(loader).items()}
    table = build_profile(
        build_points(known), model="m", gpu="v100", gpus=gpus, batch=32 * gpus, demand=truth, read_mib_s=500.0
    )
    path = tmp_path_factory.mktemp("table") / "p.csv"
    write_profile(table, path)
    workload = fit(read_profile(path)).workloads[0]
    for share in (0.0, 0.3, 0.6, 0.9, 1.0):
        mem_gib = float(share * truth.dataset_gib)
        estimate = workload.sensitivity_matrix(GRID, np.array([mem_gib]))[:, 0]
        # Within 5 % of the GPU's speed it is undecidable whether the cores limit the speed.
        assert relative_error(estimate, speed(loader, GRID, mem_gib)).max() < 0.055, (share, gpu_s)


def test_measured_and_derived_rows_can_be_distinguished(tmp_path: Path) -> None:
    demand = DemandModel(core_s=0.01, storage_s=0.02, dataset_gib=100.0)
    table = build_profile(
        build_points({1.0: 100.0, 2.0: 200.0}),
        model="m",
        gpu="v100",
        gpus=1,
        batch=8,
        demand=demand,
        read_mib_s=50,
    )
    assert len(table) == 2 + 2 * len(MEMORY_SHARES)
    is_measured = np.isnan(table.mem_gib)
    assert is_measured.tolist() == [True] * 2 + [False] * 20
    assert (np.isnan(table.stderr) == ~is_measured).all()
    assert table.samples_s[:4].tolist() == pytest.approx([100, 200, 50, 50])
    assert table.mem_gib[2:].max() == pytest.approx(90)
    assert table.n.tolist() == [30] * 2 + [1] * 20


def test_without_a_demand_the_table_has_only_measured_rows() -> None:
    table = build_profile(
        build_points({2.0: 5.0, 1.0: 4.0}), model="m", gpu="t4", gpus=1, batch=8, demand=None
    )
    assert table.cpus.tolist() == [1, 2]
    assert table.samples_s.tolist() == [4, 5]
    assert np.isnan(table.mem_gib).all()


def test_fewer_and_more_cores_than_measured_are_in_proportion_and_no_faster() -> None:
    assert interpolate_speed({2.0: 10.0, 4.0: 18.0}, np.array([1.0, 2.0, 4.0, 9.0])).tolist() == [
        5,
        10,
        18,
        18,
    ]


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"grid": ()}, "grid is"),
        ({"grid": (2.0, 1.0)}, "grid is"),
        ({"grid": (0.0, 1.0)}, "grid is"),
        ({"grid": CORES, "threshold": 1.0}, "threshold is 1.0, expected a share"),
        ({"grid": CORES, "points": 1}, "points is 1, expected at least 2"),
    ],
)
def test_invalid_sweeps_are_refused(parameters: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CoreSweep(**parameters)
    assert problem in str(caught.value)

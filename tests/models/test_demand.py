"""Demand of a job for host cores and memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.synthetic_workloads import max_relative_error
from wattline.errors import ConfigError
from wattline.models.demand import DemandModel, fit_demand

FREE = np.nan
CPUS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
MEM_GIB = np.array([20.0, 60.0, 100.0, 140.0, 250.0])
GPU_S = 1 / 500.0  # per sample


def of(demand: DemandModel, cpus: float = FREE, mem_gib: float = FREE) -> float:
    return float(demand.sample_s(np.array([cpus]), np.array([mem_gib]))[0])


def cross(cpus: np.ndarray, mem_gib: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    cores, memory = np.meshgrid(cpus, mem_gib, indexing="ij")
    return cores.reshape(-1), memory.reshape(-1)


def speeds(
    demand: DemandModel, cpus: np.ndarray, mem_gib: np.ndarray, noise: float = 0.0, seed: int = 0
) -> np.ndarray:
    """Return the samples per second of a GPU behind that input pipeline."""
    wrong = np.exp(noise * np.random.default_rng(seed).standard_normal(len(cpus)))
    return wrong / np.maximum(demand.sample_s(cpus, mem_gib), GPU_S)


def test_the_slowest_of_cores_and_storage_rules() -> None:
    demand = DemandModel(fixed_s=0.01, core_s=0.04, storage_s=0.1, dataset_gib=200.0)
    assert of(demand, 4.0, 200.0) == pytest.approx(0.02)
    assert of(demand, 4.0, 100.0) == pytest.approx(0.05)
    assert of(demand, 4.0, 180.0) == pytest.approx(0.02)
    assert of(demand, 4.0, 0.0) == pytest.approx(0.1)


def test_what_is_not_limited_is_enough() -> None:
    demand = DemandModel(fixed_s=0.01, core_s=0.04, storage_s=0.1, dataset_gib=200.0)
    assert of(demand) == 0.0
    assert of(demand, cpus=4.0) == pytest.approx(0.02)
    assert of(demand, mem_gib=50.0) == pytest.approx(0.075)


def test_a_job_with_less_memory_than_it_needs_crawls() -> None:
    demand = DemandModel(core_s=0.04, least_gib=20.0, starved_s=5.0)
    assert of(demand, 4.0, 19.0) == 5.0
    assert of(demand, 4.0, 20.0) == pytest.approx(0.01)


def test_a_cache_that_never_helps_always_reads_from_storage() -> None:
    demand = DemandModel(storage_s=0.1, dataset_gib=np.inf)
    assert of(demand, mem_gib=1e6) == pytest.approx(0.1)


@given(st.tuples(*(st.one_of(st.just(0.0), st.floats(1e-6, most)) for most in (1, 1, 1, 500, 100, 9))))
def test_more_cores_or_memory_never_make_a_sample_slower(parts: tuple[float, ...]) -> None:
    demand = DemandModel(*parts)
    mem_gib = np.linspace(0, 600, 61)
    cpus = np.linspace(0.5, 64, 61)
    for fixed in (0.0, 30.0, 150.0, FREE):
        assert (np.diff(demand.sample_s(cpus, np.full(61, fixed))) <= 0).all()
    for fixed in (0.5, 4.0, 64.0, FREE):
        assert (np.diff(demand.sample_s(np.full(61, fixed), mem_gib)) <= 0).all()


TRUTHS = {
    "cores": DemandModel(core_s=0.02),
    "cores and a fixed part": DemandModel(fixed_s=0.003, core_s=0.02),
    "storage": DemandModel(core_s=0.008, storage_s=0.01, dataset_gib=200.0),
    "a slow disk": DemandModel(core_s=0.008, storage_s=0.05, dataset_gib=150.0),
}


@pytest.mark.parametrize("kind", TRUTHS)
def test_a_demand_is_found_again_with_its_coefficients(kind: str) -> None:
    truth = TRUTHS[kind]
    cpus, mem_gib = cross(CPUS, MEM_GIB)
    found = fit_demand(cpus, mem_gib, speeds(truth, cpus, mem_gib))
    for name, value in vars(truth).items():
        assert getattr(found, name) == pytest.approx(value, rel=0.02, abs=1e-6), name


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", TRUTHS)
def test_a_demand_is_found_again_through_noise(kind: str, seed: int) -> None:
    truth = TRUTHS[kind]
    cpus, mem_gib = cross(CPUS, MEM_GIB)
    found = fit_demand(cpus, mem_gib, speeds(truth, cpus, mem_gib, noise=0.01, seed=seed))
    unseen = cross(np.array([1.5, 3.0, 6.0, 12.0]), np.array([40.0, 80.0, 120.0, 220.0]))
    assert max_relative_error(speeds(found, *unseen), speeds(truth, *unseen)) < 0.05


def test_cores_and_memory_varied_one_at_a_time_are_enough() -> None:
    truth = TRUTHS["storage"]
    cpus = np.concatenate((CPUS, np.full(len(MEM_GIB), FREE)))
    mem_gib = np.concatenate((np.full(len(CPUS), FREE), MEM_GIB))
    found = fit_demand(cpus, mem_gib, speeds(truth, cpus, mem_gib))
    assert found.core_s == pytest.approx(truth.core_s, rel=0.02)
    assert found.storage_s == pytest.approx(truth.storage_s, rel=0.02)
    assert found.dataset_gib == pytest.approx(truth.dataset_gib, rel=0.02)


def test_memory_alone_tells_about_storage() -> None:
    truth = TRUTHS["a slow disk"]
    cpus = np.full(len(MEM_GIB), FREE)
    found = fit_demand(cpus, MEM_GIB, speeds(truth, cpus, MEM_GIB))
    assert (found.fixed_s, found.core_s) == (0.0, 0.0)
    assert found.storage_s == pytest.approx(truth.storage_s, rel=0.02)
    assert found.dataset_gib == pytest.approx(truth.dataset_gib, rel=0.02)


def test_one_short_amount_of_memory_puts_the_data_set_between_it_and_the_next() -> None:
    mem_gib = np.array([50.0, 300.0, 400.0])
    found = fit_demand(np.full(3, FREE), mem_gib, np.array([100.0, 500.0, 500.0]))
    assert found.dataset_gib > 50
    assert speeds(found, np.full(3, FREE), mem_gib) == pytest.approx([100, 500, 500], rel=0.02)


def test_starvation_is_distinguished_from_cache_misses() -> None:
    truth = DemandModel(core_s=0.008, least_gib=100.0, starved_s=2.0)
    cpus, mem_gib = cross(CPUS, MEM_GIB)
    found = fit_demand(cpus, mem_gib, speeds(truth, cpus, mem_gib))
    assert max_relative_error(speeds(found, cpus, mem_gib), speeds(truth, cpus, mem_gib)) < 0.02
    assert found.starved_s == pytest.approx(2.0, rel=0.02)
    assert 60 < found.least_gib <= 100


def test_a_crawl_below_a_cache_that_helps_is_both() -> None:
    truth = DemandModel(core_s=0.008, storage_s=0.01, dataset_gib=200.0, least_gib=60.0, starved_s=2.0)
    cpus, mem_gib = cross(CPUS, MEM_GIB)
    found = fit_demand(cpus, mem_gib, speeds(truth, cpus, mem_gib))
    assert max_relative_error(speeds(found, cpus, mem_gib), speeds(truth, cpus, mem_gib)) < 0.02
    assert found.dataset_gib == pytest.approx(200.0, rel=0.02)
    assert found.starved_s == pytest.approx(2.0, rel=0.02)


def test_enough_of_everything_asks_for_nothing() -> None:
    assert fit_demand(CPUS, np.full(5, FREE), np.full(5, 500.0)) == DemandModel()


@given(
    st.lists(
        st.tuples(
            st.one_of(st.just(FREE), st.sampled_from(CPUS.tolist())),
            st.one_of(st.just(FREE), st.sampled_from(MEM_GIB.tolist())),
            st.floats(1, 1000),
        ),
        min_size=2,
        max_size=12,
        unique_by=lambda row: repr(row[:2]),
    )
)
def test_whatever_was_measured_a_demand_is_finite_and_more_never_hurts(rows: list) -> None:
    cpus, mem_gib, samples_s = np.array(rows).T
    found = fit_demand(cpus, mem_gib, samples_s)
    assert all(value >= 0 for value in vars(found).values())
    assert np.isfinite([found.fixed_s, found.core_s, found.storage_s, found.starved_s]).all()
    grid = np.linspace(1, 400, 50)
    for fixed in (1.0, 8.0, FREE):
        seconds = found.sample_s(np.full(50, fixed), grid)
        assert np.isfinite(seconds).all()
        assert (np.diff(seconds) <= 1e-12).all()


def test_the_memory_axis_follows_from_the_cpu_axis() -> None:
    samples_s = np.minimum(CPUS / 0.02, 500.0)
    demand = DemandModel.from_core_sweep(
        CPUS, samples_s, dataset_gib=200.0, sample_kib=100.0, storage_mib_s=50.0
    )
    assert demand.core_s == pytest.approx(0.02)
    assert 1 / of(demand, 16.0, 0.0) == pytest.approx(50 * 1024 / 100)  # all of it from storage
    assert 1 / of(demand, 16.0, 100.0) == pytest.approx(1 / max(0.02 / 16, 0.5 / 512))


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("dataset_gib", 0.0),
        ("dataset_gib", np.inf),
        ("sample_kib", -1.0),
        ("sample_kib", FREE),
        ("storage_mib_s", 0.0),
    ],
)
def test_a_data_set_that_cannot_be_is_refused(knob: str, value: float) -> None:
    known = {"dataset_gib": 200.0, "sample_kib": 100.0, "storage_mib_s": 50.0, knob: value}
    with pytest.raises(ConfigError, match=f"{knob} is {value}, expected a"):
        DemandModel.from_core_sweep(CPUS, CPUS * 50.0, **known)


def test_a_gpu_reads_from_storage_what_its_cache_does_not_hold() -> None:
    demand = DemandModel(storage_s=0.01, dataset_gib=200.0)
    read = demand.storage_mib_s(np.array([100.0, 100.0, 100.0]), np.array([0.0, 150.0, 300.0]), 1024.0)
    assert read == pytest.approx([100.0, 25.0, 0.0])

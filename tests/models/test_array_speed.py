"""Step time and memory of fused arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.core.jobs import Jobs
from wattline.models.array_speed import DEFAULT_SERIAL, ArrayModel, count_group_members, fit_array

FUSE = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
UNKNOWN = np.full(5, np.nan)


def test_an_array_slows_down_with_every_member_and_fills_memory() -> None:
    array = ArrayModel(serial=0.5, shared_gib=2.0, member_gib=3.0)
    assert array.slowdown(np.array([1.0, 2.0, 5.0])).tolist() == [1.0, 1.5, 3.0]
    assert array.peak_gib(np.array([1.0, 2.0, 5.0])).tolist() == [5.0, 8.0, 17.0]


@pytest.mark.parametrize(("gib", "members"), [(40.0, 12), (38.0, 12), (37.9, 11), (5.0, 1), (1.0, 1)])
def test_as_many_members_fit_as_there_is_memory_and_always_one(gib: float, members: int) -> None:
    assert ArrayModel(0.5, 2.0, 3.0).max_width(gib) == members


def test_a_job_of_unknown_memory_is_not_fused() -> None:
    assert ArrayModel().max_width(1000.0) == 1


@pytest.mark.parametrize("serial", [0.0, 0.1, 0.65, 1.0, 1.3])
def test_serial_share_and_memory_are_found_again(serial: float) -> None:
    truth = ArrayModel(serial, 1.5, 2.5)
    found = fit_array(FUSE, truth.slowdown(FUSE), truth.peak_gib(FUSE))
    assert found.serial == pytest.approx(serial, abs=1e-9)
    assert (found.shared_gib, found.member_gib) == pytest.approx((1.5, 2.5))


@pytest.mark.parametrize("seed", range(5))
def test_serial_share_and_memory_are_found_again_through_noise(seed: int) -> None:
    truth = ArrayModel(0.4, 1.5, 2.5)
    wrong = 1 + 0.01 * np.random.default_rng(seed).standard_normal((2, 5))
    found = fit_array(FUSE, truth.slowdown(FUSE) * wrong[0], truth.peak_gib(FUSE) * wrong[1])
    assert found.serial == pytest.approx(0.4, rel=0.05)
    assert found.peak_gib(np.array([6.0, 12.0])) == pytest.approx(
        truth.peak_gib(np.array([6.0, 12.0])), rel=0.03
    )


def test_an_unmeasured_array_gains_a_little_and_shares_no_memory() -> None:
    found = fit_array(np.ones(2), np.full(2, np.nan), np.array([3.0, 3.2]))
    assert found.serial == DEFAULT_SERIAL
    assert found.peak_gib(np.array([4.0])) == pytest.approx([4 * 3.2])
    assert np.isnan(fit_array(np.ones(2), np.full(2, np.nan), np.full(2, np.nan)).member_gib)


def test_memory_of_one_width_alone_is_not_shared() -> None:
    found = fit_array(np.array([1.0, 4.0]), np.array([np.nan, 2.0]), np.array([np.nan, 12.0]))
    assert (found.shared_gib, found.member_gib) == (0.0, 3.0)


@given(
    st.lists(st.tuples(st.integers(1, 16), st.floats(1e-3, 50), st.floats(0.1, 80)), min_size=1, max_size=8)
)
def test_whatever_was_measured_more_members_never_take_less_time_or_memory(rows: list) -> None:
    fuse, slowdown, peak_gib = np.array(rows, dtype=np.float64).T
    found = fit_array(fuse, np.where(fuse > 1, slowdown, np.nan), peak_gib)
    assert (np.diff(found.slowdown(np.arange(1.0, 30.0))) >= 0).all()
    assert (np.diff(found.peak_gib(np.arange(1.0, 30.0))) > 0).all()
    assert found.peak_gib(np.ones(1))[0] > 0
    assert found.max_width(80.0) >= 1


def test_a_group_is_an_array_if_all_of_it_have_the_same_key() -> None:
    jobs = Jobs.of(submit_s=[0.0] * 6, gpus=[1] * 6, duration_s=[1.0] * 6, fuse=["a", "a", "a", "b", "", ""])
    job = np.array([0, 1, 2, 3, 4, 5])
    for group, members, fused in (
        ([0, 0, 2, 3, 4, 4], [2, 2, 1, 1, 2, 2], [True, True, False, False, False, False]),
        ([0, 0, 0, 0, 4, 5], [4, 4, 4, 4, 1, 1], [False] * 6),
    ):
        found = count_group_members(jobs, job, np.array(group))
        assert (found[0].tolist(), found[1].tolist()) == (members, fused)

"""Ways to run a job, as columns."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.errors import ConfigError
from wattline.measurement.points import Profile
from wattline.measurement.settings import KNOBS, Settings


def test_settings_default_to_one_gpu_on_one_node_and_the_rest_unset() -> None:
    settings = Settings.of()
    assert len(settings) == 1
    assert {k: getattr(settings, k)[0] for k in ("gpus", "nodes", "fuse")} == {
        "gpus": 1,
        "nodes": 1,
        "fuse": 1,
    }
    for name in ("batch", "cap_w", "clock_mhz", "cpus", "mem_gib"):
        assert np.isnan(getattr(settings, name)).all(), name


def test_a_knob_that_is_none_is_not_set() -> None:
    settings = Settings.of(gpus=None, cap_w=None, batch=8)
    assert (settings.gpus[0], settings.batch[0]) == (1, 8)
    assert np.isnan(settings.cap_w[0])


@given(st.integers(1, 9), st.sets(st.sampled_from(KNOBS), min_size=1))
def test_numbers_and_columns_are_stretched_to_one_length(length: int, long: set[str]) -> None:
    settings = Settings.of(**{name: [2.0] * length if name in long else 2.0 for name in KNOBS})
    assert len(settings) == length
    assert all(getattr(settings, name).tolist() == [2.0] * length for name in KNOBS)


def test_columns_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Settings.of(gpus=[1, 2]).gpus[0] = 4


def test_the_batch_of_one_gpu_is_its_share_and_one_where_unknown() -> None:
    settings = Settings.of(gpus=[1, 4, 4], batch=[32, 32, math.nan])
    assert settings.local_batch.tolist() == [32, 8, 1]


BAD = [
    *((name, value) for name in ("gpus", "nodes", "fuse") for value in (0, -1, 1.5, math.nan, math.inf)),
    *((name, value) for name in ("batch", "cap_w", "clock_mhz", "cpus") for value in (0, -1, math.inf)),
    *(("mem_gib", value) for value in (-1, math.inf)),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_knob_that_cannot_be_set_so_is_named_with_its_value(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is {value:g}, expected a (whole|finite) number"):
        Settings.of(**{"gpus": 4, name: [2, value]})


def test_a_job_may_have_no_memory_for_a_cache() -> None:
    assert Settings.of(mem_gib=0).mem_gib.tolist() == [0]


def test_what_is_expected_of_memory_is_what_is_accepted() -> None:
    with pytest.raises(ConfigError, match="mem_gib is -1, expected a finite number of at least 0"):
        Settings.of(mem_gib=-1)


def test_there_are_no_more_nodes_than_gpus() -> None:
    with pytest.raises(ConfigError, match="nodes is 4, expected at most the number of GPUs, 2"):
        Settings.of(gpus=[8, 2], nodes=4)


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match="gpus has 2 values, expected 1 or 3"):
        Settings.of(gpus=[1, 2], batch=[8, 16, 32])
    with pytest.raises(ConfigError, match="batch has 4 values"):
        Settings.of(batch=[[8, 16], [32, 64]])


def test_a_misspelt_knob_gets_a_hint() -> None:
    with pytest.raises(ConfigError, match="gpu is not a knob, expected some of gpus, nodes, batch") as caught:
        Settings.of(gpu=4)
    assert caught.value.hint == "did you mean gpus?"


def test_jobs_use_the_fewest_nodes_by_default() -> None:
    assert Settings.of(gpus=[1, 8, 9, 64]).nodes.tolist() == [1, 1, 2, 8]
    assert Settings.of(gpus=[1, 8, 9, 64], nodes=1).nodes.tolist() == [1, 1, 1, 1]
    profile = Profile.of(model="m", gpu="t4", gpus=[8, 16, 16], nodes=[np.nan, np.nan, 4], samples_s=1.0)
    assert profile.nodes.tolist() == [1, 2, 4]

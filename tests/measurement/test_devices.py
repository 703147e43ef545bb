"""What is built in about GPUs is possible."""

import math

import pytest

from wattline.errors import ConfigError
from wattline.measurement.devices import DEVICES, device


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_draws_more_the_more_it_does_and_its_knobs_have_a_range(name: str) -> None:
    it = DEVICES[name]
    assert it.name == name == name.casefold()
    assert 0 < it.idle_w < it.busy_w <= it.max_w < math.inf
    assert it.idle_w < it.min_cap_w < it.max_cap_w == it.max_w
    assert 0 < it.min_clock_mhz < it.max_clock_mhz < math.inf
    assert 0 < it.base_w < math.inf
    assert 8 <= it.mem_gib < math.inf


def test_a_device_is_found_in_any_case() -> None:
    assert device("A100-PCIe") is DEVICES["a100-pcie"]


def test_an_unknown_device_lists_the_known_ones_with_a_hint() -> None:
    with pytest.raises(
        ConfigError, match="unknown GPU kind 'V1000', expected one of k80, p100, v100"
    ) as caught:
        device("V1000")
    assert caught.value.hint == "did you mean v100?"

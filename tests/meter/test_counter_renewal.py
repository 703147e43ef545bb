"""Measured renewal periods of meters."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattline.meter import open_meter
from wattline.meter.counter_renewal import measure_counter_periods


def test_the_period_of_each_gpu_is_measured(tmp_path: Path) -> None:
    meter = open_meter(f"simulated:2xv100,state={tmp_path},counter=40")
    found = measure_counter_periods(meter)
    assert set(found) == {gpu.uuid for gpu in meter.gpus}
    assert all(period_s == pytest.approx(0.04, abs=0.02) for period_s in found.values())


def test_virtual_time_does_not_pass_by_reading(tmp_path: Path) -> None:
    meter = open_meter(f"simulated:1xv100,state={tmp_path},time=virtual,counter=40")
    assert measure_counter_periods(meter) == {}
    assert measure_counter_periods(open_meter("none")) == {}

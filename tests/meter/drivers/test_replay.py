"""Recorded readings are replayed unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattline.errors import ConfigError, MeterError, NotPermitted, ProfileError
from wattline.meter import open_meter
from wattline.meter.drivers.replay import COLUMNS

HEAD = ",".join(COLUMNS)


def write_recording(tmp_path: Path, *rows: str, head: str = HEAD) -> str:
    path = tmp_path / "readings.csv"
    path.write_text("\n".join((head, *rows, "")))
    return str(path)


def test_each_step_advances_to_the_next_row(tmp_path: Path) -> None:
    path = write_recording(tmp_path, "10,0,100,5000,250", "11,0,120,5110,250", "13,0,80,5310,200")
    meter = open_meter(f"replay:{path},time=virtual")
    (gpu,) = meter.gpus
    seen = []
    for _ in range(3):
        seen.append((meter.now_s(), gpu.power_w(), gpu.energy_j(), gpu.cap_w()))
        meter.stepped(1)
    assert seen == [(10, 100, 5000, 250), (11, 120, 5110, 250), (13, 80, 5310, 200)]
    assert gpu.cap_range_w() == (200, 250)


def test_energy_is_interpolated_between_rows(tmp_path: Path) -> None:
    path = write_recording(tmp_path, "0,0,100,0,", "0,1,10,0,", "1,1,10,10,", "2,0,100,200,", "2,1,10,20,")
    meter = open_meter(f"replay:{path},time=virtual")
    meter.stepped(1)
    assert [gpu.energy_j() for gpu in meter.gpus] == [100, 10]


def test_without_a_counter_power_is_integrated(tmp_path: Path) -> None:
    path = write_recording(tmp_path, "0,3,100", "2,3,200", "3,3,200", head="at_s,gpu,power_w")
    meter = open_meter(f"replay:{path},time=virtual")
    meter.stepped(1)
    meter.stepped(1)
    (gpu,) = meter.gpus
    assert gpu.energy_j() == pytest.approx(300 + 200)
    assert (gpu.index, gpu.name) == (0, "recorded GPU 3")
    for unknown in (gpu.cap_w, gpu.cap_range_w, gpu.temperature_c):
        with pytest.raises(MeterError, match="not recorded"):
            unknown()


def test_reading_after_the_end_is_an_error(tmp_path: Path) -> None:
    meter = open_meter(f"replay:{write_recording(tmp_path, '0,0,100,0,250', '1,0,100,100,250')},time=virtual")
    for _ in range(2):
        meter.stepped(1)
    with pytest.raises(MeterError, match="the recording ends at 1 s"):
        meter.gpus[0].energy_j()


def test_in_real_time_the_clock_starts_at_the_first_row(tmp_path: Path) -> None:
    meter = open_meter(f"replay:{write_recording(tmp_path, '100,0,50,0,250', '700,0,50,30000,250')}")
    assert 100 <= meter.now_s() < 160
    assert meter.gpus[0].energy_j() <= meter.gpus[0].energy_j()
    with pytest.raises(NotPermitted, match="recording"):
        meter.gpus[0].set_cap(200)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0,0,-5,0,250", ":3: power_w is '-5', expected a number of at least 0"),
        ("x,0,5,0,250", ":3: at_s is 'x'"),
        ("5,0,nan,0,250", ":3: power_w is 'nan'"),
        ("5,0,,0,250", ":3: power_w is ''"),
        ("0,0,5,0,250", ":3: at_s is 0, expected later"),
    ],
)
def test_a_broken_row_is_named_by_file_and_line(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        open_meter(f"replay:{write_recording(tmp_path, '0,0,5,0,250', row)}")


def test_a_file_that_is_not_a_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="has no column power_w"):
        open_meter(f"replay:{write_recording(tmp_path, '1,2', head='at_s,gpu')}")
    with pytest.raises(ProfileError, match="has no readings"):
        open_meter(f"replay:{write_recording(tmp_path)}")
    with pytest.raises(ConfigError, match="cannot be read"):
        open_meter(f"replay:{tmp_path / 'nothing.csv'}")
    with pytest.raises(ConfigError, match="has no file"):
        open_meter("replay:")

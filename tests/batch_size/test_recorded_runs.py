"""Recorded trainings in a directory of tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wattline.batch_size.recorded_runs import read_tables
from wattline.errors import NotFound, ProfileError

TRAIN = """dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch
a,net,8,adam,1e-3,1,0.5,3
a,net,8,adam,1e-3,1,0.6,5
a,net,8,adam,1e-3,2,0.6,
a,net,16,adam,1e-3,1,0.6,7
a,net,32,adam,1e-3,1,0.6,nan
b,net,4,sgd,1e-3,1,0.9,2
"""
POWER = """dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power
a,net,16,adam,200,1.5,190
a,net,16,adam,100,2.5,95
a,net,8,adam,100,3,90
a,net,8,adam,200,2,180
a,net,8,sgd,100,9,99
a,net,64,adam,300,1,100
"""


def written(folder: Path, train: str = TRAIN, power: str = POWER) -> Path:
    (folder / "summary_train.csv").write_text(train)
    (folder / "summary_power_x9.csv").write_text(power)
    return folder


def test_trained_and_measured_batch_sizes_are_joined(tmp_path: Path) -> None:
    found = read_tables(written(tmp_path))
    assert (found.gpus, found.datasets) == (("x9",), ("a", "b"))
    a = found.select_training("a", "x9", 0.6)
    assert a is not None
    assert (a.batches, a.caps_w.tolist(), a.max_w) == ((8, 16), [100, 200], 300)
    assert a.seconds.tolist() == [[3, 2], [2.5, 1.5]]
    assert a.watts.tolist() == [[90, 180], [95, 190]]
    assert np.array_equal(a.epochs[0], [5, np.nan], equal_nan=True)
    assert found.select_training("b", "x9", 0.9) is None


OF_TRAIN, OF_POWER = "summary_train.csv", "summary_power_x9.csv"


@pytest.mark.parametrize(
    ("table", "old", "new", "says"),
    [
        (OF_TRAIN, ",8,adam,1e-3,2", ",x,adam,1e-3,2", "4: batch_size is 'x', expected a whole number of at"),
        (OF_TRAIN, "0.6,7", "0.6,7.5", "5: target_epoch is '7.5', expected a whole number"),
        (OF_TRAIN, "a,net,8,adam,1e-3,1,0.5", ",net,8,adam,1e-3,1,0.5", "2: dataset is '', expected a name"),
        (OF_POWER, "2.5,95", "0,95", "3: time_per_epoch is '0', expected a number above 0"),
        (OF_POWER, "2.5,95", "2.5", "3: has 6 fields, expected 7"),
        (OF_POWER, "average_power", "watts", "1: has no column average_power"),
    ],
)
def test_an_invalid_field_is_named_with_file_and_line(
    tmp_path: Path, table: str, old: str, new: str, says: str
) -> None:
    written(tmp_path)
    (tmp_path / table).write_text((tmp_path / table).read_text().replace(old, new))
    with pytest.raises(ProfileError, match=f"{table}:{says}"):
        read_tables(tmp_path)


def test_a_table_without_rows_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=f"{OF_POWER}: has no rows"):
        read_tables(written(tmp_path, power=POWER.splitlines()[0] + "\n"))


@pytest.mark.parametrize("row", ["", "a,net,8,adam,100,,90\n", "a,net,8,adam,100,3,nan\n"])
def test_a_limit_that_is_missing_is_left_out_of_its_batch_size(tmp_path: Path, row: str) -> None:
    lines = POWER.splitlines(keepends=True)
    found = read_tables(written(tmp_path, power="".join([*lines[:3], row, *lines[4:]])))
    a = found.select_training("a", "x9", 0.6)
    assert a is not None
    assert (a.batches, a.caps_w.tolist()) == ((8, 16), [100, 200])
    assert np.array_equal(a.seconds, [[np.nan, 2], [2.5, 1.5]], equal_nan=True)
    assert np.array_equal(a.watts, [[np.nan, 180], [95, 190]], equal_nan=True)


def test_a_batch_size_without_any_measurement_is_left_out(tmp_path: Path) -> None:
    power = POWER.replace("100,3,90", "100,,90").replace("200,2,180", "200,2,")
    a = read_tables(written(tmp_path, power=power)).select_training("a", "x9", 0.6)
    assert a is not None
    assert a.batches == (16,)


def test_duplicate_limits_are_named(tmp_path: Path) -> None:
    lines = POWER.splitlines(keepends=True)
    twice = read_tables(written(tmp_path, power="".join([*lines, lines[1]])))
    with pytest.raises(ProfileError, match=r":8: batch_size 16 at power_limit 200 appears twice"):
        twice.select_training("a", "x9", 0.6)


def test_unknown_names_are_reported(tmp_path: Path) -> None:
    found = read_tables(written(tmp_path))
    with pytest.raises(NotFound, match="only of x9"):
        found.measurements_on("v100")
    with pytest.raises(NotFound, match="has no data set c"):
        found.select_training("c", "x9", 0.6)
    with pytest.raises(NotFound, match=r"no target 0\.7, only 0\.5, 0\.6"):
        found.select_training("a", "x9", 0.7)


def test_a_directory_without_tables_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"summary_power_<gpu>\.csv"):
        read_tables(tmp_path)
    (tmp_path / "summary_power_v100.csv").write_text(POWER)
    with pytest.raises(ProfileError, match=r"summary_train.csv: cannot be read"):
        read_tables(tmp_path)


@pytest.mark.slow
def test_the_published_tables_are_read_and_runs_of_another_optimiser_left_out(data: Path) -> None:
    found = read_tables(data / "zeus")
    assert {"a40", "v100"} <= set(found.gpus)
    assert (len(found.runs), len(found.power["v100"]), len(found.power["a40"])) == (3759, 476, 453)
    cifar = found.select_training("cifar100", "v100", 0.6)
    assert cifar is not None
    assert (cifar.optimizer, len(cifar.batches), len(cifar.caps_w)) == ("adadelta", 10, 7)

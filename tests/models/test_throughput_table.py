"""Speeds by GPU kind from a table of throughputs."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.errors import InputError, NotFitted
from wattline.models.throughput_table import read_throughput_table

TABLE = {
    "v100": {
        "('ResNet-50 (batch size 64)', 1)": {"null": 4.0, "('LM', 1)": [2.0, 1.0]},
        "('ResNet-50 (batch size 64)', 4)": {"null": 8.0},
        "('LM', 1)": {"null": 10.0},
    },
    "k80": {
        "('ResNet-50 (batch size 64)', 1)": {"null": 1.0},
        "('ResNet-50 (batch size 64)', 4)": {"null": 0.0},
        "('LM', 1)": {"null": 5.0},
    },
    "v100_unconsolidated": {"('LM', 1)": {"null": 1.0}},
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "table.json.gz"
    file.write_bytes(gzip.compress(json.dumps(TABLE).encode()))
    return str(file)


def build_jobs(**columns: object) -> Jobs:
    given = {"submit_s": [0, 0], "gpus": [1, 1], "steps": [400, 100], "step_s": [9.0, 9.0]}
    return Jobs.of(**{**given, "model": ["ResNet-50", "LM"], "batch": [64, 0], **columns})  # type: ignore[arg-type]


def test_a_job_takes_its_steps_divided_by_the_throughput_of_the_kind(path: str) -> None:
    table = read_throughput_table(path)
    jobs = table.time_jobs(build_jobs())
    rows = np.arange(2)
    for kind, seconds in (("v100", [100.0, 10.0]), ("K80", [400.0, 20.0])):
        speed = table.speed(jobs, Grants.of(rows, jobs.gpus, kind=kind))
        assert jobs.duration_s / speed == pytest.approx(seconds)
    assert table.speed(jobs, Grants.of(rows, jobs.gpus)) == pytest.approx([1.0, 1.0])


def test_other_numbers_of_gpus_are_interpolated_and_gain_nothing_beyond_the_last(path: str) -> None:
    table = read_throughput_table(path)
    gpus = np.array([1, 2, 4, 8])
    speed = table.speed(build_jobs(), Grants.of(np.zeros(4, dtype=np.int64), gpus, kind="v100"))
    assert speed == pytest.approx([1.0, 2**0.5, 2.0, 2.0])


def test_a_job_does_not_accept_a_kind_on_which_the_table_has_0(path: str) -> None:
    jobs = read_throughput_table(path).time_jobs(build_jobs(gpus=[4, 1]))
    assert jobs.gpu_kind.words() == ["v100", ""]


def test_what_the_table_lacks_is_refused(path: str) -> None:
    table = read_throughput_table(path)
    with pytest.raises(NotFitted, match=r"table.json.gz has no job type 'LM \(batch size 5\)' on v100"):
        table.time_jobs(build_jobs(batch=[64, 5]))
    with pytest.raises(NotFitted, match="has no GPU kind 'a100', only v100, k80"):
        table.speed(build_jobs(), Grants.of(np.arange(2), np.ones(2, dtype=np.int64), kind="a100"))


def test_a_file_of_another_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_throughput_table(str(tmp_path / "none.json"))
    for text in ("[]", "{}", '{"v100": {"LM": {"null": 1}}}', '{"v100": {"(\'LM\', 1)": {}}}', "x"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(InputError, match=r"bad\.json"):
            read_throughput_table(str(tmp_path / "bad.json"))

"""`wattline profile` as a user types it."""

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import wattline.cli.models.profile_command as command
from support.command_line import parse_strict_json, run_command, run_json_command
from wattline.cli import main
from wattline.measurement.points import read_profile
from wattline.profiler.core_sweep import SpeedPoint
from wattline.profiler.cpu_limits import CpuLimits
from wattline.profiler.run import JobDied, Patience, ProfiledJob


class Machine:
    """Eight cores and a virtual clock: a job of known speed is measured in no time."""

    def __init__(self) -> None:
        self.speed: Callable[[float], float] = lambda cpus: 100 * min(cpus, 5.0)
        self.asked: list[float] = []
        self.breaks_after = 99

    def measure(
        self,
        job: ProfiledJob,
        cpus: float,
        limit: CpuLimits,
        patience: Patience,
        report: Callable[[float], None],
    ) -> SpeedPoint:
        if len(self.asked) == self.breaks_after:
            raise JobDied("the command failed with exit code 3 before its first step\n  | no such file")
        self.asked.append(cpus)
        report(0.5)
        samples_s = self.speed(cpus) * job.batch
        return SpeedPoint(cpus, samples_s, 0.004 * samples_s, 40)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    found = Machine()
    monkeypatch.setattr(command, "measure_speed", found.measure)
    monkeypatch.setattr(command, "limit_cpus", lambda: nullcontext(CpuLimits(tuple(range(8)))))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return found


JOB = ["--", sys.executable, "train.py", "--lr", "0.1"]
DATA = ["--dataset", "100G", "--sample", "128K", "--storage", "50MiB/s"]


def test_profile_prints_these_keys_as_json(capsys: pytest.CaptureFixture[str], machine: Machine) -> None:
    code, out, err = run_command(capsys, "profile", "--batch", "4", "--gpu", "V100", "--json", *DATA, *JOB)
    found = parse_strict_json(out)
    assert code == 0
    assert "limited by CPU affinity" in err
    assert (found["model"], found["gpu"], found["gpus"], found["batch"]) == ("train", "v100", 1, 4)
    assert found["command"] == JOB[1:]
    assert found["limited_by"] == "CPU affinity"
    assert [p["cpus"] for p in found["measured"]] == sorted(machine.asked)
    assert found["measured"][0] == {"cpus": 1, "samples_s": 400, "stderr": 1.6, "steps": 40}
    assert found["data"] == {"dataset_gib": 100, "sample_kib": 128, "storage_mib_s": 50}
    assert len(found["derived"]) == 10 * len(machine.asked)
    assert found["derived"][0] == {"cpus": 1, "mem_gib": 0, "samples_s": pytest.approx(400)}
    assert found["flat"] is False
    assert found["enough"] == {"cpus": 5, "mem_gib": pytest.approx(80)}
    assert found["cost"] == {"points": len(machine.asked), "cells": 80}
    assert found["cost"]["cells"] >= 10 * found["cost"]["points"]


@pytest.mark.slow
def test_the_table_is_read_by_fit(capsys: pytest.CaptureFixture[str], machine: Machine) -> None:
    main(["profile", "--batch", "4", "--gpu", "v100", *DATA, *JOB])
    capsys.readouterr()
    table = read_profile("profile.csv")
    points = len(machine.asked)
    assert len(table) == 11 * points
    assert table.cpus[:points].tolist() == sorted(machine.asked)
    assert np.isnan(table.mem_gib[:points]).all()
    assert not np.isnan(table.stderr[:points]).any()
    assert not np.isnan(table.mem_gib[points:]).any()
    assert np.isnan(table.stderr[points:]).all()
    fitted = run_json_command(capsys, "fit", "profile.csv")["workloads"][0]
    demand = fitted["parameters"]["demand"]
    assert demand["core_s"] == pytest.approx(1 / 400, rel=0.02)
    assert demand["dataset_gib"] == pytest.approx(100, rel=0.02)
    assert demand["storage_s"] == pytest.approx(0.125 / 50, rel=0.02)
    asked = ["--model", "train", "--gpu", "v100", "--cpus", "4", "--mem", "40G", "--batch", "4"]
    predicted = run_json_command(capsys, "predict", "--profile", "profile.csv", *asked)
    assert predicted["samples_s"] == pytest.approx(50 / 0.125 / 0.6, rel=0.03)


def test_the_file_names_its_command_and_marks_derived_rows(
    capsys: pytest.CaptureFixture[str], machine: Machine, tmp_path: Path
) -> None:
    code = main(["profile", "--out", "p.csv", *DATA, *JOB[:2], "-c", 'a = 1, "b"\nc'])
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert code == 0
    assert lines[0].startswith("# measured by wattline profile: ")
    assert lines[2 + len(machine.asked)] == (
        "# derived from the rows above; of 100 GiB a cache keeps its share"
    )
    assert len(read_profile("p.csv")) == 11 * len(machine.asked)


def test_the_text_names_enough_cores_and_memory(capsys: pytest.CaptureFixture[str], machine: Machine) -> None:
    code, out, err = run_command(capsys, "profile", "--batch", "4", "--gpu", "v100", *DATA, *JOB)
    assert code == 0
    assert out.startswith("train on v100, 1 GPU: ")
    assert "core counts measured, limited by CPU affinity" in out
    assert "5 cores and 80 GiB for the cache are enough: 98 % of its best speed" in out
    assert "times less work" in out
    assert "  8 cores: 2000 samples/s ± 0.9 %, 40 steps" in err


def test_a_speed_that_does_not_depend_on_cores_is_recognised(
    capsys: pytest.CaptureFixture[str], machine: Machine
) -> None:
    machine.speed = lambda cpus: 100.0
    _, out, err = run_command(capsys, "profile", *JOB)
    assert "its speed does not depend on cores: 1 core is enough" in out
    assert "a sample is a step: add --batch if a step has more" in out
    assert "for the memory axis add --data DIR" in err
    assert machine.asked == [8, 1]


def test_a_job_that_could_use_more_cores_is_recognised(
    capsys: pytest.CaptureFixture[str], machine: Machine
) -> None:
    machine.speed = lambda cpus: cpus
    assert "it uses all 8 cores, and might use more" in run_command(capsys, "profile", *JOB)[1]


def test_an_interrupted_profile_resumes(capsys: pytest.CaptureFixture[str], machine: Machine) -> None:
    machine.breaks_after = 3
    code, out, err = run_command(capsys, "profile", *JOB)
    assert (code, out) == (1, "")
    assert "failed with exit code 3" in err
    assert "  | no such file" in err
    assert len(read_profile("profile.csv")) == 3
    machine.breaks_after = 99
    code, _, err = run_command(capsys, "profile", *JOB)
    assert code == 0
    assert "resuming: 3 points are known" in err
    resumed = list(machine.asked)
    machine.asked.clear()
    main(["profile", "--out", "whole.csv", *JOB])
    assert machine.asked == resumed
    assert Path("whole.csv").read_text() == Path("profile.csv").read_text()


def test_a_finished_profile_measures_nothing_but_may_get_a_memory_axis(
    capsys: pytest.CaptureFixture[str], machine: Machine
) -> None:
    main(["profile", *JOB])
    count = len(machine.asked)
    assert len(read_profile("profile.csv")) == count
    main(["profile", *DATA, *JOB])
    assert len(machine.asked) == count
    assert len(read_profile("profile.csv")) == 11 * count


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--", sys.executable, "other.py"], "holds measurements of another command: "),
        (["--batch", "8", *JOB], "holds measurements of another batch: 1, not 8"),
        (["--gpus", "2", *JOB], "holds measurements of another gpus: 1, not 2"),
    ],
)
def test_another_command_with_the_same_table_is_refused(
    capsys: pytest.CaptureFixture[str], machine: Machine, words: list[str], problem: str
) -> None:
    main(["profile", "--model", "m", *JOB])
    before = Path("profile.csv").read_text()
    code, _, err = run_command(capsys, "profile", "--model", "m", *words)
    assert code == 2
    assert problem in err
    assert "--fresh" in err
    assert Path("profile.csv").read_text() == before
    assert main(["profile", "--model", "m", "--fresh", *words]) == 0


def test_a_foreign_table_is_not_overwritten(capsys: pytest.CaptureFixture[str], machine: Machine) -> None:
    Path("profile.csv").write_text("mine")
    code, _, err = run_command(capsys, "profile", *JOB)
    assert code == 2
    assert "exists" in err
    Path("profile.csv.state").write_text("{}")
    code, _, err = run_command(capsys, "profile", *JOB)
    assert code == 2
    assert "is not a state file of wattline profile" in err
    assert Path("profile.csv").read_text() == "mine"
    assert machine.asked == []


def test_the_data_set_is_sized_and_its_storage_measured_once(
    capsys: pytest.CaptureFixture[str], machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for i in range(128):
        (data / f"{i}.jpg").write_bytes(b"x" * 8192)
    monkeypatch.setattr("wattline.measurement.storage.read_mib_s", lambda *_, **__: 123.0)
    words = ["--data", str(data), "--json", *JOB]
    code, out, err = run_command(capsys, "profile", *words)
    assert code == 0
    assert parse_strict_json(out)["data"] == {"dataset_gib": 2**-10, "sample_kib": 8, "storage_mib_s": 123}
    assert "storage: 123 MiB/s of " in err
    assert ", measured" in err
    assert "remembered (--measure-storage measures it again)" in run_command(capsys, "profile", *words)[2]
    assert "remembered" not in run_command(capsys, "profile", "--measure-storage", *words)[2]


def test_a_data_set_larger_than_memory_causes_a_warning(
    capsys: pytest.CaptureFixture[str], machine: Machine
) -> None:
    words = ["--dataset", "900T", "--sample", "100K", "--storage", "1GB/s"]
    assert (
        "warning: the data set of 9.216e+05 GiB is larger than"
        in run_command(capsys, "profile", *words, *JOB)[2]
    )


@pytest.mark.parametrize(
    ("words", "status", "code", "message"),
    [
        ([], 2, "bad_config", "no command was given"),
        (["--", "nosuchthing"], 3, "not_found", "nosuchthing cannot be started: no such command"),
        (["--step-pattern", "(", *JOB], 2, "bad_config", "is not a regular expression"),
        (["--cpus", "9", *JOB], 2, "bad_config", "--cpus is 9, but this process may use 8 cores"),
        (["--grain", "0.5", *JOB], 2, "bad_config", "--grain 0.5: fractions of a core need a cgroup"),
        (["--grain", "0", *JOB], 2, "bad_config", "--grain is 0"),
        (["--dataset", "1G", *JOB], 2, "bad_config", "--sample is missing"),
        (["--sample", "1K", *JOB], 2, "bad_config", "--dataset is missing"),
        (["--dataset", "1G", "--sample", "1K", "--storage", "0", *JOB], 2, "bad_config", "--storage is 0"),
        (["--dataset", "0G", "--sample", "1K", *JOB], 2, "bad_config", "must be above 0"),
        (["--data", "nowhere", *JOB], 2, "bad_config", "no such file or folder"),
        (["--data", ".", *JOB], 2, "bad_config", "."),
        (["--points", "1", *JOB], 2, "bad_config", "points is 1, expected at least 2"),
        (["--precision", "2", *JOB], 2, "bad_config", "precision is 2"),
        (["--storage", "fast", *JOB], 2, "bad_config", "'fast' is not a bandwidth"),
    ],
)
def test_what_cannot_be_profiled_is_explained(
    capsys: pytest.CaptureFixture[str],
    machine: Machine,
    words: list[str],
    status: int,
    code: str,
    message: str,
) -> None:
    found, out, _ = run_command(capsys, "profile", "--json", *words)
    error = json.loads(out)["error"]
    assert (found, error["code"]) == (status, code)
    assert message in error["message"]
    assert machine.asked == []


def test_a_single_core_allows_no_statement_about_more(
    capsys: pytest.CaptureFixture[str], machine: Machine
) -> None:
    assert "only 1 core could be tried" in run_command(capsys, "profile", "--cpus", "1", *JOB)[1]


def test_the_gpu_kind_is_read_from_the_driver(tmp_path: Path) -> None:
    assert command._detect_gpu_kind(tmp_path) == "cpu"
    for name, kind in (("NVIDIA A100-SXM4-40GB", "a100"), ("Tesla K99", "tesla k99")):
        (tmp_path / "0000").mkdir(exist_ok=True)
        (tmp_path / "0000" / "information").write_text(f"Model: \t\t {name}\nIRQ: 3\n")
        assert command._detect_gpu_kind(tmp_path) == kind


# Real commands

STEPPING = """import itertools, time
from wattline.profiler.step_counter import steps
for batch in steps(itertools.count()):
    time.sleep(0.001)
"""


def test_a_real_command_is_profiled(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.py").write_text(STEPPING)
    most = str(min(2, len(os.sched_getaffinity(0))))
    words = ["--seconds", "0.1", "--warmup", "5", "--cpus", most, "--gpu", "t4"]
    code, out, _ = run_command(capsys, "profile", "--json", *words, "--", sys.executable, "job.py")
    found = parse_strict_json(out)
    assert code == 0
    assert [p["cpus"] for p in found["measured"]] == [float(c + 1) for c in range(int(most))]
    assert read_profile("profile.csv").samples_s.tolist() == [p["samples_s"] for p in found["measured"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.py", "profile.csv", "profile.csv.state"]


def test_a_real_command_that_never_steps_is_a_timeout(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = [sys.executable, "-c", "import time; time.sleep(600)"]
    code, out, _ = run_command(capsys, "profile", "--json", "--first-step", "0.2", "--", *job)
    error = parse_strict_json(out)["error"]
    assert (code, error["code"]) == (124, "no_steps")
    assert "did no step in" in error["message"]
    assert not list(tmp_path.iterdir())


def test_the_output_of_a_real_command_that_dies_is_quoted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run_command(capsys, "profile", "--", sys.executable, "-c", "raise SystemExit('no data')")
    assert (code, out) == (1, "")
    assert "failed with exit code 1 before its first step\n  | no data" in err


def test_sigterm_ends_the_profile(
    capsys: pytest.CaptureFixture[str], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def raise_sigterm(*_: object) -> SpeedPoint:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("went on")

    monkeypatch.setattr(command, "measure_speed", raise_sigterm)
    with pytest.raises(SystemExit) as caught:
        main(["profile", *JOB])
    assert caught.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before

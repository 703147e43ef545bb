"""`wattline shadow --slurm` as a process of its own, beside jobs of others on a real Slurm cluster."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import wattline
from support.command_line import run_command, run_json_command
from support.slurm_cluster import SlurmCluster

Capsys = pytest.CaptureFixture[str]
MAIN = "import sys, wattline.cli; sys.exit(wattline.cli.main())"
DEADLINE_S = 120.0
COMMANDS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "srun", "sacct", "salloc")


class Shadow:
    """A process that watches the partition one, a node with two GPUs; its commands are recorded."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.calls = folder, folder / "calls"
        for name in COMMANDS:
            script = folder / name
            script.write_text(
                f'#!/bin/sh\necho "{name} $*" >> {self.calls}\nexec {shutil.which(name)} "$@"\n'
            )
            script.chmod(0o755)

    def start(self, *words: str) -> None:
        env = {
            **os.environ,
            "PYTHONPATH": str(Path(wattline.__file__).parents[1]),
            "PATH": f"{self._folder}:{os.environ['PATH']}",
        }
        command = [sys.executable, "-c", MAIN, "shadow", "--slurm", "--partition", "one", *words]
        self.messages = self._folder / "stderr"
        with open(self.messages, "wb") as stderr:
            self.process = subprocess.Popen(
                command, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True
            )

    def is_watching(self) -> bool:
        assert self.process.poll() is None, self.messages.read_text()
        return "watching partition one (2 GPUs)" in self.messages.read_text()

    def end(self) -> str:
        self.process.send_signal(signal.SIGINT)
        output, _ = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0, self.messages.read_text()
        return output


@pytest.fixture
def shadow(tmp_path: Path) -> Iterator[Shadow]:
    one = Shadow(tmp_path)
    yield one
    if one.process.poll() is None:
        one.process.kill()
        one.process.wait()


def submit(cluster: SlurmCluster, gpus: int, command: str) -> str:
    flags = ("-p", "one", f"--gres=gpu:{gpus}", "--time=10", "-o", "/dev/null", "--wrap", command)
    return cluster.run("sbatch", "--parsable", *flags).strip()


def find_state(cluster: SlurmCluster, job: str) -> str:
    return cluster.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()


def seconds_between(row: dict[str, str], first: str, last: str) -> float:
    return (datetime.fromisoformat(row[last]) - datetime.fromisoformat(row[first])).total_seconds()


@pytest.mark.slow
def test_a_shadow_reports_what_a_policy_would_have_saved_and_changes_nothing(
    slurm_cluster: SlurmCluster, shadow: Shadow, tmp_path: Path, capsys: Capsys
) -> None:
    # It holds both GPUs, so that Slurm starts none of the others before all have been submitted.
    before = submit(slurm_cluster, 2, f"while [ ! -e {tmp_path}/end ]; do sleep 0.1; done")
    slurm_cluster.wait_for(lambda: find_state(slurm_cluster, before) == "RUNNING")
    log = str(tmp_path / "shadow.jsonl")
    shadow.start("--every", "0.5s", "--policy", "sjf+keep", "--log", log, "--json")
    slurm_cluster.wait_for(shadow.is_watching, DEADLINE_S)
    lengths = ((2, "sleep 9"), (1, "sleep 3"), (2, "sleep 1"))  # Slurm counts whole seconds
    gpus = {submit(slurm_cluster, count, command): count for count, command in lengths}
    (tmp_path / "end").touch()
    slurm_cluster.wait_for(
        lambda: all(find_state(slurm_cluster, job) == "COMPLETED" for job in (before, *gpus)), DEADLINE_S
    )
    running = submit(slurm_cluster, 1, "sleep 1000")
    slurm_cluster.wait_for(lambda: find_state(slurm_cluster, running) == "RUNNING")
    result: dict[str, Any] = json.loads(shadow.end())

    rows = [row for row in slurm_cluster.completed_jobs if row["JobId"] in gpus]
    waits = [seconds_between(row, "SubmitTime", "StartTime") for row in rows]
    times = [seconds_between(row, "SubmitTime", "EndTime") for row in rows]
    lasted = {row["JobId"]: seconds_between(row, "StartTime", "EndTime") for row in rows}
    recorded, simulated = result["recorded"], result["simulated"]
    assert result["jobs"] == 3
    assert result["left_out"]["ran_before"] == 1
    assert result["left_out"]["running"] == 1
    assert recorded["wait_mean_s"] == pytest.approx(sum(waits) / 3)
    assert recorded["jct_mean_s"] == pytest.approx(sum(times) / 3)
    hours = sum(gpus[job] * seconds for job, seconds in lasted.items()) / 3600
    assert recorded["gpu_hours"] == pytest.approx(hours)
    assert simulated["gpu_hours"] == pytest.approx(hours)
    assert simulated["jct_mean_s"] <= recorded["jct_mean_s"]
    assert recorded["energy_gpus_j"] == pytest.approx(simulated["energy_gpus_j"])
    assert result["energy_method"].startswith("estimated, not metered")
    assert result["assumptions"]

    calls = shadow.calls.read_text().splitlines()
    assert {call.split()[0] for call in calls} <= {"squeue", "sinfo", "sacct", "scontrol"}
    assert all(call.split()[1] == "show" for call in calls if call.startswith("scontrol"))
    assert find_state(slurm_cluster, running) == "RUNNING"
    assert [find_state(slurm_cluster, job) for job in (before, *gpus)] == ["COMPLETED"] * 4

    assert run_json_command(capsys, "replay", log, "--policy", "sjf+keep")["same"]
    code, text, _ = run_command(capsys, "report", log)
    assert code == 0
    assert "slurm partition one" in text


@pytest.mark.slow
def test_a_shadow_without_jobs_has_nothing_to_compare(slurm_cluster: SlurmCluster, capsys: Capsys) -> None:
    words = ("shadow", "--slurm", "--partition", "two", "--for", "1s", "--every", "0.5s")
    code, text, _ = run_command(capsys, *words)
    assert code == 0
    assert "0 jobs started and ended meanwhile" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_shadow_needs_a_policy_that_can_hold_its_budget(capsys: Capsys) -> None:
    words = ("shadow", "--slurm", "--partition", "one", "--policy", "fifo", "--budget", "1kW")
    code, _, err = run_command(capsys, *words)
    assert code == 2
    assert "fifo" in err

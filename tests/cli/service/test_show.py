"""`wattline show`, `queue` and `budget` as a user reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import run_command
from support.controllers import wait_until_over
from wattline.cli.service.job_text import format_energies
from wattline.service.controller import Controller

Capsys = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("here")

JOB = """run: python train.py
model: resnet50
deadline: 2099-11-18T09:00+01:00
resources: {gpus: 2, gpu_type: [a100, h100], time: 4h, memory_per_gpu: 1G, cpus_per_gpu: 0.5}
energy: {power: 250W, budget: 3kWh}
"""


@pytest.mark.slow
def test_show_prints_directory_limits_deadline_and_log(
    capsys: Capsys, here: Path, service: Controller
) -> None:
    (here / "job.yaml").write_text(JOB)
    id = run_command(capsys, "submit", "job.yaml")[1].strip()
    wait_until_over(service, id)
    out = run_command(capsys, "show", id)[1]
    rows = {name: value.strip() for name, _, value in (line.partition("  ") for line in out.splitlines())}
    log = service.folder / "jobs" / id / "attempts" / "1" / "rank0.log"
    assert rows["name"] == "train"
    assert rows["directory"] == str(here)
    assert rows["log"] == str(log)
    assert log.exists()
    assert rows["requests"] == "2 GPUs of a100 or h100, for resnet50"
    assert rows["limits"] == (
        "time 4 h, 1 GiB for each GPU, 0.5 cores for each GPU, power 250 W for each GPU, energy 3 kWh, "
        "3 retries"
    )
    assert rows["deadline"].startswith("2099-11-18")
    job = json.loads(run_command(capsys, "show", id, "--json")[1])
    assert (job["workdir"], job["log"], job["model"]) == (str(here), str(log), "resnet50")
    assert job["gpu_types"] == ["a100", "h100"]
    assert job["limits"] == {
        "time_s": 14400.0,
        "memory_gib_per_gpu": 1.0,
        "cpus_per_gpu": 0.5,
        "power_w": 250.0,
        "energy_j": 3 * 3.6e6,
        "retries": 3,
    }
    assert job["deadline_s"] == 4098672000.0


def test_a_column_of_energies_has_one_unit() -> None:
    method = {"energy_method": "simulated"}
    jobs = [
        {"starts": 1, "energy_j": 14.9, **method},
        {"starts": 1, "energy_j": 7.2e6, **method},
        {"starts": 0, "energy_j": 0.0, "energy_method": ""},
        {"starts": 1, "energy_j": None, "energy_method": "unmetered"},
        {"starts": 1, "energy_j": 3.6e6, **method},
    ]
    assert format_energies(jobs) == [
        "<0.001 kWh (simulated)",
        "2 kWh (simulated)",
        "-",
        "unmetered",
        "1 kWh (simulated)",
    ]


def test_a_budget_for_a_team_without_jobs_is_announced(capsys: Capsys, service: Controller) -> None:
    code, out, err = run_command(capsys, "budget", "set", "nosuchteam:2kWh/day")
    run_command(capsys, "budget", "set", "--clear")
    assert (code, out) == (0, "nosuchteam:2kWh/day\n")
    assert "team nosuchteam has a budget, but no job of it was submitted so far" in err

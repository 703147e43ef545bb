from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wattline.backend.engine.slurm import batch_step
from wattline.backend.engine.slurm.attempt_folder import AttemptFolder
from wattline.backend.engine.slurm.energy_files import read_energy
from wattline.backend.engine.slurm.launcher import lease_file, read_attempt
from wattline.errors import ConfigError


def test_the_age_of_a_heartbeat_counts_from_the_claim_before_the_first_one(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path)
    assert folder.heartbeat_age_s() == math.inf
    (tmp_path / "claim.json").write_text("{}")
    assert folder.heartbeat_age_s() < 60
    os.utime(tmp_path / "claim.json", (1.0, time.time() - 1000))
    assert folder.heartbeat_age_s() > 900
    (tmp_path / "heartbeat").write_text("")
    assert folder.heartbeat_age_s() < 60
    assert folder.heartbeat_age_s("n2") > 900
    (tmp_path / "heartbeat.n2").write_text("")
    assert folder.heartbeat_age_s("n2") < 60


def test_an_attempt_is_claimed_or_void_and_never_both(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path)
    assert folder.claim() is None
    assert folder.void()
    assert folder.void()  # again
    assert folder.is_void()
    claimed = tmp_path / "other"
    claimed.mkdir()
    (claimed / "claim.json").write_text('{"pid": 1, "gpus": "0-1"}')
    assert not AttemptFolder(claimed).void()
    assert AttemptFolder(claimed).gpus(["n1"]) == (0, 1)
    assert AttemptFolder(claimed).gpus(["n1", "n2"]) is None


def test_the_last_line_of_the_log_explains_a_batch_step_that_did_not_start(tmp_path: Path) -> None:
    assert AttemptFolder(tmp_path).log_tail() == ""
    (tmp_path / "slurm.log").write_text("one\nslurmstepd: error: execve(): python: No such file\n\n")
    assert AttemptFolder(tmp_path).log_tail() == "slurmstepd: error: execve(): python: No such file"


def test_an_attempt_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "jobs" / "1" / "attempts" / "1"
    folder.mkdir(parents=True)
    lease_file(folder).write_text('{"format": 2}')
    with pytest.raises(
        ConfigError, match=r"lease.json has the format 2, expected 1 at most: start the newer"
    ):
        read_attempt(folder, lambda name: 0)


def test_a_batch_step_refuses_a_launch_file_of_a_newer_version(tmp_path: Path) -> None:
    (tmp_path / "launch.json").write_text('{"format": 2}')
    command = [sys.executable, "-I", "-S", str(batch_step.__file__), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "launch.json has the format 2, expected 1 at most" in done.stderr
    assert not (tmp_path / "claim.json").exists()


NAMES = ("claim.json", "exit.json", "heartbeat", "request", "slurm.log", "energy.n1.json")


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_folder_with_links_and_pipes_changes_and_shows_no_other_file(tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"pid": 1, "gpus": "0", "secret": true}')
    attempt = tmp_path / "1"
    attempt.mkdir()
    for name in NAMES:
        if kind == "link":
            (attempt / name).symlink_to(secret)
        elif kind == "pipe":
            os.mkfifo(attempt / name)
        else:
            (attempt / name).mkdir()
    folder = AttemptFolder(attempt)
    assert (folder.claim(), folder.exit(), folder.log_tail()) == (None, None, "")
    assert folder.gpus(["n1"]) is None
    assert folder.heartbeat_age_s() == 0.0  # nothing is known
    assert read_energy(attempt, "n1") == {"method": "unmetered", "joules": None, "power_w": None}
    folder.request("stop")
    assert not folder.void()
    assert secret.read_text() == '{"pid": 1, "gpus": "0", "secret": true}'
    assert not secret.is_symlink()


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "1", '{"code": "x"}', '{"gpus": "0-99999999"}', '{"gpus": 3}', "\xff"]
)
def test_files_with_any_content_are_read(tmp_path: Path, text: str) -> None:
    for name in ("claim.json", "exit.json", "energy.n1.json"):
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    folder = AttemptFolder(tmp_path)
    assert folder.exit() is None
    assert folder.gpus(["n1"]) in (None, ())
    assert read_energy(tmp_path, "n1")["joules"] is None


@pytest.mark.parametrize(
    ("value", "joules"), [(5, 5.0), (-1, None), (True, None), ("5", None), (1e300, None)]
)
def test_joules_are_numbers(tmp_path: Path, value: object, joules: float | None) -> None:
    (tmp_path / "energy.n1.json").write_text(json.dumps({"method": "nvml", "joules": value}))
    assert read_energy(tmp_path, "n1") == {"method": "nvml", "joules": joules, "power_w": None}

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wattline.backend.engine.slurm import batch_step
from wattline.backend.engine.slurm.attempt_folder import AttemptFolder
from wattline.backend.engine.slurm.launcher import read_attempt
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
    (folder / "lease.json").write_text('{"format": 2}')
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

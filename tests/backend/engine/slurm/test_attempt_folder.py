from __future__ import annotations

import math
import os
import time
from pathlib import Path

from wattline.backend.engine.slurm.attempt_folder import AttemptFolder


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

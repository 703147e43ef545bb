from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import run_command, run_json_command
from wattline.core.quotas import QuotaRule, Quotas
from wattline.loop.log_reader import read_log
from wattline.testing.laws import check_quotas

Capsys = pytest.CaptureFixture[str]


@pytest.mark.parametrize("policy", ["fifo", "priority+fairshare+keep"])
def test_a_simulation_keeps_a_quota_and_its_log_can_be_replayed(
    capsys: Capsys, few: list[str], tmp_path: Path, policy: str
) -> None:
    path = str(tmp_path / "log.jsonl")
    quota = ("--quota", "team:a:gpus=4,share=2")
    report = run_json_command(capsys, "simulate", *few, "--policy", policy, *quota, "--log", path)
    assert "+quota" in report["policy_exact"]
    check_quotas(read_log(path), Quotas((QuotaRule("team", "a", 4),)))
    assert run_json_command(capsys, "replay", path, "--policy", policy, "--models", "library")["same"]


def test_a_quota_of_a_team_without_jobs_is_refused(capsys: Capsys, few: list[str]) -> None:
    code, _, err = run_command(capsys, "simulate", *few, "--quota", "team:vision:gpus=4")
    assert code == 2
    assert "quota of team vision: it has no jobs in" in err
    assert run_command(capsys, "compare", *few, "--policy", "fifo", "--quota", "gpus=4")[0] == 2

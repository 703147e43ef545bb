"""The lower bound of a trace in `simulate`, `compare` and `report`."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import run_command, run_json_command

SCENE = ["--trace", "combined:count=40,seed=3,gpus_total=16", "--cluster", "2xv100:8", "--models", "library"]


def test_simulate_prints_the_bound_and_the_gap(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json_command(capsys, "simulate", *SCENE, "--policy", "afs@buddy+power")
    assert 0 < found["bound_jct_mean_s"] <= found["jct_mean_s"]
    assert found["gap_to_bound"] == pytest.approx(found["jct_mean_s"] / found["bound_jct_mean_s"] - 1)
    assert 0 < found["bound_energy_j"] < found["energy_j"]
    assert found["bound_none"] == ""


def test_every_policy_of_a_comparison_has_its_distance_to_one_bound(
    capsys: pytest.CaptureFixture[str],
) -> None:
    policies = ["--policy", "fifo", "--policy", "afs", "--policy", "fifo+fuse@tune"]
    reports = run_json_command(capsys, "compare", *SCENE, *policies)["reports"]
    assert len({row["bound_jct_mean_s"] for row in reports}) == 1
    assert all(row["gap_to_bound"] >= 0 for row in reports)
    code, out, _ = run_command(capsys, "compare", *SCENE, *policies)
    assert code == 0
    assert "below which no policy can be on this trace" in out


def test_a_report_of_a_log_shows_the_bound_of_its_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = str(tmp_path / "run.jsonl.gz")
    found = run_json_command(capsys, "simulate", *SCENE, "--policy", "fifo", "--log", log)
    again = run_json_command(capsys, "report", log)
    for name in ("bound_jct_mean_s", "gap_to_bound", "bound_energy_j"):
        assert again[name] == found[name]
    _, out, _ = run_command(capsys, "report", log)
    assert "no policy has a mean JCT below" in out


def test_a_long_trace_names_the_flag_that_computes_the_bound(capsys: pytest.CaptureFixture[str]) -> None:
    scene = ["--trace", "synth:count=501,gpus_total=64", "--cluster", "8xv100:8"]
    found = run_json_command(capsys, "simulate", *scene)
    assert (found["bound_jct_mean_s"], found["gap_to_bound"]) == (None, None)
    assert found["bound_none"] == "not computed (501 jobs); type --bound"
    _, out, _ = run_command(capsys, "simulate", *scene)
    assert "none: not computed (501 jobs); type --bound" in " ".join(out.split())
    assert run_json_command(capsys, "simulate", *scene, "--bound")["gap_to_bound"] >= 0


def test_no_number_stands_where_no_bound_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json_command(capsys, "simulate", *SCENE, "--job-failure", "0.5")
    assert found["bound_jct_mean_s"] is None
    assert "jobs may fail" in found["bound_none"]
    found = run_json_command(capsys, "simulate", *SCENE, "--no-bound")
    assert (found["bound_jct_mean_s"], found["bound_none"]) == (None, "")

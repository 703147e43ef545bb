"""`--assume` and `--durations` as a user types them."""

import json
from pathlib import Path

import pytest

from support.command_line import run_command, run_json_command
from support.recorded_trace import build_jobs, write_records


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Sixty jobs with recorded limits, and the cluster to run them on."""
    jobs = build_jobs(60)
    path = write_records(
        tmp_path_factory.mktemp("records") / "r.csv", jobs, jobs.submit_s, jobs.submit_s + jobs.duration_s
    )
    return ["--trace", str(path), "--cluster", "2xv100:4"]


def read_assumptions(found: dict[str, object]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in found["assumptions"]}  # type: ignore[attr-defined]


def test_every_assumption_stands_in_the_log_the_json_and_the_text(
    capsys: pytest.CaptureFixture[str], records: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "run.jsonl"
    found = run_json_command(capsys, "simulate", *records, "--log", str(log))
    assert read_assumptions(found) == {
        "scaling": "request", "watts": "kind", "restart": "30s", "checkpoints": "always",
        "durations": "clairvoyant",
    }  # fmt: skip
    assert json.loads(log.read_text().splitlines()[0])["assumptions"] == found["assumptions"]
    assert set(found["assumptions"][0]) == {"name", "value", "says", "effect"}
    _, out, _ = run_command(capsys, "simulate", *records)
    assert "assumed     scaling request, watts kind, restart 30s" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.slow
def test_elastic_policies_win_only_by_a_named_assumption(
    capsys: pytest.CaptureFixture[str], records: list[str]
) -> None:
    words = ["simulate", *records, "--policy", "powerflow"]
    by_default, linear, amdahl = (
        run_json_command(capsys, *words, *more)["jct_mean_s"]
        for more in ((), ("--assume", "scaling=linear"), ("--assume", "scaling=amdahl:0.5"))
    )
    assert linear < amdahl < by_default


def test_watts_at_the_limit_use_more_energy(capsys: pytest.CaptureFixture[str], records: list[str]) -> None:
    usual = run_json_command(capsys, "simulate", *records)
    limit = run_json_command(capsys, "simulate", *records, "--assume", "watts=limit")
    assert limit["energy_j"] > usual["energy_j"]
    assert limit["jct_mean_s"] == usual["jct_mean_s"]


@pytest.mark.slow
def test_estimates_state_their_error_and_can_be_replayed(
    capsys: pytest.CaptureFixture[str], records: list[str], tmp_path: Path
) -> None:
    results = {}
    for durations in ("clairvoyant", "limit", "history"):
        log = str(tmp_path / f"{durations}.jsonl")
        words = ["--policy", "srtf"]
        results[durations] = run_json_command(
            capsys, "simulate", *records, *words, "--durations", durations, "--log", log
        )
        assert run_json_command(capsys, "replay", log, *words)["same"]
    assert results["clairvoyant"]["estimate_error"] == ""
    assert "off by a factor of" in results["history"]["estimate_error"]
    assert "0 % too short" in results["limit"]["estimate_error"]
    assert results["clairvoyant"]["jct_mean_s"] <= results["history"]["jct_mean_s"]


def test_limits_that_were_not_recorded_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--trace", "synth:count=5", "--cluster", "2xv100:8", "--durations", "limit"]
    code, _, err = run_command(capsys, *words)
    assert code == 2
    assert "records no time limits" in err
    assert "--durations history" in err


@pytest.mark.parametrize("text", ["scaling=square", "speed=1", "watts=none", "scaling"])
def test_unknown_assumptions_are_refused(capsys: pytest.CaptureFixture[str], text: str) -> None:
    words = ["simulate", "--trace", "synth:count=5", "--cluster", "2xv100:8", "--assume", text]
    code, _, err = run_command(capsys, *words)
    assert code == 2
    assert "expected" in err

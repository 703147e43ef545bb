"""`--checkpoint-interval`, `--min-runtime` and the columns of a trace about checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import run_command, run_json_command
from wattline.core.actions import ACTION_VERB, STOP
from wattline.loop.log_reader import read_log
from wattline.trace import read

SYNTH = ["--trace", "synth:count=40,seed=1,gpus_total=16", "--cluster", "2xa100:8", "--policy", "srtf"]


def count_stops(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> int:
    run_json_command(capsys, "simulate", *SYNTH, *words, "--log", str(path))
    return int((read_log(path).actions[:, ACTION_VERB] == STOP).sum())


@pytest.mark.slow
def test_jobs_that_never_save_are_not_stopped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert count_stops(capsys, tmp_path / "usual.jsonl") > 0
    assert count_stops(capsys, tmp_path / "never.jsonl", "--checkpoint-interval", "never") == 0
    assert count_stops(capsys, tmp_path / "long.jsonl", "--min-runtime", "1000h") == 0
    assert count_stops(capsys, tmp_path / "often.jsonl", "--checkpoint-interval", "10m") > 0
    log = read_log(tmp_path / "often.jsonl")
    assert set(log.jobs.checkpoint_s.tolist()) == {600.0}


@pytest.mark.parametrize("text", ["0s", "often", "-5m"])
def test_an_interval_is_a_time_or_never(capsys: pytest.CaptureFixture[str], text: str) -> None:
    code, _, err = run_command(capsys, "simulate", *SYNTH, f"--checkpoint-interval={text}")
    assert code == 2
    assert "--checkpoint-interval" in err


def test_a_trace_has_columns_about_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "submit_s,gpus,duration_s,preemptible,checkpoint_s,min_runtime_s\n"
        "0,1,10,no,never,60\n1,1,10,saved,600,\n2,1,10,,,\n3,1,10,yes,stop,0\n"
    )
    jobs = read(str(path)).jobs
    assert jobs.preemptible.tolist() == [0, 2, 1, 1]
    assert jobs.checkpoint_s.tolist() == [-1.0, 600.0, 0.0, 0.0]
    assert jobs.min_runtime_s.tolist() == [60.0, 0.0, 0.0, 0.0]
    path.write_text("submit_s,gpus,duration_s,preemptible\n0,1,10,perhaps\n")
    with pytest.raises(Exception, match="preemptible is 'perhaps', expected yes, no, or saved"):
        read(str(path))

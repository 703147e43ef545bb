"""Suggestions for misspelt commands, actions, options and keys of job files."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import run_command

Capsys = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["sbumit"], "wattline has no command 'sbumit'", "did you mean submit?"),
        (["log", "3"], "wattline has no command 'log'", "wattline logs JOB prints the output of a job"),
        (["log"], "'log'", "wattline runlog the decisions of the service"),
        (["xyzzy"], "wattline has no command 'xyzzy'", "wattline --help"),
        (["budget", "sett"], "wattline budget has no action 'sett', expected one of show, set", "mean set?"),
        (["submit", "--gpu", "2", "--", "x"], "unrecognized arguments: --gpu", "did you mean --gpus?"),
        (["queue", "--state", "RUNING"], "--state is 'RUNING', expected one of PENDING", "mean RUNNING?"),
    ],
)
def test_the_nearest_word_is_named(capsys: Capsys, words: list[str], message: str, hint: str) -> None:
    code, out, err = run_command(capsys, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert hint in err


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("gpus: 2", "did you mean resources.gpus?"),
        ("time: 4h", "did you mean resources.time?"),
        ("power: 100W", "did you mean energy.power?"),
        ("memory_per_gp: 1G", "did you mean resources.memory_per_gpu?"),
        ("resources: {team: a}", "did you mean team?"),
        ("resources: {gpu: 2}", "did you mean resources.gpus?"),
        ("energy: {deadline: x}", "did you mean deadline?"),
    ],
)
def test_a_key_in_the_wrong_section_is_suggested_with_its_path(
    capsys: Capsys, tmp_path: Path, line: str, hint: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"run: x\n{line}\n")
    code, _, err = run_command(capsys, "submit", str(path))
    assert code == 2
    assert f"{path}:2: unknown key" in err
    assert hint in err


def test_a_key_that_resembles_none_gets_no_suggestion(capsys: Capsys, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("run: x\nfoo: 2\n")
    assert "did you mean" not in run_command(capsys, "submit", str(path))[2]


def test_an_action_is_described_in_its_help(capsys: Capsys) -> None:
    with pytest.raises(SystemExit):
        run_command(capsys, "budget", "set", "--help")
    assert "Replace all budgets by those given." in capsys.readouterr().out


def test_policies_lists_placers(capsys: Capsys) -> None:
    out = run_command(capsys, "policies")[1]
    assert "Placers, for --place:\npack " in out
    assert "\n+power " in out


def test_a_model_that_was_not_measured_is_not_found(capsys: Capsys) -> None:
    code, _, err = run_command(capsys, "predict", "--model", "resnet5O", "--gpu", "a100")
    assert code == 3
    assert "did you mean resnet50?" in err


def test_an_unknown_trace_names_the_nearest_format_only(capsys: Capsys, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("job_id,submission_time,foo,num_gpu\n1,2,3,4\n")
    err = run_command(capsys, "simulate", "--trace", str(path), "--cluster", "1xv100:8")[2]
    assert "hint: itp is Microsoft ITP" in err
    assert len(err) < 600

"""Simulations in which no job would ever end are refused."""

import pytest

from support.command_line import run_command

WORDS = ("--trace", "synth:count=20,seed=0", "--cluster", "1xv100:8", "--restart-cost", "300s")


@pytest.mark.parametrize("command", [("simulate",), ("compare", "--policy", "fifo")])
def test_turns_no_longer_than_a_restart_are_refused(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    code, _, err = run_command(capsys, *command, *WORDS, "--policy", "las")
    assert code == 2
    assert "las: jobs take turns of 300 s (las's quantum) and a restart takes 300 s" in err
    assert "las:quantum=600s, or --min-runtime 600s" in err


@pytest.mark.parametrize(
    "more", [("--policy", "las:quantum=600s"), ("--policy", "las", "--min-runtime", "600s")]
)
def test_longer_turns_are_simulated(capsys: pytest.CaptureFixture[str], more: tuple[str, ...]) -> None:
    code, out, _ = run_command(capsys, "simulate", *WORDS, *more)
    assert code == 0
    assert out

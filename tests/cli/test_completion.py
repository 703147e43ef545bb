"""Completion in shells, the manual page and the schema, as commands."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from support.command_line import run_command
from wattline.cli.command_list import list_commands
from wattline.cli.main import COMMANDS

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def bash_script() -> str:
    from wattline.cli.completion import build_bash

    return build_bash(list(list_commands()))


def complete(script: str, *words: str) -> list[str]:
    """Return the completions of the last word in bash."""
    quoted = " ".join(f"'{word}'" for word in ("wattline", *words))
    code = f"{script}\ncompopt() {{ :; }}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _wattline\n"
    code += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_options_actions_and_choices(bash_script: str) -> None:
    assert complete(bash_script, "sub") == ["submit"]
    assert complete(bash_script, "submit", "--from") == ["--from-sbatch"]
    assert set(complete(bash_script, "budget", "s")) == {"show", "set"}
    assert "--overshoot" in complete(bash_script, "budget", "set", "--o")
    assert complete(bash_script, "completion", "f") == ["fish"]
    assert complete(bash_script, "simulate", "--backfill", "e") == ["easy"]
    assert complete(bash_script, "submit", "--", "--na") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_scripts_of_zsh_and_fish_name_every_command_and_can_be_parsed(capsys: Capsys, shell: str) -> None:
    code, out, _ = run_command(capsys, "completion", shell)
    assert code == 0
    for name in COMMANDS:
        assert f" {name} " in out or f"{name}:" in out
    assert "--from-sbatch" in out or "-l from-sbatch" in out
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its script was not parsed")
    assert subprocess.run([shell, "-n", "-c", out], capture_output=True, text=True).stderr == ""


def test_the_manual_page_has_every_command_and_no_warning(capsys: Capsys) -> None:
    code, out, _ = run_command(capsys, "man")
    assert code == 0
    for name in COMMANDS:
        assert f".SS wattline {name}\n" in out
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed: the page was not formatted")
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww"], input=out, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""


def test_the_schema_is_printed_as_json(capsys: Capsys) -> None:
    code, out, _ = run_command(capsys, "schema", "job")
    assert code == 0
    assert json.loads(out)["required"] == ["run"]

"""Commands run through the command-line entry point."""

import json
from typing import Any

import pytest

from wattline.cli import main


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run a command and return its exit code, standard output and standard error."""
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def parse_strict_json(text: str) -> Any:
    """Parse JSON and reject NaN and Infinity, which Python accepts."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def run_json_command(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Run a command with `--json`, require success and return its result."""
    code, out, _ = run_command(capsys, *words, "--json")
    assert code == 0
    return parse_strict_json(out)

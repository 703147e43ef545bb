"""A command as a user types it."""

import json
from typing import Any

import pytest

from wattline.cli import main


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Its exit code, what it printed, and what it remarked."""
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def parse_strict_json(text: str) -> Any:
    """JSON without the NaN that Python would let pass."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def run_json_command(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What a command answers a program, if all is well."""
    code, out, _ = run_command(capsys, *words, "--json")
    assert code == 0
    return parse_strict_json(out)

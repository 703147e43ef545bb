"""A command as a user types it."""

import json
from typing import Any

import pytest

from wattline.cli import main


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Its exit code, what it printed, and what it remarked."""
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def strict(text: str) -> Any:
    """JSON without the NaN that Python would let pass."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What a command answers a program, if all is well."""
    code, out, _ = typed(capsys, *words, "--json")
    assert code == 0
    return strict(out)

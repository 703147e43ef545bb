"""Tables, log messages and questions of the command line."""

import io
import logging
import sys

import pytest

from wattline.cli.output import confirm, format_columns, print_table, show_log_messages
from wattline.errors import ConfigError

COLUMNS = ("job", "name", "why")
ROWS = [("1", "a [bold]b", "x" * 300), ("12", "c", "")]
LINES = ["job  name       why", f"  1  a [bold]b  {'x' * 300}", " 12  c"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_is_aligned_and_never_truncated() -> None:
    assert format_columns(COLUMNS, ROWS, right=("job",)) == LINES


def test_a_table_without_columns_has_no_header() -> None:
    assert format_columns((), [("name", "x"), ("command", "y")]) == ["name     x", "command  y"]


def test_a_table_without_rows_has_only_a_header() -> None:
    assert format_columns(COLUMNS, []) == ["job  name  why"]


def test_a_table_is_plain_outside_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_table(COLUMNS, ROWS, right=("job",))
    assert capsys.readouterr().out.splitlines() == LINES


@pytest.mark.parametrize(("wrap", "lines"), [(True, 7), (False, 3)])
def test_a_terminal_wraps_or_cuts_off_long_cells(
    monkeypatch: pytest.MonkeyPatch, wrap: bool, lines: int
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_table(COLUMNS, ROWS, right=("job",), wrap=wrap)
    assert len(screen.getvalue().splitlines()) == lines
    assert ("…" in screen.getvalue()) is not wrap
    assert "\x1b[" in screen.getvalue()


def test_no_color_is_honoured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    print_table(COLUMNS, ROWS, right=("job",), wrap=False)
    assert "\x1b" not in screen.getvalue()
    assert max(map(len, screen.getvalue().splitlines())) == 80


def test_messages_of_the_package_go_to_stderr_once(capsys: pytest.CaptureFixture[str]) -> None:
    show_log_messages()
    show_log_messages()
    logging.getLogger("wattline.service").warning("the clock is %d s behind", 3)
    assert capsys.readouterr() == ("", "the clock is 3 s behind\n")


def test_a_question_needs_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(ConfigError, match="stdin is not a terminal"):
        confirm("delete it?", "-y deletes without asking")
    monkeypatch.setattr(sys, "stdin", Terminal("yes\n"))
    assert confirm("delete it?", "-y deletes without asking")
    monkeypatch.setattr(sys, "stdin", Terminal("\n"))
    assert not confirm("delete it?", "-y deletes without asking")

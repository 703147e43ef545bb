"""Output of all commands: data on stdout; messages, questions and progress bars on stderr."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from wattline.errors import ConfigError, WattlineError
from wattline.text_table import build_table, format_table
from wattline.units import pluralize

if TYPE_CHECKING:
    from wattline.trace import Trace  # importing it takes longer than `--help` may


def print_json(value: object) -> None:
    """Print *value* as JSON on stdout."""
    print(json.dumps(value, indent=2, allow_nan=False))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = (), wrap: bool = True
) -> None:
    """Print a table on stdout; a terminal wraps long cells, or cuts them off without *wrap*.

    No *columns*: no header. The columns named in *right* are right-aligned. Outside a terminal the
    lines are as long as their content and plain; NO_COLOR makes them plain in a terminal, too.
    """
    if not sys.stdout.isatty():
        print("\n".join(format_columns(columns, rows, right)))
        return
    from rich.console import Console

    table = build_table(columns, rows, _find_columns(columns, right), no_wrap=not wrap)
    table.header_style = "" if os.environ.get("NO_COLOR") else "bold"
    for column in table.columns:
        column.overflow = "fold" if wrap else "ellipsis"
    Console(highlight=False).print(table)


def format_columns(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()
) -> list[str]:
    """Return the lines of a table as plain text; the columns named in *right* are right-aligned."""
    return format_table(columns, rows, _find_columns(columns, right))


def _find_columns(columns: Sequence[str], names: Collection[str]) -> list[int]:
    return [number for number, name in enumerate(columns) if name in names]


def describe_error(error: WattlineError) -> dict[str, str]:
    """Return an error as it stands in JSON: code, message, hint, and the field of a job if there is one."""
    field = getattr(error, "field", "")
    described = {"code": error.code, "message": error.message, "hint": error.hint}
    return {**described, "field": field} if field else described


def print_error(error: WattlineError, in_json: bool) -> None:
    """Print *error*: as JSON on stdout if *in_json*, else as text on stderr."""
    if in_json:
        print_json({"error": describe_error(error)})
        return
    notify(f"wattline: {error.message}")
    if error.hint:
        notify(f"  hint: {error.hint}")


def notify(text: str) -> None:
    """Print a message for the user on stderr."""
    print(text, file=sys.stderr)


class _StderrHandler(logging.Handler):
    """Handler that prints log messages as commands print theirs."""

    def emit(self, record: logging.LogRecord) -> None:
        notify(self.format(record))


def show_log_messages() -> None:
    """Print what the package logs, from level INFO, on stderr."""
    logger = logging.getLogger("wattline")
    if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        logger.addHandler(_StderrHandler())
        logger.setLevel(logging.INFO)


def confirm(question: str, hint: str) -> bool:
    """Ask the user a yes/no question; raise `ConfigError` with *hint* if stdin is not a terminal."""
    if not sys.stdin.isatty():
        raise ConfigError("cannot ask for confirmation: stdin is not a terminal", hint)
    print(f"{question} [y/n] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().casefold() in ("y", "yes")


def warn_skipped_rows(trace: Trace, can_name_columns: bool = True) -> None:
    """Print guessed columns of *trace*, and how many rows were left out, joined or repaired, and why."""
    if trace.columns is not None:
        change = "; change them with --columns" if can_name_columns else ""
        notify(f"columns: {trace.columns}{change}")
    if trace.counts.rows > trace.counts.jobs or trace.counts.repaired:
        notify(f"{trace.name}: {trace.counts}")
    if trace.skipped:
        broken = pluralize(len(trace.skipped), "broken row")
        notify(f"{trace.name}: skipped {broken}; first: {trace.skipped[0].message}")


def check_writable(*paths: str | None) -> None:
    """Raise `ConfigError` if a file cannot be written, before a long run; leaves no file behind."""
    for path in (Path(text) for text in paths if text):
        existed = path.exists()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            open(path, "ab").close()
            if not existed:
                path.unlink()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


@contextmanager
def progress_bar(title: str, total: float) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on stderr if that is a terminal; yields a function of the amount done.

    With WATTLINE_PROGRESS=lines it writes lines `progress DONE TOTAL` instead, for programs.
    """
    if os.environ.get("WATTLINE_PROGRESS") == "lines":
        yield lambda completed: print(f"progress {completed:g} {total:g}", file=sys.stderr, flush=True)
        return
    if not sys.stderr.isatty():
        yield lambda completed: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda completed: progress.update(task, completed=completed)

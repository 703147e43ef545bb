"""What people and programs see."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from wattline.errors import ConfigError, WattlineError

if TYPE_CHECKING:
    from wattline.trace import Trace  # importing it takes longer than `--help` may


def show_json(value: object) -> None:
    """Data for programs, on stdout."""
    print(json.dumps(value, indent=2, allow_nan=False))


def show_error(error: WattlineError, in_json: bool) -> None:
    """An error: on stdout as JSON when that was asked for, else in words on stderr."""
    if in_json:
        show_json({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
        return
    print(f"wattline: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"  hint: {error.hint}", file=sys.stderr)


def tell(text: str) -> None:
    """A remark for people, on stderr."""
    print(text, file=sys.stderr)


def agreed(question: str, hint: str) -> bool:
    """Whether somebody at the terminal says yes; *hint* is for where nobody is."""
    if not sys.stdin.isatty():
        raise ConfigError("nobody is there to ask", hint)
    print(f"{question} [y/n] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().casefold() in ("y", "yes")


def tell_first_run() -> None:
    """Say why the first run takes longer, where numba is about to compile and cache its loops."""
    package = Path(__file__).parents[1]
    if os.access(package, os.W_OK) and not any(package.glob("loop/__pycache__/*.nbi")):
        tell("first run: compiling a few loops, once; this takes up to twenty seconds")


def tell_skipped(trace: Trace) -> None:
    """How many rows of a trace were left out, and why."""
    if trace.ignored:
        tell(f"{trace.ignored} rows of {trace.name} are not GPU jobs that ran: left out")
    if trace.skipped:
        tell(
            f"{len(trace.skipped)} broken rows of {trace.name} skipped, the first: {trace.skipped[0].message}"
        )


@contextmanager
def bar(what: str, total: float) -> Iterator[Callable[[float], None]]:
    """A progress bar on stderr, when a person is looking; yields what to call with the amount done."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)

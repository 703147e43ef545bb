"""Plain text tables with aligned columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_UNLIMITED = 1 << 20  # characters of a line: a job's command may be long


def format_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()
) -> list[str]:
    """Return *header* (may be empty) and *rows* as aligned lines, as long as their content.

    The columns numbered in *right* are right-aligned.
    """
    from rich.console import Console  # 50 ms, and only tables need it

    console = Console(
        width=_UNLIMITED, color_system=None, force_terminal=False, force_jupyter=False, highlight=False
    )
    with console.capture() as capture:
        console.print(build_table(header, rows, right, no_wrap=True))
    return [line.rstrip() for line in capture.get().splitlines()]


def build_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = (), *, no_wrap: bool
) -> Table:
    """Return a rich table without lines between its cells."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="", show_header=bool(header))
    width = len(header) or (len(rows[0]) if rows else 0)
    for number in range(width):
        title = Text(header[number]) if header else ""
        table.add_column(title, justify="right" if number in right else "left", no_wrap=no_wrap)
    for row in rows:
        table.add_row(*map(Text, row))
    return table

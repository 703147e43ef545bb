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


def format_narrow_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[int] = (),
    width: int = 80,
) -> list[str]:
    """Return a table of at most *width* columns of text: what does not fit follows as further tables.

    Each of them begins with the first column, and an empty line precedes it. Columns with an empty title
    stay beside the column before them, as do those titled `x`, the ratio of that column.
    """
    sizes = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    groups: list[list[int]] = []
    for number in range(1, len(header)):
        if header[number] in ("", "x") and groups:
            groups[-1].append(number)
        else:
            groups.append([number])
    parts: list[list[int]] = [[0]]
    for group in groups:
        together = [*parts[-1], *group]
        if len(parts[-1]) > 1 and sum(sizes[n] for n in together) + 2 * (len(together) - 1) > width:
            parts.append([0, *group])
        else:
            parts[-1] = together
    lines: list[str] = []
    for part in parts:
        chosen = [n for n, column in enumerate(part) if column in right]
        lines += [""] if lines else []
        lines += format_table([header[n] for n in part], [[row[n] for n in part] for row in rows], chosen)
    return lines

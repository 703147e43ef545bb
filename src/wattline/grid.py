"""How do rows become lines of a terminal, with columns under each other?"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def grid(rows: Sequence[Sequence[str]], align: Callable[[int], str]) -> list[str]:
    """Rows as lines; *align* gives `<` or `>` for a column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:{align(i)}{widths[i]}}" for i, cell in enumerate(row)).rstrip() for row in rows]

"""Pieces of Markdown: tables, code, docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence


def build_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; bars in cells are escaped."""
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def code(text: str) -> str:
    """Return text as code; empty text stays empty."""
    return f"`{text}`" if text else ""


def sentence(text: str) -> str:
    """Return help text as a sentence in which placeholders such as <name> stay visible."""
    text = " ".join(text.split()).replace("<", "&lt;").replace("*", "\\*")
    return text and text[0].upper() + text[1:].removesuffix(".") + "."


def format_docstring(thing: object) -> str:
    """Return the docstring of *thing* with its indented examples as code."""
    text = inspect.getdoc(thing) or ""
    return re.sub(r"(?m)^(?!\s)(.*)<", r"\1&lt;", text)

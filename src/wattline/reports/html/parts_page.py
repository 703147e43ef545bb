"""A page of parts: each a title, a note, a table and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wattline.reports.html.document import Facts, render_document


class PagePart(NamedTuple):
    """A part of a page; an empty figure: none."""

    title: str
    note: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figure: str = ""
    classes: str = "wide"  # of the table; "wide text": its cells hold sentences


def render_parts(
    title: str,
    summary: Sequence[str],
    facts: Facts,
    parts: Sequence[PagePart],
    figures: Mapping[str, Any],
    made_from: str,
) -> str:
    """Return a page of *parts* as HTML."""
    return render_document(
        "parts_page.html", title, facts, figures, made_from=made_from, summary=summary, parts=parts
    )

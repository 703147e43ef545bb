"""Rendering of pages: templates, figures as SVG, style and script in one file that loads nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wattline
from wattline.errors import ConfigError
from wattline.reports.svg.figure import NARROW, WIDE, render_figure

if TYPE_CHECKING:
    from jinja2 import Environment

Facts = Sequence[tuple[str, str]]
"""Names and values under the title of a page; empty values are not shown."""

LOOK = "look.css"
"""The stylesheet that reports share with the page of the service: colours, text, tables, cards, charts."""


def render_document(
    template: str,
    title: str,
    facts: Facts,
    figures: Mapping[str, Any],
    *,
    made_from: str,
    summary: Sequence[str] = (),
    **context: object,
) -> str:
    """Return a page that loads nothing else; *figures* are figures by name, *summary* plain sentences.

    Text in *context* is escaped by the templates.
    """
    environment = _environment()
    from markupsafe import Markup  # comes with jinja2

    style, script = read_template(LOOK) + read_template("page.css"), read_template("page.js")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:;"
        " form-action 'none'; base-uri 'none'"
    )
    return environment.get_template(template).render(
        title=title,
        facts=facts,
        summary=list(summary),
        policy=Markup(policy),
        style=Markup(style),
        script=Markup(script),
        charts={name: [Markup(svg) for svg in _render_both(name, one)] for name, one in figures.items()},
        made_from=made_from,
        version=wattline.__version__,
        **context,
    )


def _render_both(name: str, figure: Mapping[str, Any]) -> list[str]:
    """Return the figure for windows, and for phones unless it is scrolled there."""
    label = f"chart {name}; the table of the page has its figures"
    widths = (WIDE,) if name.startswith("nodes-") else (WIDE, NARROW)
    return [render_figure(figure, width, label) for width in widths]


def _hash(text: str) -> str:
    """Return the source expression of a Content Security Policy that allows exactly *text*."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


def write_page(path: str | Path, text: str) -> None:
    """Write a page; missing folders are created."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined  # in the extra `report`
    except ImportError:
        raise ConfigError(
            "a page needs jinja2, which is not installed", "pip install 'wattline[report]'"
        ) from None
    environment = Environment(
        loader=PackageLoader("wattline.reports.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["is_text"] = _is_text_column
    return environment


def _is_text_column(rows: Sequence[Sequence[str]], column: int) -> bool:
    """Return whether no cell of a column begins with a number, so that it is aligned to the left."""
    return not any(re.match(r"\s*[-−<±×]?\s*\d", str(row[column])) for row in rows if column < len(row))


def read_template(name: str) -> str:
    """Return a file of the templates, such as the stylesheet `LOOK`."""
    return files("wattline.reports.html").joinpath("templates", name).read_text(encoding="utf-8")

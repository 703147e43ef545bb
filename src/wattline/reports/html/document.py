"""What is around every page: the frame, the style, the figures as data, and plotly itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import wattline
from wattline.errors import ConfigError


def plotly_source() -> str:
    """The source of plotly.js, which the Python package carries."""
    try:
        from plotly.offline import get_plotlyjs  # an extra: only pages need it
    except ImportError:
        raise ConfigError(
            "a page needs plotly, which is not installed", "pip install 'wattline[report]'"
        ) from None
    return str(get_plotlyjs())


def shell(title: str, head: str, body: str, drawn: Mapping[str, Any], *, made_from: str, plotly: str) -> str:
    """A page as text that holds all it needs; *drawn* are its figures by name, see `plot`."""
    return _filled(
        "page.html",
        title=escape(title),
        style=_file("page.css"),
        facts=head,
        body=body,
        version=wattline.__version__,
        made_from=escape(made_from),
        # A "<" could end the script; written by its number it is the same text to JSON.
        figures=json.dumps(drawn, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        plotly=plotly,
        script=_file("page.js"),
    )


def write_page(path: str | Path, text: str) -> None:
    """Write a page, into a new folder where that is needed."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")


def section(title: str, note: str) -> str:
    """A heading, and what is said under it."""
    return f'<h2>{escape(title)}</h2>\n<p class="note">{escape(note)}</p>'


def plot(figure: str) -> str:
    """The place where the figure of that name is drawn."""
    return f'<div class="plot" data-figure="{figure}"></div>'


def _file(name: str) -> str:
    return files("wattline.reports.html").joinpath("templates", name).read_text(encoding="utf-8")


def _filled(name: str, **parts: str) -> str:
    """A file with `{{name}}` replaced, in one go, so that no part is searched for the others."""
    text = _file(name)
    pieces = text.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        key, _, rest = piece.partition("}}")
        filled += (parts[key], rest)
    return "".join(filled)

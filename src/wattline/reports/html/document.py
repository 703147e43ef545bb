"""Rendering of pages: templates, figures as data, and plotly itself in one file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wattline
from wattline.errors import ConfigError

if TYPE_CHECKING:
    from jinja2 import Environment

Facts = Sequence[tuple[str, str]]
"""Names and values under the title of a page; empty values are not shown."""


def load_plotly_js() -> str:
    """Return the source of plotly.js, which the Python package plotly contains."""
    try:
        from plotly.offline import get_plotlyjs  # in the extra `report`: only pages need it
    except ImportError:
        raise _missing("plotly") from None
    return str(get_plotlyjs())


def render_document(
    template: str,
    title: str,
    facts: Facts,
    figures: Mapping[str, Any],
    *,
    made_from: str,
    plotly: str,
    **context: object,
) -> str:
    """Return a page that loads nothing else; *figures* are plotly figures by name, *plotly* is its source.

    Text in *context* is escaped by the templates.
    """
    environment = _environment()
    from markupsafe import Markup  # comes with jinja2

    # A "<" could end the script element; as an escape sequence it is the same text in JSON.
    data = json.dumps(figures, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return environment.get_template(template).render(
        title=title,
        facts=facts,
        style=Markup(_read("page.css")),
        script=Markup(_read("page.js")),
        plotly=Markup(plotly),
        figures=Markup(data),
        made_from=made_from,
        version=wattline.__version__,
        **context,
    )


def write_page(path: str | Path, text: str) -> None:
    """Write a page; missing folders are created."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined  # in the extra `report`
    except ImportError:
        raise _missing("jinja2") from None
    return Environment(
        loader=PackageLoader("wattline.reports.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _missing(package: str) -> ConfigError:
    return ConfigError(f"a page needs {package}, which is not installed", "pip install 'wattline[report]'")


def _read(name: str) -> str:
    return files("wattline.reports.html").joinpath("templates", name).read_text(encoding="utf-8")

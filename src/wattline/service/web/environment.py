"""The templates of all pages. Everything that they insert is escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from wattline.service.web import text
from wattline.service.web.static_files import STATIC

_FOLDER = Path(__file__).parent / "templates"
_STATES = {
    "PENDING": "◷",
    "RUNNING": "▶",
    "SUCCEEDED": "✓",
    "FAILED": "✕",
    "CANCELLED": "⊘",
    "TIMEOUT": "◕",
    "OUT_OF_MEMORY": "▦",
    "NODE_FAIL": "⚠",
    "REQUEUED": "↻",
}


@cache
def load_environment() -> Environment:
    """Return the environment of the templates, which is created once."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=text.finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "joules": text.show_joules,
        "watts": text.show_watts,
        "seconds": text.show_seconds,
        "percent": text.show_percent,
        "number": text.show_number,
        "short": text.show_short,
        "sentence": text.show_sentence,
        "command": text.show_command,
        "change": text.show_change,
        "code": text.mark_code,
    }
    environment.globals |= {"static": STATIC.address, "icon": lambda state: _STATES.get(state, "•")}
    return environment


def render(name: str, values: dict[str, Any]) -> str:
    """Return a template with its values."""
    return load_environment().get_template(name).render(values)

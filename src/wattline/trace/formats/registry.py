"""All trace formats, and the recognition of a text."""

from __future__ import annotations

from difflib import get_close_matches

from wattline.errors import ConfigError
from wattline.trace.format import Format, Head
from wattline.trace.formats.any_table import TABLE
from wattline.trace.formats.gavel import GAVEL
from wattline.trace.formats.helios import HELIOS
from wattline.trace.formats.itp import ITP
from wattline.trace.formats.muri import MURI
from wattline.trace.formats.openb import OPENB
from wattline.trace.formats.pai import PAI
from wattline.trace.formats.philly import PHILLY
from wattline.trace.formats.philly_csv import PHILLY_CSV
from wattline.trace.formats.plain_csv import PLAIN_CSV
from wattline.trace.formats.pollux import POLLUX
from wattline.trace.formats.sacct import SACCT
from wattline.trace.formats.swf import SWF
from wattline.trace.formats.synergy import SYNERGY

_STRICTEST_FIRST = (
    *(PHILLY, PHILLY_CSV, HELIOS, PAI, OPENB, MURI, ITP, POLLUX, SACCT, GAVEL, SWF, SYNERGY),
    *(PLAIN_CSV, TABLE),
)

FORMATS: dict[str, Format] = {format.name: format for format in _STRICTEST_FIRST}
"""Formats by name, in the order in which a text is offered to them."""


def find_format(name: str) -> Format:
    """Return the format of this name."""
    if name not in FORMATS:
        near = get_close_matches(name, FORMATS, 1, cutoff=0.0)[0]
        hint = f"the formats are: {', '.join(FORMATS)}"
        raise ConfigError(f"unknown trace format {name!r}, did you mean {near!r}?", hint)
    return FORMATS[name]


def recognise_format(data: bytes) -> Format | None:
    """Return the format that recognises *data*; None if no format does."""
    head = Head.of(data)
    if not head.lines or "\0" in head.lines[0]:
        return None
    return next((format for format in FORMATS.values() if format.recognises(head)), None)

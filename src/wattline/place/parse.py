"""A placer from text: `buddy+power:spare=8`."""

from __future__ import annotations

from typing import Any

from wattline import place as home
from wattline.errors import ConfigError, did_you_mean
from wattline.policy.parse import read_knobs
from wattline.types import Placer

_ALONE = {"pack": "Pack", "buddy": "Buddy"}
_AROUND = {"power": "Power"}


def parse_placer(text: str, backfill: str = "easy") -> Placer:
    """The placer that *text* names, with *backfill*: `pack` or `buddy`, and `+power` around it.

    Names are those of `wattline.place`, in any case; knobs follow after `:` as `name=value,name=value`.
    """
    first, *around = (part.strip() for part in text.split("+"))
    placer: Placer = _make(first, _ALONE, text, backfill=backfill)
    for part in around:
        placer = _make(part, _AROUND, text, place=placer)
    return placer


def _make(part: str, names: dict[str, str], text: str, **given: object) -> Any:
    """One of *names*, with the knobs that *part* says and what is *given* in other ways."""
    name, _, knobs = part.partition(":")
    if name.casefold() not in names:
        here = f"{'before' if names is _ALONE else 'behind'} the first +"
        raise ConfigError(
            f"place {text!r}: unknown placer {name!r}, expected {' or '.join(names)} {here}",
            hint=did_you_mean(name.casefold(), names),
        )
    if names is _AROUND and text.casefold().count(name.casefold()) > 1:
        raise ConfigError(f"place {text!r}: {name} is given twice")
    thing = getattr(home, names[name.casefold()])
    return thing(**given, **read_knobs(thing, name, knobs, f"place {text!r}", given))

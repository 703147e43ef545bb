"""A placer from text: `buddy+power:spare=8`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wattline import placement as home
from wattline.core.protocols import Placer
from wattline.errors import ConfigError, did_you_mean
from wattline.knob_parser import make

_ALONE = {
    "pack": "Pack",
    "proportional": "Pack",  # what Synergy calls it: of the host everybody has its share
    "buddy": "Buddy",
    "tune": "Tune",
    "optimum": "Optimum",
}
_AROUND = {"power": "Power"}


def parse_placer(text: str, backfill: str = "easy", extra: Mapping[str, Any] | None = None) -> Placer:
    """The placer that *text* names, with *backfill*: `pack`, `buddy`, `tune` …, and `+power` around it.

    Names are those of `wattline.placement` and of *extra*, in any case; knobs follow after `:` as `name=value,name=value`.
    """
    first, *around = (part.strip() for part in text.split("+"))
    placer: Placer = _make(first, _ALONE, text, extra or {}, backfill=backfill)
    for part in around:
        placer = _make(part, _AROUND, text, {}, place=placer)
    return placer


def _make(part: str, names: dict[str, str], text: str, extra: Mapping[str, Any], **given: object) -> Any:
    """One of *names*, with the knobs that *part* says and what is *given* in other ways."""
    name, _, knobs = part.partition(":")
    if name.casefold() in extra:
        return make(extra[name.casefold()], name, knobs, f"place {text!r}", given=given)
    if name.casefold() not in names:
        here = f"{'before' if names is _ALONE else 'behind'} the first +"
        raise ConfigError(
            f"place {text!r}: unknown placer {name!r}, expected one of {', '.join(names)} {here}",
            hint=did_you_mean(name.casefold(), names),
        )
    if names is _AROUND and text.casefold().count(name.casefold()) > 1:
        raise ConfigError(f"place {text!r}: {name} is given twice")
    return make(getattr(home, names[name.casefold()]), name, knobs, f"place {text!r}", given=given)

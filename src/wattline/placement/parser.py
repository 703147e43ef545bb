"""Parser of placers: `buddy+power:spare=8`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wattline import placement as home
from wattline.core.protocols import Placer
from wattline.errors import ConfigError, did_you_mean
from wattline.knob_parser import build_from_knobs

_ALONE = {
    "pack": "Pack",
    "proportional": "Pack",  # Synergy's name: each job has its proportional share of the host
    "buddy": "Buddy",
    "tune": "Tune",
    "optimum": "Optimum",
}
_AROUND = {"host": "Host", "power": "Power"}


def list_placers() -> dict[str, Any]:
    """Return the classes of all placers by name; those with a `+` go behind another."""
    return {name: getattr(home, cls) for name, cls in _ALONE.items()} | {
        f"+{name}": getattr(home, cls) for name, cls in _AROUND.items()
    }


def parse_placer(text: str, backfill: str = "easy", extra: Mapping[str, Any] | None = None) -> Placer:
    """Return the placer that *text* names: `pack`, `buddy`, `tune` …, and what goes behind it.

    `+host` splits the host resources of nodes by need, `+power` switches idle nodes off.

    Names are those of `wattline.placement` and of *extra*, in any case; knobs follow after `:` as
    `name=value,name=value`. *backfill* applies unless *text* has a knob `backfill`.
    `wattline.policy.chain.spell` is the inverse.
    """
    first, *around = (part.strip() for part in text.split("+"))
    placer: Placer = _make(first, _ALONE, text, extra or {}, backfill=backfill)
    for part in around:
        placer = _make(part, _AROUND, text, {}, place=placer)
    return placer


def _make(part: str, names: dict[str, str], text: str, extra: Mapping[str, Any], **given: object) -> Any:
    """Return the placer of *names* or *extra* that *part* names, with its knobs and the *given* fields."""
    name, _, knobs = part.partition(":")
    if any(knob.startswith("backfill=") for knob in knobs.split(",")):
        given.pop("backfill", None)
    if name.casefold() in extra:
        return build_from_knobs(extra[name.casefold()], name, knobs, f"place {text!r}", given=given)
    if name.casefold() not in names:
        known = ", ".join(names)
        more = ", or one of these with +host or +power" if names is _ALONE else " behind the first +"
        raise ConfigError(
            f"place {text!r}: unknown placer {name!r}, expected one of {known}{more}",
            hint=did_you_mean(name.casefold(), names),
        )
    if names is _AROUND and text.casefold().count(name.casefold()) > 1:
        raise ConfigError(f"place {text!r}: {name} is given twice")
    return build_from_knobs(
        getattr(home, names[name.casefold()]), name, knobs, f"place {text!r}", given=given
    )

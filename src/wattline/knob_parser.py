"""Build policies, placers and their kin from the knobs that users type: `name=value,name=value`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any

from wattline.errors import ConfigError, did_you_mean
from wattline.units import parse_seconds


def make(
    thing: Any,
    name: str,
    knobs: str,
    where: str,
    without: Collection[str] = (),
    given: Mapping[str, object] | None = None,
) -> Any:
    """The dataclass *thing* with these *knobs*, see `read_knobs`, and what is *given* in other ways."""
    given = given or {}
    values = read_knobs(thing, name, knobs, where, {*without, *given})
    try:
        return thing(**given, **values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {name}'s {error.message}", error.hint) from None


def read_knobs(
    thing: Any, name: str, knobs: str, where: str, without: Collection[str] = ()
) -> dict[str, object]:
    """Values for the fields of the dataclass *thing*, from `name=value,name=value`.

    *name* is what the user calls it and *where* begins what is said of a mistake; fields that are set
    in other ways are left out by *without*.
    """
    known = {field.name: field for field in fields(thing) if field.name not in without}
    given: dict[str, object] = {}
    for knob in knobs.split(",") if knobs else []:
        key, equals, value = knob.partition("=")
        field = next((f for n, f in known.items() if key == n or n.startswith(f"{key}_")), None)
        if field is None or not equals:
            raise ConfigError(
                f"{where}: unknown knob {knob!r} of {name}, expected one of "
                f"{', '.join(f'{n}={_default(f)}' for n, f in known.items()) or 'none'}",
                hint=did_you_mean(key, known),
            )
        if field.name in given:
            raise ConfigError(f"{where}: {name}'s {field.name} is given twice")
        given[field.name] = _value(value, field, f"{where}: {name}'s {field.name}")
    return given


def _default(field: Any) -> Any:
    return "" if field.default is MISSING else field.default


def _value(text: str, field: Any, where: str) -> object:
    """*text* as a value of the kind of the knob's default; durations only where the name is in seconds."""
    like = _default(field)
    number = parse_seconds if field.name.endswith("_s") else float
    try:
        if isinstance(like, tuple):
            return tuple(number(piece) for piece in text.split("/"))
        if isinstance(like, int):
            return int(text)
        if isinstance(like, float):
            return number(text)
    except ValueError:
        kind = "numbers joined by /" if isinstance(like, tuple) else "a number"
        raise ConfigError(f"{where} is {text!r}, expected {kind} like {like}") from None
    return text

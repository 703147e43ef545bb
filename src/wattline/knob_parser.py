"""Construction of policies and placers from the options that users type: `name=value,name=value`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from decimal import Decimal
from typing import Any

from wattline.errors import ConfigError, did_you_mean
from wattline.units import parse_seconds


def build_from_knobs(
    thing: Any,
    name: str,
    knobs: str,
    where: str,
    without: Collection[str] = (),
    given: Mapping[str, object] | None = None,
) -> Any:
    """Build the dataclass *thing* from the text *knobs* (see `parse_knobs`) and the fields *given*."""
    given = given or {}
    values = parse_knobs(thing, name, knobs, where, {*without, *given})
    try:
        return thing(**given, **values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {name}'s {error.message}", error.hint) from None


def parse_knobs(
    thing: Any, name: str, knobs: str, where: str, without: Collection[str] = ()
) -> dict[str, object]:
    """Parse `name=value,name=value` into values of fields of the dataclass *thing*.

    *name* is the user's name of *thing* and *where* the start of error messages. The fields *without* cannot
    be set this way.
    """
    known = {field.name: field for field in fields(thing) if field.name not in without}
    values: dict[str, object] = {}
    for knob in knobs.split(",") if knobs else []:
        key, equals, value = knob.partition("=")
        field = next((f for n, f in known.items() if key == n or n.startswith(f"{key}_")), None)
        if field is None or not equals:
            raise ConfigError(
                f"{where}: unknown knob {knob!r} of {name}, expected one of "
                f"{', '.join(f'{n}={_default(f)}' for n, f in known.items()) or 'none'}",
                hint=did_you_mean(key, known),
            )
        if field.name in values:
            raise ConfigError(f"{where}: {name}'s {field.name} is given twice, expected once")
        values[field.name] = _parse_value(value, field, f"{where}: {name}'s {field.name}")
    return values


def format_knobs(thing: Any, defaults: Mapping[str, object] | None = None) -> str:
    """Return the knobs of the dataclass *thing* that differ from their defaults, as `parse_knobs` reads them.

    *defaults* replaces the defaults of the class. Fields without a default or with `repr=False` are skipped.
    """
    parts = []
    for field in fields(thing):
        default = (defaults or {}).get(field.name, field.default)
        value = getattr(thing, field.name)
        if field.repr and default is not MISSING and value != default:
            key = field.name.removesuffix("_s").removesuffix("_gpu")
            parts.append(f"{key}={_format_value(value, 's' if field.name.endswith('_s') else '')}")
    return ",".join(parts)


def _format_value(value: object, unit: str) -> str:
    if isinstance(value, tuple) and value and all(isinstance(part, float | int) for part in value):
        return "/".join(_format_value(part, unit) for part in value)
    if isinstance(value, tuple):
        return " and ".join(map(str, value))
    if not isinstance(value, float):
        return f"{value}{unit if isinstance(value, int) else ''}"
    if not math.isfinite(value):
        return str(value)
    # No exponent: durations are parsed without one, and a `+` starts the next stage of a policy.
    return f"{value:.0f}{unit}" if value.is_integer() else f"{Decimal(repr(value)):f}{unit}"


def _default(field: Any) -> Any:
    return "" if field.default is MISSING else field.default


def _parse_value(text: str, field: Any, where: str) -> object:
    """Parse *text* as the type of the field's default; fields that end in `_s` take durations."""
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
        if isinstance(like, tuple):
            expected = f"numbers joined by / such as {_format_value(like, '')}"
        elif number is parse_seconds:
            expected = f"a duration such as {_format_value(like, 's')} or 10m"
        else:
            expected = f"a number like {like}"
        raise ConfigError(f"{where} is {text!r}, expected {expected}") from None
    return text

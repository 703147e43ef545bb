"""Parsing and checking of meter options such as `state=DIR,time=real`."""

from __future__ import annotations

from collections.abc import Iterable

from wattline.errors import ConfigError, did_you_mean


def parse_options(meter: str, words: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """Return `key=value` words as a dictionary; the `ConfigError` for an unknown key names the nearest."""
    names, options = tuple(known), dict[str, str]()
    for word in words:
        key, equals, value = word.partition("=")
        if key not in names or not equals or not value:
            raise ConfigError(
                f"the {meter} meter does not know {word!r}, expected {', '.join(f'{n}=…' for n in names)}",
                did_you_mean(key, names) if key not in names else f"{key}=…",
            )
        options[key] = value
    return options


def check_choice(meter: str, key: str, value: str, choices: Iterable[str]) -> str:
    """Return *value* if it is one of the *choices*, else raise a `ConfigError`."""
    names = tuple(choices)
    if value not in names:
        raise ConfigError(
            f"{key} of the {meter} meter is {value!r}, expected one of {', '.join(names)}",
            did_you_mean(value, names),
        )
    return value


def parse_whole_number(meter: str, key: str, value: str, least: int = 0) -> int:
    """Return *value* as a whole number of at least *least*."""
    if not value.isdecimal() or int(value) < least:
        raise ConfigError(f"{key} of the {meter} meter is {value!r}, expected a whole number from {least} up")
    return int(value)


def check_cap(watts: float, min_w: float, max_w: float, name: str) -> float:
    """Return *watts* if the GPU *name* accepts it as a cap, else raise a `ConfigError`."""
    if not min_w <= watts <= max_w:
        raise ConfigError(f"a cap of {watts:g} W is outside the range of {name}: {min_w:g} to {max_w:g} W")
    return watts

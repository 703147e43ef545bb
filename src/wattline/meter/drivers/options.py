"""How are the options of a meter written: `state=DIR,time=real`?"""

from __future__ import annotations

from collections.abc import Iterable

from wattline.errors import ConfigError, did_you_mean


def read_options(meter: str, words: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """`key=value` words as a dictionary; a `ConfigError` names the nearest key."""
    names, found = tuple(known), dict[str, str]()
    for word in words:
        key, equals, value = word.partition("=")
        if key not in names or not equals or not value:
            raise ConfigError(
                f"the {meter} meter does not know {word!r}, expected {', '.join(f'{n}=…' for n in names)}",
                did_you_mean(key, names) if key not in names else f"{key}=…",
            )
        found[key] = value
    return found


def one_of(meter: str, key: str, value: str, choices: Iterable[str]) -> str:
    """*value*, if it is one of the *choices*."""
    names = tuple(choices)
    if value not in names:
        raise ConfigError(
            f"{key} of the {meter} meter is {value!r}, expected one of {', '.join(names)}",
            did_you_mean(value, names),
        )
    return value


def whole_number(meter: str, key: str, value: str, least: int = 0) -> int:
    """*value* as a whole number of at least *least*."""
    if not value.isdecimal() or int(value) < least:
        raise ConfigError(f"{key} of the {meter} meter is {value!r}, expected a whole number from {least} up")
    return int(value)


def within(watts: float, least_w: float, most_w: float, name: str) -> float:
    """*watts*, if it is a cap that *name* takes."""
    if not least_w <= watts <= most_w:
        raise ConfigError(f"a cap of {watts:g} W is outside what {name} takes: {least_w:g} to {most_w:g} W")
    return watts

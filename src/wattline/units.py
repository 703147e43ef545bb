"""Quantities with units: parsing of `4h`, `32G`, `250W`, `3kWh` and `1.2GHz`, and their text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_GIB = {"K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 1024.0}
_WATTS = {"": 1.0, "w": 1.0, "kw": 1000.0}
_JOULES = {"": 1.0, "j": 1.0, "kj": 1e3, "mj": 1e6, "gj": 1e9, "wh": 3600.0, "kwh": 3.6e6, "mwh": 3.6e9}
_ENERGY_UNITS = (  # up to, joules, name
    *((3.6e3, 1.0, "J"), (3.6e6, 3.6e3, "Wh"), (3.6e9, 3.6e6, "kWh"), (math.inf, 3.6e9, "MWh")),
)
_MHZ = {"": 1.0, "mhz": 1.0, "ghz": 1000.0}


def parse_seconds(text: str) -> float:
    """Parse seconds: `300`, `300s`, `5m`, `1h30m`, `2d`, or as Slurm `05:00`, `12:00:00`, `1-12:00:00`."""
    text = text.strip()
    clock = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d\d))?(?::(\d\d(?:\.\d+)?))?", text)
    if clock and (clock[1] or clock[3]):
        days, first, second, third = clock.groups()
        if days is None and third is None:
            return int(first) * 60.0 + int(second)  # as in Slurm: minutes and seconds
        hours_s = int(first) * 3600.0 + int(second or 0) * 60.0 + float(third or 0)
        return int(days or 0) * 86400.0 + hours_s
    if re.fullmatch(r"\d+(\.\d*)?|\.\d+", text):
        return float(text)
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|min|[smhdw])", text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    raise ValueError(f"{text!r} is not a duration; expected something like 300s, 5m, 4h or 1-12:00:00")


def parse_gib(text: str) -> float:
    """Parse GiB: `32G`, `500GiB`, `1T`, `65536M`; a bare number is GiB."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a size; expected something like 32G")
    return float(match[1]) * _GIB[match[2].upper() or "G"]


def parse_mib_s(text: str) -> float:
    """Parse MiB/s: `500MB/s`, `2GiB/s`; a bare number is MiB/s."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?)B(?:/s)?)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a bandwidth; expected something like 500MB/s")
    if match[2] is None:
        return float(match[1])
    power = 1 + "KMGT".index(match[2].upper())
    return float(match[1]) * (1024.0 if match[3] else 1000.0) ** power / 2**20


def parse_watts(text: str) -> float:
    """Parse watts: `250W`, `0.25kW`; a bare number is watts."""
    return _parse_scaled(text, _WATTS, "a power; expected something like 250W or 0.25kW")


def parse_joules(text: str) -> float:
    """Parse joules: `500kJ`, `2MJ`, `3kWh`; a bare number is joules; `mJ` and `mWh` are rejected."""
    expected = "an energy; expected something like 3kWh, 2MJ or 500kJ"
    if "m" in text:
        raise ValueError(f"{text!r} is not {expected}")
    return _parse_scaled(text, _JOULES, expected)


def parse_mhz(text: str) -> float:
    """Parse MHz: `1200MHz`, `1.2GHz`; a bare number is MHz."""
    return _parse_scaled(text, _MHZ, "a clock; expected something like 1200MHz or 1.2GHz")


def _parse_scaled(text: str, units: Mapping[str, float], expected: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", text, re.IGNORECASE | re.ASCII)
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{text!r} is not {expected}")
    return float(match[1]) * units[match[2].lower()]


def pluralize(number: int, noun: str) -> str:
    """Return `1 job`, `2 jobs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_joules(value_j: float) -> str:
    """Return an energy in the units of a bill: `850 J`, `12.3 Wh`, `4.56 kWh`."""
    return format_joules_alike([value_j])[0]


def format_joules_alike(values_j: Sequence[float]) -> list[str]:
    """Return energies in one unit, that of the largest, so that a column can be compared."""
    largest_j = max(map(abs, values_j), default=0.0)
    unit_j, unit = next((j, name) for limit_j, j, name in _ENERGY_UNITS if largest_j < limit_j)
    return [f"{_format_digits(value_j / unit_j)} {unit}" for value_j in values_j]


def _format_digits(value: float) -> str:
    """Return a number with three significant digits, never as a power of ten: `1,234`, `12.3`, `<0.001`."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) < 0.001:
        return "0" if value == 0 else "<0.001"
    text = f"{value:.{2 - math.floor(math.log10(abs(value)))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_seconds(value_s: float) -> str:
    """Return a duration with a fitting unit: `42 s`, `5 min`, `3.2 h`, `1.4 d`; below 1 ms it is `0 s`."""
    if abs(value_s) < 0.001:
        return "0 s"
    for limit, unit_s, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if abs(value_s) < limit:
            return f"{value_s / unit_s:.3g} {unit}"
    return f"{value_s / 86400:.3g} d"

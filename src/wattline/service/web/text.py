"""Values as text on pages: times in the viewer's zone, energies with their method, strange characters."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from markupsafe import Markup, escape

from wattline.units import format_joules, format_seconds

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)


def show_hidden(text: str) -> str:
    """Return *text* with control and direction characters as visible codes, such as ⟦U+202E⟧."""
    return _HIDDEN.sub(lambda found: f"⟦U+{ord(found[0]):04X}⟧", text)


def finalize(value: object) -> object:
    """Return the value of a template expression as it is shown; None is nothing."""
    if value is None:
        return ""
    if isinstance(value, Markup):
        return value
    return show_hidden(value) if isinstance(value, str) else value


def parse_zone(name: str) -> tzinfo:
    """Return the time zone of a name; UTC if there is none of that name here."""
    try:
        return ZoneInfo(name) if name and len(name) < 60 else UTC
    except (ValueError, KeyError, OSError):
        return UTC


def build_time_filter(zone: tzinfo, now_s: float) -> Callable[[float | None], Markup | str]:
    """Return a filter that shows a time: today's as 14:05:09, others with their date."""
    today = datetime.fromtimestamp(now_s, zone).date()

    def show_time(at_s: float | None) -> Markup | str:
        if at_s is None:
            return "–"
        moment = datetime.fromtimestamp(at_s, zone)
        text = f"{moment:%H:%M:%S}" if moment.date() == today else f"{moment:%Y-%m-%d %H:%M}"
        return Markup('<time datetime="{}" title="{}">{}</time>').format(
            datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds"),
            f"{moment:%Y-%m-%d %H:%M:%S %Z}",
            text,
        )

    return show_time


def show_joules(value_j: float | None) -> str:
    """Return an energy in the units of a bill; "unknown" for None."""
    return "unknown" if value_j is None else format_joules(value_j)


def show_watts(value_w: float | None) -> str:
    """Return a power: `850 W`, `12.3 kW`; "unknown" for None."""
    if value_w is None:
        return "unknown"
    return f"{value_w / 1000:.2f} kW" if abs(value_w) >= 10_000 else f"{value_w:,.0f} W"


def show_seconds(value_s: float | None) -> str:
    """Return a duration; a dash for None."""
    if value_s is None:
        return "–"
    return f"{value_s:.1f} s" if abs(value_s) < 1 else format_seconds(value_s)


def show_percent(fraction: float | None) -> str:
    """Return a fraction in percent; a dash for None."""
    return "–" if fraction is None else f"{100 * fraction:.0f} %"


def show_short(value: float | None) -> str:
    """Return a number with three significant digits and never as a power of ten; a dash for None."""
    if value is None:
        return "–"
    return (
        f"{value:,.0f}"
        if abs(value) >= 100
        else f"{value:.3g}"
        if abs(value) >= 0.001 or not value
        else "<0.001"
    )


def show_sentence(text: str) -> str:
    """Return a message as a sentence: with a capital letter and a full stop."""
    stripped = text.strip()
    if not stripped:
        return ""
    return f"{stripped[0].upper()}{stripped[1:]}{'' if stripped[-1] in '.!?:…' else '.'}"


def show_command(words: Sequence[str]) -> str:
    """Return a command as it can be typed in a shell."""
    return shlex.join(words)


def show_change(value: object) -> str:
    """Return a value of the audit log in words: `role operator` for `{"role": "operator"}`."""
    if value is None or value == "" or value == [] or value == {}:
        return "–"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {show_change(one)}" for name, one in value.items())
    return ", ".join(map(show_change, value)) if isinstance(value, list | tuple) else str(value)


def mark_code(text: str) -> Markup:
    """Return text with the parts between backticks as code."""
    parts = show_hidden(text).split("`")
    if len(parts) % 2 == 0:  # one has no partner
        return escape("`".join(parts))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part)
        for number, part in enumerate(parts)
    )


def show_number(value: float | None) -> str:
    """Return a number with six significant digits; a dash for None."""
    return "–" if value is None else f"{value:.6g}"

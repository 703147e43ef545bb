"""Parse durations and limits as schedulers print them, such as 1-02:03:04."""

from __future__ import annotations

import math
import re

_CLOCK = re.compile(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}(?:\.\d{1,9})?))?")
_MINUTES = re.compile(r"(\d{1,9}):(\d{1,2}(?:\.\d{1,9})?)")
_UNLIMITED = frozenset(("unlimited", "infinite", "-1"))
_UNKNOWN = frozenset(("", "unknown", "partition_limit", "invalid", "none", "n/a", "not_set"))


def parse_clock(word: str) -> float:
    """Return the seconds of `[D-]HH:MM:SS`, `D-HH[:MM]`, `MM:SS` or a number of seconds; nan: it is none."""
    text = word.strip()
    if minutes := _MINUTES.fullmatch(text):
        return 60.0 * int(minutes[1]) + float(minutes[2])
    match = _CLOCK.fullmatch(text)
    if match is None or (match[1] is None and match[3] is None):
        return _parse_number(text)
    days, hours, mins, secs = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + mins) * 60 + secs


def parse_limit(word: str) -> float:
    """Return the seconds of a time limit like `parse_clock`; inf: unlimited, nan: unknown, -1: it is none."""
    text = word.strip().casefold()
    if text.endswith("+"):  # cut off by a narrow column: 365-00:00+, Partition+
        text = next((name for name in (*_UNKNOWN, *_UNLIMITED) if name.startswith(text[:-1])), text[:-1])
    if text in _UNKNOWN:
        return math.nan
    if text in _UNLIMITED:
        return math.inf
    limit_s = parse_clock(text)
    return -1.0 if math.isnan(limit_s) else limit_s


def _parse_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if 0 <= value < math.inf else math.nan

"""What to call each run, so that names are short and no two are the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from wattline.reports.summary import Report

_MORE = ("place", "cluster", "trace", "seed")  # what else may tell two runs apart


def names(reports: Sequence[Report]) -> tuple[str, ...]:
    """The policies, without their knobs where that is enough; else with what differs.

    Where placers differ, each policy has its own behind an `@`, as on the command line.
    """
    found = [r.policy or "?" for r in reports]
    short = [without_knobs(name) for name in found]
    if len(set(short)) == len(set(found)):
        found = short
    places = [_placer(r.place) for r in reports]
    if len(set(places)) > 1:  # it may switch nodes off, so it is said even where policies differ
        found = [f"{name}@{place}" for name, place in zip(found, places, strict=True)]
    for field in _MORE:
        twice = {name for name, count in Counter(found).items() if count > 1}
        values = [getattr(r, field) for r in reports]
        for name in twice:
            rows = [i for i, other in enumerate(found) if other == name]
            if len({values[i] for i in rows}) > 1:
                for i in rows:
                    found[i] = f"{name}, {field} {values[i]}"
    twice = {name for name, count in Counter(found).items() if count > 1}
    return tuple(f"{name} #{i + 1}" if name in twice else name for i, name in enumerate(found))


def _placer(text: str) -> str:
    """`Power(place=Buddy(backfill='easy'), spare=0)` as `buddy+power`."""
    made = re.findall(r"(\w+)\(", text)
    return "+".join(word.casefold() for word in reversed(made)) or text or "?"


def without_knobs(text: str) -> str:
    """`Las(tick_s=60.0)+keep` as `Las+keep`."""
    kept, depth = [], 0
    for letter in text:
        depth += letter == "("
        if depth == 0:
            kept.append(letter)
        depth -= letter == ")"
    return "".join(kept)

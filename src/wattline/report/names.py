"""What to call each run, so that names are short and no two are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from wattline.report.metrics import Report

_MORE = ("place", "cluster", "trace", "seed")  # what else may tell two runs apart


def names(reports: Sequence[Report]) -> tuple[str, ...]:
    """The policies, without their knobs where that is enough; else with what differs."""
    found = [r.policy or "?" for r in reports]
    short = [without_knobs(name) for name in found]
    if len(set(short)) == len(set(found)):
        found = short
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


def without_knobs(text: str) -> str:
    """`Las(tick_s=60.0)+keep` as `Las+keep`."""
    kept, depth = [], 0
    for letter in text:
        depth += letter == "("
        if depth == 0:
            kept.append(letter)
        depth -= letter == ")"
    return "".join(kept)

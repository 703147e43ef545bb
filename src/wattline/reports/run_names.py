"""Short, unique names of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from wattline.reports.summary import Report

_MORE = ("place", "cluster", "trace", "seed")  # further fields that distinguish two runs


def name_runs(reports: Sequence[Report]) -> tuple[str, ...]:
    """Return a name per run: its policy, without knobs where that is unique, else with what differs.

    Where placers differ, the placer follows after an `@`, as on the command line.
    """
    found = [r.policy or "?" for r in reports]
    short = [without_knobs(name) for name in found]
    if len(set(short)) == len(set(found)):
        found = short
    places = [without_knobs(r.place) or "?" for r in reports]
    if len(set(places)) > 1:  # shown even where policies differ: a placer may switch nodes off
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


def without_knobs(text: str) -> str:
    """Return the text of a policy or placer without its knobs: `las:quantum=60s+keep` as `las+keep`.

    Text in brackets is left out too, as in `Mine(x=1)`, the text of a class that is not part of Wattline.
    """
    written, depth, in_knobs = [], 0, False
    for letter in text:
        depth += letter == "("
        if depth == 0:
            in_knobs = letter == ":" or (in_knobs and letter != "+")
            if not in_knobs:
                written.append(letter)
        depth -= letter == ")"
    return "".join(written)

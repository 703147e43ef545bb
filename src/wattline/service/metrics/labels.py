"""Values of labels: safe for the text format of Prometheus, and of bounded number."""

from __future__ import annotations

from collections.abc import Mapping

MOST_TEAMS = 200
"""Teams with series of their own; the joules of further ones are those of `OTHER_TEAMS`."""
OTHER_TEAMS = "(other teams)"
_MOST_CHARACTERS = 128


def clean_label(text: str) -> str:
    """Return *text* as a label value: valid UTF-8 without control characters, of limited length.

    The client library escapes quotes, backslashes and line ends, but fails for lone surrogates, which JSON
    strings of users may contain.
    """
    valid = text.encode("utf-8", "replace").decode("utf-8")
    shown = "".join(character if character.isprintable() else "�" for character in valid)
    return shown if len(shown) <= _MOST_CHARACTERS else f"{shown[: _MOST_CHARACTERS - 1]}…"


def merge_teams(values: Mapping[str, float]) -> dict[str, float]:
    """Return values by label: of the first `MOST_TEAMS` teams one by one, of the others their sum.

    Teams that came first keep their series, so that no counter falls. Equal labels are added.
    """
    merged: dict[str, float] = {}
    for number, (team, value) in enumerate(values.items()):
        label = clean_label(team) if number < MOST_TEAMS else OTHER_TEAMS
        merged[label] = merged.get(label, 0.0) + value
    return merged

"""`ReplayChoice`: which steps that are not compiled are traced and replayed."""

from __future__ import annotations

from collections.abc import Hashable

AFTER = 4  # steps that run uncompiled before one is traced
LIMIT_S = 0.03  # longer steps gain nothing


class ReplayChoice:
    """Counts and times uncompiled steps; short ones are replayed after a few, if *allowed*."""

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed
        self._seen: dict[Hashable, tuple[int, float]] = {}  # steps, and seconds of the fastest

    def is_due(self, key: Hashable) -> bool:
        """Return whether the next step of the form *key* is to be replayed."""
        count, step_s = self._seen.get(key, (0, 0.0))
        return self.allowed and count >= AFTER and step_s < LIMIT_S

    def note(self, key: Hashable, step_s: float) -> None:
        """Count an uncompiled step of the form *key*."""
        count, fastest_s = self._seen.get(key, (0, step_s))
        self._seen[key] = (count + 1, min(fastest_s, step_s))

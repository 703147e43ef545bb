"""Records of the event table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class NewEvent:
    """An event to be written. Kinds that `projection` does not know are stored and change no table."""

    at_s: float
    kind: str
    job: str | None  # None: an event of the service itself
    data: Mapping[str, Any]


@dataclass(frozen=True)
class StoredEvent(NewEvent):
    """An event that was read back, with its sequence number."""

    seq: int

    def redacted(self) -> StoredEvent:
        """Return the event without the values of environment variables, which may be secrets."""
        spec = self.data.get("submission", {}).get("spec", {})
        if not spec.get("env"):
            return self
        hidden = {**spec, "env": dict.fromkeys(spec["env"], "…")}
        return replace(self, data={**self.data, "submission": {**self.data["submission"], "spec": hidden}})

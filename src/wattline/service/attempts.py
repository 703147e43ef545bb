"""Attempts of a job, from its events: allocation, caps with their origin, energy and outcome of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from wattline.service.storage.events import StoredEvent
from wattline.service.storage.queries import StoreReader
from wattline.service.storage.usage_table import ENDS

_PAGE_EVENTS = 1000


@dataclass(frozen=True)
class CapChange:
    """A power cap of each GPU of an attempt; *cap_w* None: no cap."""

    at_s: float
    cap_w: float | None
    origin: str  # "policy", "job file" or "session"


@dataclass
class AttemptHistory:
    """One attempt. *energy_j* is that of this attempt alone; None: unknown, or it has not ended."""

    number: int
    start_s: float
    gpus: list[int]
    kind: str
    batch: int | None
    cpus: int | None
    fused_with: list[str]
    caps: list[CapChange] = field(default_factory=list)
    end_s: float | None = None
    outcome: str = ""  # state of the job, or that it was requeued; empty: it runs
    message: str = ""
    energy_j: float | None = None
    energy_method: str = ""
    exit_code: int | None = None
    signal: str | None = None


def read_attempts(store: StoreReader, job: str, power_w: float | None) -> list[AttemptHistory]:
    """Return the attempts of a job, the oldest first; *power_w* is the cap in its job file, None: none."""
    return build_attempts(_read_events(store, job), power_w)


def _read_events(store: StoreReader, job: str) -> Iterable[StoredEvent]:
    after = 0
    while events := store.events(after, job, _PAGE_EVENTS):
        yield from events
        after = events[-1].seq


def build_attempts(events: Iterable[StoredEvent], power_w: float | None) -> list[AttemptHistory]:
    """Return the attempts that the events of one job describe."""
    attempts: list[AttemptHistory] = []
    energy_j: float | None = 0.0  # of all attempts before
    for event in events:
        data, at_s = event.data, event.at_s
        if event.kind == "started":
            attempt = AttemptHistory(
                number=data["attempt"],
                start_s=at_s,
                gpus=list(data.get("gpus", ())),
                kind=data.get("kind", ""),
                batch=data.get("batch") or None,
                cpus=data.get("cpus"),
                fused_with=list(data.get("fused_with", ())),
            )
            attempt.caps.append(_build_cap(at_s, data.get("cap_w"), power_w))
            attempts.append(attempt)
        elif event.kind == "retuned" and attempts:
            change = _build_cap(at_s, data.get("cap_w"), power_w)
            if change.cap_w != attempts[-1].caps[-1].cap_w:
                attempts[-1].caps.append(change)
        elif event.kind in ENDS:
            after_j = data.get("energy_j")
            if attempts and attempts[-1].end_s is None:
                used_j = None if after_j is None or energy_j is None else after_j - energy_j
                _end(attempts[-1], event, used_j)
            energy_j = after_j
    return attempts


def _build_cap(at_s: float, cap_w: float | None, power_w: float | None) -> CapChange:
    return CapChange(at_s, cap_w or None, "job file" if cap_w and cap_w == power_w else "policy")


def _end(attempt: AttemptHistory, event: StoredEvent, energy_j: float | None) -> None:
    data: Any = event.data
    attempt.end_s = event.at_s
    attempt.outcome = data["state"] if event.kind == "ended" else "REQUEUED"
    attempt.message = data["message"]
    attempt.energy_j, attempt.energy_method = energy_j, data["energy_method"]
    attempt.exit_code, attempt.signal = data.get("exit_code"), data.get("signal")

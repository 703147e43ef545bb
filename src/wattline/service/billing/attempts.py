"""Energy of every attempt in a time, from the events that begin and end attempts.

The counters of the GPUs are read at both ends of an attempt. An attempt that crosses the start or the end of
the month is divided by its power samples if they are complete, else evenly over its time. Within the month
joules are taken to be spread evenly over it, which matters at a change of the price.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from wattline.service.storage.attempt_events import AttemptEvent
from wattline.service.storage.usage_table import ENDS


@dataclass(frozen=True)
class CapPeriod:
    """A part of an attempt with one power cap; None: no cap."""

    start_s: float
    end_s: float
    cap_w: float | None


@dataclass(frozen=True)
class AttemptUse:
    """One attempt of a job; *energy_j* None: unknown."""

    job: str
    start_s: float
    end_s: float
    energy_j: float | None
    method: str
    gpus: int
    kind: str
    batch: int | None
    fused_with: tuple[str, ...]
    caps: tuple[CapPeriod, ...]
    outcome: str  # stopped, retry, or the state in which the job ended; RUNNING: it runs
    found_cap_w: float | None = None  # cap that the job's session found

    @property
    def gpu_s(self) -> float:
        """GPU-seconds; the members of an array share theirs equally."""
        return self.gpus * (self.end_s - self.start_s) / (1 + len(self.fused_with))

    def clip(self, since_s: float, until_s: float, share: float | None = None) -> AttemptUse | None:
        """Return the part from *since_s* to *until_s*; None: it has none.

        *share* is that of its joules; None: joules are spread evenly.
        """
        start_s, end_s = max(self.start_s, since_s), min(self.end_s, until_s)
        if start_s > end_s or start_s >= until_s or (end_s <= since_s and self.start_s < since_s):
            return None
        lasts_s = self.end_s - self.start_s
        if share is None:
            share = (end_s - start_s) / lasts_s if lasts_s > 0 else 1.0
        energy_j = None if self.energy_j is None else share * self.energy_j
        return replace(self, start_s=start_s, end_s=end_s, energy_j=energy_j)


def build_attempts(
    events: Iterable[AttemptEvent], read_live: Callable[[str], Mapping[str, Any]], now_s: float
) -> list[AttemptUse]:
    """Return the attempts of *events*, which are in order; *read_live* is the status of a running job."""
    jobs: dict[str, _JobAttempts] = {}
    for event in events:
        jobs.setdefault(event.job, _JobAttempts(event.job)).add(event)
    return [attempt for one in jobs.values() for attempt in one.finish(read_live, now_s)]


class _JobAttempts:
    """Attempts of one job. Joules in its events are the sum of all attempts so far."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._before_j: float | None = 0.0
        self._open: tuple[float, Mapping[str, Any], list[tuple[float, float | None]]] | None = None
        self._ended: list[AttemptUse] = []

    def add(self, event: AttemptEvent) -> None:
        if event.kind == "started":
            self._open = event.at_s, event.data, [(event.at_s, event.data.get("cap_w") or None)]
        elif event.kind == "retuned" and self._open is not None:
            self._open[2].append((event.at_s, event.data.get("cap_w") or None))
        elif event.kind in ENDS:
            outcome = str(event.data.get("state", event.kind))
            self._close(event.at_s, event.data, outcome)

    def _close(self, end_s: float, data: Mapping[str, Any], outcome: str) -> None:
        total_j = data.get("energy_j")
        if self._open is not None:
            known = total_j is not None and self._before_j is not None
            energy_j = max(float(total_j) - self._before_j, 0.0) if known else None  # type: ignore[arg-type,operator]
            start_s, about, caps = self._open
            times_s = [*(at_s for at_s, _ in caps[1:]), end_s]
            self._ended.append(
                AttemptUse(
                    job=self._job,
                    start_s=start_s,
                    end_s=max(end_s, start_s),
                    energy_j=energy_j,
                    method=str(data.get("energy_method") or "unmetered"),
                    gpus=len(about.get("gpus", ())),
                    kind=str(about.get("kind", "")),
                    batch=data.get("batch") or about.get("batch") or None,
                    fused_with=tuple(about.get("fused_with", ())),
                    caps=tuple(
                        CapPeriod(at_s, until_s, cap_w)
                        for (at_s, cap_w), until_s in zip(caps, times_s, strict=True)
                    ),
                    outcome=outcome,
                    found_cap_w=data.get("found_cap_w") or None,
                )
            )
        self._open, self._before_j = None, total_j

    def finish(self, read_live: Callable[[str], Mapping[str, Any]], now_s: float) -> list[AttemptUse]:
        if self._open is not None:
            self._close(now_s, read_live(self._job), "RUNNING")
        return [replace(one, energy_j=None) if one.method == "unmetered" else one for one in self._ended]

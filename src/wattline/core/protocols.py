"""Protocols of the four replaceable parts: Policy, Placer, Models and Backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from wattline.core.actions import Actions
from wattline.core.events import WAKE_EVENTS, Events
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.plan import Placement, Plan
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats


@runtime_checkable
class Models(Protocol):
    """Predictions of speed and power; immutable, learning returns a new object.

    Optional members: an attribute `alike`, True if predictions depend only on the columns of a job, so that
    they hold for all jobs with equal columns; and a method `widest(jobs, grants)`, the number of such jobs
    that fit as one array into the memory of a GPU.
    """

    def speed(self, jobs: Jobs, grants: Grants) -> Floats:
        """Return the speed of each grant, relative to the job's requested configuration (1.0)."""
        ...

    def watts(self, jobs: Jobs, grants: Grants) -> Floats:
        """Return the watts of one GPU of each grant; nan: unknown."""
        ...

    def observe(self, events: Events, jobs: Jobs, leases: Leases, nodes: Nodes) -> Models:
        """Return the models after *events*; *leases* are those held on *nodes* when the events occurred."""
        ...


Policy = Callable[[Snapshot, Models], Plan]
Placer = Callable[[Plan, Snapshot, Models], Placement]


class Backend(Protocol):
    """Engine that runs leases and keeps the time: a simulator, a replay, or real machines."""

    @property
    def jobs(self) -> Jobs:
        """All jobs; a simulation also has those that have not arrived yet."""
        ...

    @property
    def nodes(self) -> Nodes:
        """Nodes of the cluster."""
        ...

    def wait(self, until_s: float, wake: frozenset[int] = WAKE_EVENTS) -> tuple[float, Events]:
        """Wait for an event, at most until *until_s*; return the time and the events in order.

        Events with a verb outside *wake* may be kept back until the next return. The time is `inf` when no
        event can come any more.
        """
        ...

    def apply(self, actions: Actions) -> None:
        """Carry out *actions*."""
        ...

    def is_idle(self) -> bool:
        """Return True if no job runs and none is still to arrive."""
        ...

    def close(self) -> Events:
        """Stop the clock and return the last meter readings."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return the entries that describe this backend in the header of a log."""
        ...

"""The protocols at the four seams: Policy, Placer, Models, Backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from wattline.core.actions import Actions
from wattline.core.events import EVERY_EVENT, Events
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.plan import Placement, Plan
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats


@runtime_checkable
class Models(Protocol):
    """What is believed about jobs; learns by being replaced, never by changing.

    A class may have *alike* set to True: what it says of a job then depends on what the trace says of it
    and not on which job it is, so that what was said of one need not be asked of others like it. It may have
    a method *widest(jobs, grants)*, too: how many such jobs fit as one array into the memory of a GPU.
    """

    def speed(self, jobs: Jobs, grants: Grants) -> Floats:
        """How fast jobs advance when they are run so, relative to what the trace says of each: 1.0 is
        "as asked"."""
        ...

    def watts(self, jobs: Jobs, grants: Grants) -> Floats:
        """What one GPU of each draws when they are run so; nan: nobody knows."""
        ...

    def observe(self, events: Events, jobs: Jobs, leases: Leases, nodes: Nodes) -> Models:
        """What is believed after these events; *leases* are what jobs held on *nodes* when they happened."""
        ...


Policy = Callable[[Snapshot, Models], Plan]
Placer = Callable[[Plan, Snapshot, Models], Placement]


class Backend(Protocol):
    """What runs leases and keeps the time."""

    @property
    def jobs(self) -> Jobs:
        """Everything submitted so far or to come; only rows that have arrived may be shown."""
        ...

    @property
    def nodes(self) -> Nodes:
        """The machines."""
        ...

    def wait(self, until_s: float, wake: frozenset[int] = EVERY_EVENT) -> tuple[float, Events]:
        """Let time pass until something happens, at most until *until_s*.

        Events whose verb is not in *wake* need not end the waiting; they are told with the next that
        does. Answers the time and what happened, in order; `inf` when nothing will ever happen again.
        """
        ...

    def apply(self, actions: Actions) -> None:
        """Do what was decided."""
        ...

    def idle(self) -> bool:
        """Whether nothing runs and nobody is still to come."""
        ...

    def close(self) -> Events:
        """Stop the clock and give the last readings."""
        ...

    def describe(self) -> dict[str, Any]:
        """What the header of a log says about it."""
        ...

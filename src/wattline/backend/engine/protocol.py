"""The protocol of engines: what starts processes on nodes for `EngineBackend`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.job_record import JobRecord
from wattline.core.nodes import Nodes


@dataclass(frozen=True)
class GpuReading:
    """One GPU at the time of a power sample."""

    node: int
    gpu: int  # index on the machine
    power_w: float | None  # mean since the reading before, by its energy counter; None: it cannot be read
    cap_w: float | None
    jobs: tuple[str, ...] = ()  # with processes on it


@dataclass(frozen=True)
class HeldByOthers:
    """Resources of a node that jobs hold which this engine has not started."""

    gpus: int = 0
    cpus: float = 0.0
    mem_gib: float = 0.0


class Engine(Protocol):
    """Runs attempts on nodes.

    `EngineBackend` calls it from one thread. An engine keeps whatever it needs per attempt by the identity of
    the `AttemptRecord`, from `start` or `adopt` until `release` has been called for all its jobs. It writes
    the record's fields that are marked so, in `start`, `adopt`, `poll` and `retune` only. Calls must not
    block for long: an engine that talks to a remote scheduler does that in threads of its own.
    """

    @property
    def nodes(self) -> Nodes:
        """The nodes; allocations name them by row."""
        ...

    @property
    def simulated(self) -> bool:
        """True if the GPUs are simulated."""
        ...

    @property
    def runs_other_users(self) -> bool:
        """True if jobs of other users run under their own accounts, where this process may do that."""
        ...

    @property
    def container_problem(self) -> str:
        """The reason why jobs cannot run in containers here; empty: they can."""
        ...

    @property
    def energy_method(self) -> str:
        """Name of the energy measurement, as shown in reports; "unmetered": there is none."""
        ...

    @property
    def problem(self) -> str:
        """Reason for which attempts cannot be started or observed now; empty: none. Read from any thread."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return facts for the header of a run log, as plain data."""
        ...

    # -- attempts

    def start(
        self,
        attempt: AttemptRecord,
        jobs: Sequence[JobRecord],
        after: Sequence[AttemptRecord] = (),
        beside: AttemptRecord | None = None,
    ) -> None:
        """Start *jobs* as one attempt, as soon as its GPUs are free and all of *after* are released.

        On return it is *running*, *queued* or *refused*. *beside* is an attempt that shares its GPUs.
        """
        ...

    def find(self, folder: Path) -> AttemptRecord | None:
        """Return the attempt that an earlier process started in *folder*, or the array that it is a part of.

        None: it was never started. An attempt that was requested and did not start is made unable to start.
        """
        ...

    def adopt(self, attempt: AttemptRecord) -> bool:
        """Take charge of an attempt that `find` returned, of which *jobs* are still of interest.

        False: its GPUs do not exist any more; the attempt was ended.
        """
        ...

    def poll(self, attempts: Sequence[AttemptRecord]) -> None:
        """Update the state of all *attempts*, and start those that are queued and can start.

        The processes of an attempt that ended or vanished are gone when this returns.
        """
        ...

    def stop(self, attempt: AttemptRecord) -> None:
        """Ask a started attempt to save its work and end; it is killed after the job's grace period."""
        ...

    def kill(self, attempt: AttemptRecord) -> None:
        """End a started attempt at once."""
        ...

    def retune(self, attempt: AttemptRecord) -> bool:
        """Apply the attempt's changed *settings*; False: not all could be changed, and it runs on."""
        ...

    def release(self, attempt: AttemptRecord, job: str) -> float | None:
        """Remove a job from the attempt and return the joules that it used; None: unknown.

        After its last job the attempt's GPUs are free, and their power limits are restored; if it is still
        queued, it never starts.
        """
        ...

    # -- energy

    def sample_energy(self) -> None:
        """Read the meters. `energy_j` and `total_energy_j` are as of the last sample."""
        ...

    def energy_j(self, job: str) -> float | None:
        """Return the joules of a job in its current attempt; None: unknown, as a meter is absent or lost.

        The value of a job never falls while it is in the attempt. Callable from any thread.
        """
        ...

    def counted_energy_j(self, job: str) -> float:
        """Return the joules of a job in its current attempt that were counted: at least so many were used."""
        ...

    def total_energy_j(self) -> float | None:
        """Return the joules of all GPUs since the engine was opened; None: unmetered."""
        ...

    def power_w(self, attempt: AttemptRecord) -> float | None:
        """Return the power draw of the attempt's GPUs now; None: unmetered."""
        ...

    def read_gpus(self) -> Sequence[GpuReading]:
        """Return power, cap and jobs of every GPU, for the history of power."""
        ...

    def gpu_model(self, node: int) -> tuple[str, float]:
        """Return the name of a node's GPUs, and the highest power limit of one of them."""
        ...

    def cap_ranges_w(self) -> tuple[tuple[float, float] | None, ...]:
        """Return the lowest and highest power limit of a GPU of each node; None: it cannot be read."""
        ...

    # -- nodes

    def node_changes(self) -> Sequence[tuple[int, bool]]:
        """Return the nodes that went down (False) or came up (True) since the last call, in order.

        All nodes count as up before the first call.
        """
        ...

    def held_by_others(self) -> Mapping[int, HeldByOthers]:
        """Return by node what jobs hold that this engine has not started; empty: it has the nodes alone.

        A node of which others hold everything is down by `node_changes` unless an attempt is there.
        """
        ...

    def power(self, node: int, on: bool) -> bool:
        """Switch a node on or off; False: this engine cannot, and the node stays as it is.

        When a node that was switched on is up, `node_changes` reports it, and likewise if it could not be
        switched off after all.
        """
        ...

    # -- time

    def wake_files(self) -> Sequence[int]:
        """Return file descriptors that become readable when the next `poll` may find a change."""
        ...

    @property
    def poll_interval_s(self) -> float:
        """Longest time between polls; inf: `wake_files` covers every change."""
        ...

    def close(self) -> None:
        """Free all resources. Attempts run on; changed power limits are restored."""
        ...

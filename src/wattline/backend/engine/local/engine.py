"""Engine that runs attempts as processes of this machine, each with a supervisor process."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.container import find_apptainer
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.local.attempt_processes import AttemptProcesses
from wattline.backend.engine.local.cgroups import ResourceLimits
from wattline.backend.engine.local.gpu_allocator import GpuAllocator
from wattline.backend.engine.local.launcher import launch, read_lease, update_lease
from wattline.backend.engine.local.machine import Machine
from wattline.backend.engine.protocol import GpuReading, HeldByOthers
from wattline.core.nodes import Nodes
from wattline.errors import MeterError, WattlineError
from wattline.meter.gpu_names import name_gpu_kind

_KILL_WAIT_S = 5.0  # for the end of an attempt after its GPUs are gone
_POLL_S = 0.2  # where the kernel has no file descriptors for processes

_logger = logging.getLogger(__name__)


@dataclass
class _Held:
    """The engine's data about an attempt, kept until it is released."""

    jobs: list[JobRecord] = field(default_factory=list)  # to start; empty: it was adopted
    after: list[AttemptRecord] = field(default_factory=list)
    processes: AttemptProcesses | None = None  # None: not started
    pidfd: int | None = None
    stopping: bool = False
    cap_w: int = 0


class LocalEngine:
    """Implements `wattline.backend.engine.protocol.Engine` with processes of this machine.

    The machine has one node for each kind of GPU. All files are in *root*.
    """

    problem = ""
    runs_other_users = True  # as root

    def __init__(self, root: Path, gpus: str, limits: ResourceLimits | None = None) -> None:
        self._root = root
        self.machine = Machine.open(gpus, root)
        self._allocator = GpuAllocator(self.machine.meter, root / "caps")
        # Several services on one machine must not share the names of their cgroups.
        own = hashlib.sha256(str(root).encode()).hexdigest()[:8]
        self._limits = ResourceLimits(parent=f"wattline-{own}") if limits is None else limits
        self._limits_method = self._limits.method
        self._held: dict[AttemptRecord, _Held] = {}

    @property
    def nodes(self) -> Nodes:
        """One node for each kind of GPU."""
        return self.machine.nodes

    @property
    def simulated(self) -> bool:
        """True if the GPUs are simulated."""
        return bool(self.machine.simulated)

    @property
    def container_problem(self) -> str:
        """The reason why jobs cannot run in containers here; empty: Apptainer is installed."""
        return "" if find_apptainer() else "Apptainer is not installed on this machine"

    @property
    def energy_method(self) -> str:
        """The method of the GPUs' meter."""
        return self._allocator.method

    def describe(self) -> dict[str, Any]:
        """Return facts for the header of a run log."""
        return {
            "backend": "local",
            "gpus": self.machine.text,
            "energy": self.energy_method,
            "limits": self._limits_method,
        }

    # -- attempts

    def start(
        self,
        attempt: AttemptRecord,
        jobs: Sequence[JobRecord],
        after: Sequence[AttemptRecord] = (),
        beside: AttemptRecord | None = None,
    ) -> None:
        """Choose GPUs, and start the processes unless others are still being stopped on them."""
        if beside is not None:
            attempt.gpus = beside.gpus
        else:
            leased = {gpu for other in self._held if not other.preempted for gpu in other.gpus}
            for node, count in attempt.allocation:
                gpus = self._allocator.choose(count, self.machine.gpus_of(node), leased)
                attempt.gpus += gpus
                leased |= set(gpus)
        self._held[attempt] = _Held(list(jobs), list(after), cap_w=attempt.settings.cap_w)
        if self._can_start(attempt):
            self._launch(attempt)

    def _can_start(self, attempt: AttemptRecord) -> bool:
        gpus = set(attempt.gpus)
        stopping = [one for one, held in self._held.items() if held.processes is not None and held.stopping]
        in_use = any(not gpus.isdisjoint(other.gpus) for other in stopping)
        return not in_use and not any(other in self._held for other in self._held[attempt].after)

    def _launch(self, attempt: AttemptRecord) -> None:
        held = self._held[attempt]
        jobs = [job for job in held.jobs if job.id in attempt.jobs]
        try:
            self._set_cap(attempt)
            self._allocator.occupy(attempt.jobs, attempt.gpus)
            energy = self._allocator.split(attempt.jobs, attempt.gpus)
            launch(self._root, self.machine, self._limits, jobs, attempt, energy)
            self._store_energy(attempt.gpus, but=attempt)
        except (OSError, WattlineError) as error:
            attempt.state, attempt.message = "refused", str(error)
            return
        attempt.state = "running"
        held.cap_w = attempt.settings.cap_w
        held.processes = AttemptProcesses(attempt.folder)
        held.pidfd = held.processes.pidfd()

    def find(self, folder: Path) -> AttemptRecord | None:
        """Return the attempt of a lease.json; one that no supervisor has claimed becomes void."""
        lease = read_lease(folder)
        if lease is None:
            return None
        attempt, _ = lease
        processes = AttemptProcesses(attempt.folder)
        if processes.state() == "new":
            processes.void()  # fails if a supervisor claims it now
        return None if processes.state() == "void" else attempt

    def adopt(self, attempt: AttemptRecord) -> bool:
        """Watch the processes of an attempt, and continue its energy from the counters of its start."""
        processes = AttemptProcesses(attempt.folder)
        if max(attempt.gpus) >= len(self.machine.meter.gpus):
            _logger.warning(
                "jobs %s ran on GPUs that are gone; they are ended and start again",
                ", ".join(attempt.jobs),
            )
            processes.kill()
            processes.wait(_KILL_WAIT_S)
            processes.kill_leftovers()
            return False
        lease = read_lease(attempt.folder)
        self._held[attempt] = _Held(
            processes=processes, pidfd=processes.pidfd(), cap_w=attempt.settings.cap_w
        )
        self._allocator.occupy(attempt.jobs, attempt.gpus, None if lease is None else lease[1])
        attempt.state = "running"
        if processes.state() == "running":
            self._set_cap(attempt)
        return True

    def _set_cap(self, attempt: AttemptRecord) -> bool:
        """Set the power limit of its GPUs, and read it back; False: they have a higher one."""
        cap_w = attempt.settings.cap_w
        done = self._allocator.set_cap(attempt.gpus, cap_w)
        attempt.cap_w = self._allocator.cap_w(attempt.gpus)
        if cap_w and not done:
            _logger.warning(
                "GPUs %s of job %s have a power limit of %s W, and %d W was to be set",
                ", ".join(map(str, attempt.gpus)),
                ", ".join(attempt.jobs),
                "?" if attempt.cap_w is None else f"{attempt.cap_w:g}",
                cap_w,
            )
        return done

    def _store_energy(self, gpus: Sequence[int], but: AttemptRecord | None = None) -> None:
        """Write how the jobs on *gpus* share their energy from now on, for a process that adopts them."""
        for attempt, held in self._held.items():
            if attempt is not but and held.processes is not None and not set(gpus).isdisjoint(attempt.gpus):
                with suppress(OSError):  # the disk is full: a restart splits it as before
                    update_lease(attempt, self._allocator.split(attempt.jobs, attempt.gpus))

    def poll(self, attempts: Sequence[AttemptRecord]) -> None:
        """Read the state of all attempts from their folders."""
        for attempt in attempts:
            held = self._held[attempt]
            if attempt.state == "running" and held.processes is not None:
                state = held.processes.state()
                if state != "running":
                    self._end(attempt, held.processes, state == "ended")
            elif attempt.state == "queued" and self._can_start(attempt):
                self._launch(attempt)

    def _end(self, attempt: AttemptRecord, processes: AttemptProcesses, has_exit: bool) -> None:
        attempt.exit = processes.exit() if has_exit else None
        if attempt.exit is None:
            processes.kill_leftovers()
            attempt.state, attempt.failure = "vanished", "reboot" if processes.rebooted() else ""
        else:
            attempt.state = "ended"
        self._close_pidfd(attempt)
        self._limits.release(_limits_name(attempt))

    def stop(self, attempt: AttemptRecord) -> None:
        """Ask the supervisor to end the job."""
        held = self._held[attempt]
        held.stopping = True
        if held.processes is not None:
            held.processes.stop()

    def kill(self, attempt: AttemptRecord) -> None:
        """Let the supervisor kill the job."""
        held = self._held[attempt]
        held.stopping = True
        if held.processes is not None:
            held.processes.kill()

    def retune(self, attempt: AttemptRecord) -> bool:
        """Set the power limit of its GPUs, and the cores and memory of its cgroup."""
        held, cap_w = self._held[attempt], attempt.settings.cap_w
        changed = True
        if held.processes is None:
            return changed
        if cap_w != held.cap_w:
            try:
                changed = self._set_cap(attempt)
            except WattlineError as error:  # the GPU is lost; the attempt will notice
                _logger.warning("a power limit of %d W cannot be set: %s", cap_w, error)
                changed = False
            held.cap_w = cap_w
            self._store_energy(attempt.gpus)
        cores, memory = self.machine.share(attempt.node, attempt.gpus, attempt.settings)
        attempt.cpus = len(cores)
        return self._limits.retune(_limits_name(attempt), cores, memory) and changed

    def release(self, attempt: AttemptRecord, job: str) -> float | None:
        """Stop counting energy for a job; with the last job, free the GPUs."""
        held = self._held[attempt]
        occupies = held.processes is not None or attempt.state == "refused"
        used_j = self._allocator.leave(job) if occupies else 0.0
        if attempt.jobs == [job]:
            self._close_pidfd(attempt)
            del self._held[attempt]
            gpus = set(attempt.gpus)
            if occupies and all(gpus.isdisjoint(other.gpus) for other in self._occupying()):
                self._allocator.set_cap(attempt.gpus, 0)
        if occupies:
            self._store_energy(attempt.gpus)
        return used_j

    def _occupying(self) -> list[AttemptRecord]:
        """Return the attempts with processes."""
        return [attempt for attempt, held in self._held.items() if held.processes is not None]

    def _close_pidfd(self, attempt: AttemptRecord) -> None:
        held = self._held[attempt]
        if held.pidfd is not None:
            os.close(held.pidfd)
            held.pidfd = None

    # -- energy

    def sample_energy(self) -> None:
        """Read the counters of all GPUs."""
        self._allocator.sample()

    def energy_j(self, job: str) -> float | None:
        """Return the joules of a job in its current attempt."""
        return self._allocator.energy_j(job)

    def counted_energy_j(self, job: str) -> float:
        """Return the joules of a job in its current attempt that were counted."""
        return self._allocator.counted_j(job)

    def total_energy_j(self) -> float | None:
        """Return the joules of all GPUs since the engine was opened."""
        return self._allocator.total_energy_j()

    def power_w(self, attempt: AttemptRecord) -> float | None:
        """Return the power draw of the attempt's GPUs."""
        return self._allocator.power_w(attempt.gpus)

    def read_gpus(self) -> Sequence[GpuReading]:
        """Return power, cap and jobs of every GPU."""
        powers = self._allocator.mean_power_w()
        return [
            GpuReading(
                node, gpu, powers[gpu], self._allocator.cap_w([gpu]), tuple(self._allocator.occupants(gpu))
            )
            for node in range(len(self.nodes))
            for gpu in self.machine.gpus_of(node)
        ]

    def gpu_model(self, node: int) -> tuple[str, float]:
        """Return the kind of the node's GPUs, and their highest power limit."""
        gpu = self.machine.meter.gpus[self.machine.gpus_of(node)[0]]
        return name_gpu_kind(gpu), gpu.cap_range_w()[1]

    def cap_ranges_w(self) -> tuple[tuple[float, float] | None, ...]:
        """Return the lowest and highest power limit of a GPU of each node; None: it cannot be read."""
        return tuple(self._cap_range_w(places[0]) for places in self.machine.places)

    def _cap_range_w(self, gpu: int) -> tuple[float, float] | None:
        try:
            return self.machine.meter.gpus[gpu].cap_range_w()
        except MeterError:
            return None

    # -- nodes and time

    def node_changes(self) -> Sequence[tuple[int, bool]]:
        """Return nothing: this machine is up as long as this code runs."""
        return ()

    def held_by_others(self) -> Mapping[int, HeldByOthers]:
        """Return nothing: processes that are not jobs hold no GPUs as far as this engine knows."""
        return {}

    def power(self, node: int, on: bool) -> bool:
        """Return False: this machine cannot be switched off."""
        return False

    def wake_files(self) -> Sequence[int]:
        """Return the process file descriptors of the supervisors."""
        return [held.pidfd for held in self._held.values() if held.pidfd is not None]

    @property
    def poll_interval_s(self) -> float:
        """A fifth of a second if some supervisor has no process file descriptor, else inf."""
        started = (held for held in self._held.values() if held.processes is not None)
        return _POLL_S if any(held.pidfd is None for held in started) else math.inf

    def close(self) -> None:
        """Close all files and restore power limits; processes run on."""
        for attempt in self._held:
            self._close_pidfd(attempt)
        self._allocator.close()


def _limits_name(attempt: AttemptRecord) -> str:
    """Return the name of the attempt's cgroups: the id of the job that leads it."""
    return attempt.folder.parent.parent.name

"""Engine that lets Slurm run attempts on the nodes of a partition."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.protocol import GpuReading, HeldByOthers
from wattline.backend.engine.slurm.attempt_folder import AttemptFolder
from wattline.backend.engine.slurm.background import CommandThreads, StatePoller
from wattline.backend.engine.slurm.checks import check_kill_wait
from wattline.backend.engine.slurm.cluster_state import read_state
from wattline.backend.engine.slurm.commands import (
    TIMEOUT_S,
    check_installation,
    find_container_runtime,
    read_config,
)
from wattline.backend.engine.slurm.energy_files import EnergyFiles
from wattline.backend.engine.slurm.launcher import read_attempt, update_settings
from wattline.backend.engine.slurm.node_list import read_nodes
from wattline.backend.engine.slurm.node_power import NodePower
from wattline.backend.engine.slurm.orders import write_orders
from wattline.backend.engine.slurm.others_jobs import OthersJobs
from wattline.backend.engine.slurm.submission import SlurmOptions
from wattline.backend.engine.slurm.tracker import Tracker
from wattline.backend.engine.user_files import replace_file
from wattline.core.nodes import Nodes
from wattline.errors import BackendError
from wattline.measurement.devices import device

_logger = logging.getLogger(__name__)

_POLL_S, _MANY_POLL_S, _MANY = 0.2, 1.0, 64  # between two looks at the folders of attempts


class SlurmEngine:
    """Implements `wattline.backend.engine.protocol.Engine` with Slurm's commands.

    *root* is the folder of all files, on a file system that all nodes share.
    """

    simulated = False

    def __init__(self, root: Path, options: SlurmOptions) -> None:
        check_installation()
        options = replace(options, container=options.container or find_container_runtime())
        self._root = root
        self._has_containers = bool(options.container)
        self._node_list = read_nodes(options.partition, options.gpu_kind)
        config = read_config()
        _warn_about_settings(config)
        self._threads = CommandThreads()
        self._tracker = Tracker(root, _read_service_id(root), self._node_list, options, self._threads)
        self._energy = EnergyFiles(root, self._node_list.names)
        self._down: set[int] = set()
        self._poller = StatePoller(
            lambda: read_state(self._tracker.prefix, options.partition, TIMEOUT_S), self._threads.wake
        )
        self._tracker.on_submit = self._poller.ask
        counts_memory = "MEMORY" in config.get("SelectTypeParameters", "").upper()
        self._others = OthersJobs(self._node_list, counts_memory=counts_memory)
        self._power = NodePower(config, self._threads, self._poller.ask)

    @property
    def nodes(self) -> Nodes:
        """The nodes of the partition that have GPUs."""
        return self._node_list.nodes

    @property
    def runs_other_users(self) -> bool:
        """True as root, which submits with `sbatch --uid`."""
        return os.geteuid() == 0

    @property
    def container_problem(self) -> str:
        """The reason why jobs cannot run in containers; empty: Slurm has Pyxis, or Apptainer is installed."""
        if self._has_containers:
            return ""
        return "srun has no flags of Pyxis, and Apptainer is not installed on the machine of the service"

    @property
    def energy_method(self) -> str:
        """The methods of the meters that the node steps have found."""
        return self._energy.method

    @property
    def problem(self) -> str:
        """The reason why Slurm does not respond, or why no job can be written; empty: there is none."""
        if self._poller.problem:
            return f"Slurm does not respond: {self._poller.problem}"
        return self._tracker.problem

    def describe(self) -> dict[str, Any]:
        """Return facts for the header of a run log."""
        return {
            "backend": "slurm",
            "partition": self._node_list.partition,
            "version": self._node_list.version,
            "gpus": f"{int(self.nodes.gpus.sum())} on {len(self.nodes)} nodes",
            "energy": self.energy_method,
            "limits": "slurm",
        }

    # -- attempts

    def start(
        self,
        attempt: AttemptRecord,
        jobs: Sequence[JobRecord],
        after: Sequence[AttemptRecord] = (),
        beside: AttemptRecord | None = None,
    ) -> None:
        """Submit the attempt; Slurm starts it when its GPUs are free.

        Slurm gives each GPU to one job, so an attempt *beside* another one starts after it.
        """
        for node, _ in attempt.allocation:
            self._power.forget(self._node_list.names[node])  # Slurm boots it for the job
        self._tracker.add(attempt, jobs, [*after, *([beside] if beside is not None else [])])
        self._tracker.update(self._tracker.tracked[attempt], self._poller.latest)

    def find(self, folder: Path) -> AttemptRecord | None:
        """Return the attempt that a batch step has claimed; one that none has claimed becomes void."""
        attempt = read_attempt(folder, self._node_list.row)
        if attempt is None:
            return None
        one = AttemptFolder(attempt.folder)
        if one.void():
            return None
        if one.claim() is None:
            raise BackendError(
                f"{attempt.folder}: cannot be written, and its job in Slurm may start at any time",
                "free space on the disk, and start the service again",
            )
        return attempt

    def adopt(self, attempt: AttemptRecord) -> bool:
        """Watch an attempt that runs; False: a node of it is not in the partition any more."""
        if any(node < 0 for node, _ in attempt.allocation):
            return False  # its job in Slurm is cancelled as one that is of no interest
        self._tracker.adopt(attempt)
        return True

    def poll(self, attempts: Sequence[AttemptRecord]) -> None:
        """Handle the answers of commands, and update all attempts."""
        self._threads.drain()
        state = self._poller.latest
        for attempt in attempts:
            self._tracker.update(self._tracker.tracked[attempt], state)
        self._tracker.sweep(state)

    def stop(self, attempt: AttemptRecord) -> None:
        """Send SIGTERM to the batch step, which passes the job's signal on and kills it after its grace."""
        self._tracker.send(attempt, "TERM", self._poller.latest)

    def kill(self, attempt: AttemptRecord) -> None:
        """Let the batch step kill the job."""
        self._tracker.send(attempt, "USR1", self._poller.latest)

    def retune(self, attempt: AttemptRecord) -> bool:
        """Write orders that the job's session reads; False: there is no session, or cores have changed."""
        if not attempt.started:
            return True  # the settings are read when it starts
        try:
            update_settings(attempt)
            write_orders(attempt.folder, attempt.settings.cap_w)
        except OSError as error:
            _logger.warning("a new cap could not be ordered, and the job keeps its own: %s", error)
            return False
        return any(progress.has_session for progress in attempt.progress.values())

    def release(self, attempt: AttemptRecord, job: str) -> float | None:
        """Remove a job; with the last one, forget the attempt and cancel what is left of it."""
        used_j = self._energy.leave(attempt, job) if attempt.started else 0.0
        if attempt.jobs == [job]:
            self._tracker.remove(attempt)
            self._poller.ask()
        return used_j

    # -- energy

    def sample_energy(self) -> None:
        """Read the files of the node steps."""
        self._energy.sample([one for one in self._tracker.tracked if one.started])

    def energy_j(self, job: str) -> float | None:
        """Return the joules of a job in its current attempt."""
        return self._energy.energy_j(job)

    def counted_energy_j(self, job: str) -> float:
        """Return the joules of a job in its current attempt that were counted."""
        return self._energy.energy_j(job) or 0.0

    def total_energy_j(self) -> float | None:
        """Return the joules of all attempts; GPUs without a job are not metered."""
        return self._energy.total_j()

    def power_w(self, attempt: AttemptRecord) -> float | None:
        """Return the power draw of the attempt's GPUs."""
        return self._energy.power_w(attempt)

    def read_gpus(self) -> Sequence[GpuReading]:
        """Return power and jobs of the GPUs of metered attempts."""
        readings = []
        for attempt in self._tracker.tracked:
            power_w, places = self._energy.power_w(attempt), iter(attempt.gpus)
            if power_w is None:
                continue
            for node, count in attempt.allocation:
                for gpu, _ in zip(places, range(count), strict=False):
                    mean_w = power_w / max(len(attempt.gpus), 1)
                    readings.append(GpuReading(node, gpu, mean_w, attempt.cap_w, tuple(attempt.jobs)))
        return readings

    def gpu_model(self, node: int) -> tuple[str, float]:
        """Return the kind of the node's GPUs, and the highest power limit of that kind."""
        kind = self.nodes.kind.word(node)
        return kind, device(kind).max_w

    def cap_ranges_w(self) -> tuple[tuple[float, float] | None, ...]:
        """Return the lowest and highest power limit of a GPU of each node, by the vendor's data."""
        kinds = (device(kind) for kind in self.nodes.kind.words())
        return tuple((kind.min_cap_w, kind.max_cap_w) for kind in kinds)

    # -- nodes and time

    def node_changes(self) -> Sequence[tuple[int, bool]]:
        """Return the nodes that went down or came back.

        A node that is drained counts as down when no attempt runs there any more, and so does one of which
        others hold everything. One that Slurm's power saving has ended does not: Slurm boots it for a job.
        """
        state = self._poller.latest
        self._others.update(state, self._tracker.shares)
        self._tracker.share_list = self._others.share_list
        changes = []
        for row, name in enumerate(self._node_list.names):
            if self._power.take_back(name, state):
                changes.append((row, True))
            if state.is_unknown(name):
                continue
            if self._power.is_switched(name):
                if not state.is_down(name):
                    continue
                self._power.forget(name)
            is_down = self._is_lost(row) if state.is_down(name) else self._is_closed(row, name)
            if is_down != (row in self._down):
                (self._down.add if is_down else self._down.discard)(row)
                changes.append((row, not is_down))
        return changes

    def _is_lost(self, row: int) -> bool:
        """Return whether nothing of an attempt is alive on a node that Slurm reports as down.

        After a loss of the network, or of slurmd alone, processes run on. Their jobs must not start again
        elsewhere.
        """
        return row in self._down or not any(
            self._tracker.is_alive(one, row) for one in self._attempts_on(row) if one.state == "running"
        )

    def _is_closed(self, row: int, name: str) -> bool:
        if self._others.hold_all(row) and not self._attempts_on(row):
            return True
        return self._poller.latest.is_drained(name) and not any(one.started for one in self._attempts_on(row))

    def _attempts_on(self, row: int) -> list[AttemptRecord]:
        return [one for one in self._tracker.tracked if any(node == row for node, _ in one.allocation)]

    def held_by_others(self) -> Mapping[int, HeldByOthers]:
        """Return by node what jobs hold that are not of this service."""
        return self._others.held

    def power(self, node: int, on: bool) -> bool:
        """Switch a node through Slurm's power saving; False: it is not set up, or a job is on the node."""
        if not on and self._attempts_on(node):
            return False
        return self._power.switch(self._node_list.names[node], on, self._poller.latest)

    def wake_files(self) -> Sequence[int]:
        """Return the file that is readable when Slurm has answered."""
        return [self._threads.file]

    @property
    def poll_interval_s(self) -> float:
        """A fifth of a second, a second for many attempts: their files are on a shared disk."""
        return _POLL_S if len(self._tracker.tracked) < _MANY else _MANY_POLL_S

    def close(self) -> None:
        """End all threads; jobs run on."""
        self._poller.close()
        self._threads.close()


def _warn_about_settings(config: Mapping[str, str]) -> None:
    finding = check_kill_wait(config)
    if not finding.works:
        _logger.warning("Slurm's %s: %s", finding.name, finding.says)


def _read_service_id(root: Path) -> str:
    """Return the id of the service in *root*, made when it is first opened."""
    path = root / "slurm" / "service_id"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, f"{uuid.uuid4().hex[:12]}\n".encode())
        return path.read_text().strip()

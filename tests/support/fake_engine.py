"""An engine without processes, on a cluster of any number of nodes, for tests of `EngineBackend`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.exit_status import Exit
from wattline.backend.engine.folder_layout import EVENTS, create_attempt_folder
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.protocol import GpuReading, HeldByOthers
from wattline.core.nodes import Nodes


@dataclass
class FakeProcess:
    """The processes of one attempt, with the behaviour that is the first word of the job's command."""

    attempt: AttemptRecord
    behaviour: str
    exit: Exit | None = None


@dataclass
class FakeCluster:
    """Nodes and processes, which outlive the engines that use them."""

    nodes: Nodes
    processes: dict[Path, FakeProcess] = field(default_factory=dict)
    changes: list[tuple[int, bool]] = field(default_factory=list)  # of nodes, not reported yet
    held_by_others: dict[int, HeldByOthers] = field(default_factory=dict)

    def lose_node(self, node: int) -> None:
        """Let a node go down with its processes, and come up again."""
        self.changes += [(node, False), (node, True)]
        for folder, process in list(self.processes.items()):
            if node in dict(process.attempt.allocation):
                del self.processes[folder]


class FakeEngine:
    """Implements `Engine`: attempts run until they are polled, or until they are stopped.

    Behaviours: "finishes" succeeds, "fails" has exit code 3, "runs" runs until it is stopped and succeeds in
    its second attempt, "refused" cannot be started.
    """

    simulated, energy_method, runs_other_users, problem = True, "unmetered", False, ""
    container_problem = "the engine has no processes"

    def __init__(self, root: Path, cluster: FakeCluster) -> None:
        self._root, self.cluster = root, cluster
        self._held: dict[AttemptRecord, tuple[list[JobRecord], list[AttemptRecord]]] = {}
        self.calls: list[tuple[str, tuple[str, ...]]] = []  # verb and jobs
        self.hold_starts = False  # True: attempts stay queued

    @property
    def nodes(self) -> Nodes:
        return self.cluster.nodes

    def describe(self) -> dict[str, Any]:
        return {"backend": "fake"}

    def start(
        self,
        attempt: AttemptRecord,
        jobs: Sequence[JobRecord],
        after: Sequence[AttemptRecord] = (),
        beside: AttemptRecord | None = None,
    ) -> None:
        self._log("start", attempt)
        if beside is not None:
            attempt.gpus = beside.gpus
        else:
            used = {pair for one in self._held if not one.preempted for pair in _pairs(one)}
            for node, count in attempt.allocation:
                free = [gpu for gpu in range(int(self.nodes.gpus[node])) if (node, gpu) not in used]
                assert len(free) >= count, f"node {node} has {len(free)} free GPUs, {count} are needed"
                attempt.gpus += tuple(free[:count])
        self._held[attempt] = list(jobs), list(after)
        self._start_if_free(attempt)

    def _start_if_free(self, attempt: AttemptRecord) -> None:
        jobs, after = self._held[attempt]
        if self.hold_starts or any(other in self._held for other in after):
            return
        behaviour = jobs[0].spec.command[0]
        if behaviour == "refused":
            attempt.state, attempt.message = "refused", "the node is broken"
            return
        folders = {job.id: create_attempt_folder(self._root, job.spec, None) for job in jobs}
        attempt.state, attempt.folder, attempt.cpus = "running", folders[jobs[0].id], 1
        attempt.event_files = {job: folder / EVENTS for job, folder in folders.items()}
        if behaviour == "runs" and attempt.number(jobs[0].id) > 1:
            behaviour = "finishes"
        self.cluster.processes[attempt.folder] = FakeProcess(attempt, behaviour)

    def find(self, folder: Path) -> AttemptRecord | None:
        process = self.cluster.processes.get(folder)
        if process is None:
            return None
        old = process.attempt
        process.attempt = AttemptRecord(
            list(old.event_files),
            old.allocation,
            old.settings,
            old.since_s,
            state="running",
            folder=old.folder,
            gpus=old.gpus,
            cpus=old.cpus,
            event_files=old.event_files,
        )
        return process.attempt

    def adopt(self, attempt: AttemptRecord) -> bool:
        self._log("adopt", attempt)
        self._held[attempt] = [], []
        return True

    def poll(self, attempts: Sequence[AttemptRecord]) -> None:
        assert set(attempts) == set(self._held)
        for attempt in attempts:
            if attempt.state == "queued":
                self._start_if_free(attempt)
            elif attempt.state == "running":
                process = self.cluster.processes.get(attempt.folder)
                if process is None:
                    attempt.state = "vanished"
                elif process.exit is not None or process.behaviour in ("finishes", "fails"):
                    code = 3 if process.behaviour == "fails" else 0
                    attempt.state, attempt.exit = "ended", process.exit or make_exit(code)
                    del self.cluster.processes[attempt.folder]

    def stop(self, attempt: AttemptRecord) -> None:
        self._log("stop", attempt)
        if attempt.folder in self.cluster.processes:
            self.cluster.processes[attempt.folder].exit = make_exit(143, "SIGTERM", "stop")

    def kill(self, attempt: AttemptRecord) -> None:
        self._log("kill", attempt)
        if attempt.folder in self.cluster.processes:
            self.cluster.processes[attempt.folder].exit = make_exit(137, "SIGKILL", "kill")

    def retune(self, attempt: AttemptRecord) -> bool:
        self._log("retune", attempt)
        return True

    def release(self, attempt: AttemptRecord, job: str) -> float | None:
        assert job in attempt.jobs
        if attempt.jobs == [job]:
            del self._held[attempt]
        return None

    def sample_energy(self) -> None:
        pass

    def energy_j(self, job: str) -> float | None:
        return None

    def counted_energy_j(self, job: str) -> float:
        return 0.0

    def total_energy_j(self) -> float | None:
        return None

    def power_w(self, attempt: AttemptRecord) -> float | None:
        return None

    def read_gpus(self) -> Sequence[GpuReading]:
        return ()

    def gpu_model(self, node: int) -> tuple[str, float]:
        return self.nodes.kind.word(node), 300.0

    def cap_ranges_w(self) -> tuple[tuple[float, float] | None, ...]:
        return (None,) * len(self.nodes)

    def node_changes(self) -> Sequence[tuple[int, bool]]:
        """Return one change at a time, so that a node is down for one poll at least."""
        change, self.cluster.changes = self.cluster.changes[:1], self.cluster.changes[1:]
        return change

    def held_by_others(self) -> Mapping[int, HeldByOthers]:
        return dict(self.cluster.held_by_others)

    def power(self, node: int, on: bool) -> bool:
        self.calls.append(("power on" if on else "power off", (str(node),)))
        return True

    def wake_files(self) -> Sequence[int]:
        return ()

    @property
    def poll_interval_s(self) -> float:
        """0 while the next poll finds a change, so that no test waits."""
        ending = (one for one in self.cluster.processes.values() if one.exit or one.behaviour != "runs")
        return 0.0 if self.cluster.changes or any(True for _ in ending) else math.inf

    def close(self) -> None:
        pass

    def _log(self, verb: str, attempt: AttemptRecord) -> None:
        self.calls.append((verb, tuple(attempt.jobs)))


def _pairs(attempt: AttemptRecord) -> list[tuple[int, int]]:
    nodes = [node for node, count in attempt.allocation for _ in range(count)]
    return list(zip(nodes, attempt.gpus, strict=True))


def make_exit(code: int, signal: str | None = None, end_request: Any = None) -> Exit:
    """Return an exit status."""
    return Exit(code, signal, signal, end_request, False, "", 0.0, 1.0, 1.0, 0, 0.0, 0, ())

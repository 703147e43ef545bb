"""The contract of backends, on a real Slurm cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.job_request import JOB_REQUEST
from support.slurm_cluster import SlurmCluster
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.job_spec import JobSpec
from wattline.backend.engine.slurm.backend import Slurm
from wattline.backend.engine.slurm.submission import SlurmOptions
from wattline.core.protocols import Backend
from wattline.core.snapshot import Snapshot
from wattline.testing import BackendContract, JobBehaviour

pytestmark = pytest.mark.slow

COMMANDS = {
    "finishes": "true",
    "fails": "exit 3",
    "runs": '[ "$WATTLINE_RESTART_COUNT" != 0 ] || exec sleep 1000',
}


def make_job(name: str, line: str, **more: Any) -> JobRecord:
    spec = JobSpec(name, ("sh", "-c", line), retries=0, **more)
    return JobRecord(spec, JOB_REQUEST, time.time())


class TestSlurm(BackendContract):
    @pytest.fixture(autouse=True)
    def _cluster(self, slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[None]:
        self.cluster, self.root, self.backends = slurm_cluster, tmp_path, []
        self.threads: list[threading.Thread] = []
        yield
        for thread in self.threads:
            thread.join()
        for backend in self.backends:
            backend.engine.close()

    def open(self) -> Slurm:
        backend = Slurm(self.root, SlurmOptions(self.partition, meter="none", heartbeat_s=0.5))
        self.backends.append(backend)
        return backend

    def make(self, jobs: Sequence[JobBehaviour], nodes: int = 1, *, losing_nodes: bool = False) -> Backend:
        self.jobs, self.partition = jobs, {1: "one", 2: "two"}[nodes]
        backend = self.open()
        backend.submit(make_job(str(row), COMMANDS[job]) for row, job in enumerate(jobs))
        return backend

    def restart(self, backend: Backend, state: Snapshot) -> tuple[Backend, Snapshot]:
        backend.close()
        self.backends.remove(backend)
        again = self.open()
        again.adopt(make_job(str(row), COMMANDS[job]) for row, job in enumerate(self.jobs))
        return again, again.initial_state()

    def lose_node(self, backend: Backend) -> None:
        assert isinstance(backend, Slurm)

        def bring_back() -> None:
            self.cluster.wait_for(lambda: backend.engine._down)
            self.cluster.start_node("n2")

        self.cluster.kill_node("n2")
        # As after SlurmdTimeout, without the wait; a slurmd that runs would bring it back at once.
        self.cluster.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
        self.threads.append(threading.Thread(target=bring_back))
        self.threads[-1].start()

"""A partition that others use as well, and nodes that Slurm's power saving switches, on a real cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from support.job_request import JOB_REQUEST
from support.slurm_cluster import SlurmCluster, require_slurm
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.job_spec import JobSpec
from wattline.backend.engine.slurm.backend import Slurm
from wattline.backend.engine.slurm.submission import SlurmOptions
from wattline.core.actions import ACTION_COLUMNS, POWER_OFF, POWER_ON, START
from wattline.core.events import FINISHED, NODE_BACK, NODE_LOST, Event, list_events
from wattline.core.reasons import REASONS, Reason
from wattline.loop.run import LoopStep, iterate
from wattline.models.trace_model import TraceModels
from wattline.placement.pack import Pack
from wattline.policy.parser import parse_policy

pytestmark = pytest.mark.slow
DEADLINE_S = 90.0


class PowerSwitch:
    """Ends and starts the slurmd of nodes that Slurm's SuspendProgram and ResumeProgram name."""

    def __init__(self, folder: Path) -> None:
        self._requests = folder / "requests"
        self._requests.touch()
        for word in ("suspend", "resume"):
            script = folder / word
            script.write_text(f'#!/bin/sh\necho "{word} $1" >> {self._requests}\n')
            script.chmod(0o755)
        self.config = (
            f"SuspendProgram={folder}/suspend",
            f"ResumeProgram={folder}/resume",
            "SuspendTime=1000000",
            "SuspendTimeout=2",
            "ResumeTimeout=60",
        )
        self.done: list[str] = []
        self._closing = threading.Event()

    def follow(self, cluster: SlurmCluster) -> None:
        """Carry out the requests, in a thread."""

        def run() -> None:
            while not self._closing.wait(0.1):
                for request in self._requests.read_text().splitlines()[len(self.done) :]:
                    word, name = request.split()
                    if word == "suspend":
                        cluster.kill_node(name)
                    else:
                        cluster.start_node(name, "-b")  # as one that has just booted
                    self.done.append(request)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()


@pytest.fixture(scope="module")
def switched_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SlurmCluster, PowerSwitch]]:
    require_slurm()
    switch = PowerSwitch(tmp_path_factory.mktemp("power"))
    with SlurmCluster(nodes=2, gpus=8, config=switch.config) as cluster:
        switch.follow(cluster)
        yield cluster, switch
        switch.close()


@pytest.fixture
def cluster(
    switched_cluster: tuple[SlurmCluster, PowerSwitch], monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmCluster]:
    for name, value in switched_cluster[0].environment.items():
        monkeypatch.setenv(name, value)
    yield switched_cluster[0]
    switched_cluster[0].repair()


class Loop:
    """The scheduler's loop under `fifo` in a thread of its own, until its jobs have ended."""

    def __init__(self, root: Path, partition: str, *jobs: JobRecord) -> None:
        self.reported: list[tuple[str, str]] = []
        self.backend = Slurm(
            root,
            SlurmOptions(partition, meter="none", heartbeat_s=0.5),
            on_event=lambda kind, job, data: self.reported.append((kind, job)),
        )
        self.backend.submit(jobs)
        self.steps: list[LoopStep] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for step in iterate(self.backend, parse_policy("fifo"), TraceModels(), Pack()):
            self.steps.append(step)

    def join(self) -> None:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), self.reported
        self.backend.close()


def make_job(name: str, gpus: int, command: str) -> JobRecord:
    spec = JobSpec(name, ("sh", "-c", command))
    return JobRecord(spec, {**JOB_REQUEST, "gpus": gpus}, time.time())


def submit_as_others(cluster: SlurmCluster, folder: Path, gpus: int, node: str = "n1") -> str:
    """Submit a job that ends when the file `end` exists, and wait until it runs."""
    script = f"while [ ! -e {folder}/end ]; do sleep 0.2; done"
    flags = (f"--gres=gpu:{gpus}", "-w", node, "-p", "urgent", "-o", "/dev/null", "--wrap", script)
    job = cluster.run("sbatch", "--parsable", *flags).strip()
    cluster.wait_for(lambda: cluster.run("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING")
    return job


def own_jobs(cluster: SlurmCluster, backend: Slurm) -> dict[str, str]:
    """Return the nodes of the service's jobs in Slurm by the id of the job."""
    rows = cluster.run("squeue", "-h", "-t", "all", "-o", "%k %N").splitlines()
    prefix = backend.engine._tracker.prefix
    return {row.split()[0].split(":")[2]: row.split()[-1] for row in rows if row.startswith(prefix)}


def state_of(cluster: SlurmCluster, job: str) -> str:
    return next((one["JobState"] for one in cluster.completed_jobs if one["JobId"] == job), "")


def test_gpus_of_others_are_never_planned_on(cluster: SlurmCluster, tmp_path: Path) -> None:
    theirs = submit_as_others(cluster, tmp_path, 6)
    loop = Loop(tmp_path / "service", "two", make_job("1", 2, "sleep 1"), make_job("2", 2, "sleep 1"))
    loop.join()
    # Two GPUs are free on the first node, which one of them gets; the other one starts on the second node.
    assert own_jobs(cluster, loop.backend) == {"1": "n1", "2": "n2"}
    assert all(step.state.free_gpus[0] <= 2 for step in loop.steps)
    assert cluster.run("squeue", "-h", "-j", theirs, "-o", "%T").strip() == "RUNNING"
    (tmp_path / "end").touch()
    cluster.wait_for(lambda: state_of(cluster, theirs))
    assert state_of(cluster, theirs) == "COMPLETED"


def test_gpus_are_used_when_others_have_ended(cluster: SlurmCluster, tmp_path: Path) -> None:
    theirs = submit_as_others(cluster, tmp_path, 6)
    loop = Loop(tmp_path / "service", "one", make_job("1", 4, "true"))
    cluster.wait_for(lambda: any(step.placement.reason.any() for step in loop.steps))
    reasons = {REASONS[code] for step in loop.steps for code in step.placement.reason.tolist()}
    assert Reason.HELD_BY_OTHERS in reasons
    assert own_jobs(cluster, loop.backend) == {}
    (tmp_path / "end").touch()
    loop.join()
    assert ("ended", "1") in loop.reported
    assert own_jobs(cluster, loop.backend) == {"1": "n1"}
    assert state_of(cluster, theirs) == "COMPLETED"


def test_a_node_that_others_hold_alone_is_not_used(cluster: SlurmCluster, tmp_path: Path) -> None:
    submit_as_others(cluster, tmp_path, 8, "n1")
    loop = Loop(tmp_path / "service", "two", make_job("1", 1, "true"))
    loop.join()
    assert own_jobs(cluster, loop.backend) == {"1": "n2"}
    (tmp_path / "end").touch()


class Harness:
    """A backend on both nodes, driven by hand."""

    def __init__(self, root: Path) -> None:
        self.backend = Slurm(root, SlurmOptions("two", meter="none", heartbeat_s=0.5), stay_open=True)
        self.events: list[Event] = []

    def apply(self, verb: int, job: int, node: int, gpus: int = 0) -> None:
        action = np.zeros((1, ACTION_COLUMNS), dtype=np.int64)
        action[0, :5] = verb, job, job, node, gpus
        self.backend.apply(action)

    def until(self, condition: Callable[[], object]) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end_s, self.events
            self.events += list_events(self.backend.wait(time.time() + 0.1)[1])

    def nodes_with(self, verb: int) -> list[int]:
        return [event.job for event in self.events if event.verb == verb]


def test_a_node_is_switched_off_and_comes_back_for_a_job(
    switched_cluster: tuple[SlurmCluster, PowerSwitch], cluster: SlurmCluster, tmp_path: Path
) -> None:
    harness = Harness(tmp_path)
    harness.apply(POWER_OFF, -1, 1)
    harness.until(lambda: "suspend n2" in switched_cluster[1].done)
    harness.until(lambda: cluster.states()["n2"] in ("idle~", "powered_down"))
    harness.until(lambda: harness.backend.engine._poller.latest.power_state("n2") == "off")
    harness.until(lambda: True)
    assert harness.nodes_with(NODE_LOST) == []
    harness.apply(POWER_ON, -1, 1)
    harness.until(lambda: harness.nodes_with(NODE_BACK) == [1])
    assert "resume n2" in switched_cluster[1].done
    harness.backend.submit([make_job("1", 1, "true")])
    harness.until(lambda: "1" in harness.backend.records and harness.backend.records["1"].row >= 0)
    harness.apply(START, 0, 1, 1)
    harness.until(lambda: harness.nodes_with(FINISHED))
    assert own_jobs(cluster, harness.backend) == {"1": "n2"}
    assert harness.nodes_with(NODE_LOST) == []
    harness.backend.close()


def test_a_node_with_a_job_of_others_is_not_switched_off(
    switched_cluster: tuple[SlurmCluster, PowerSwitch], cluster: SlurmCluster, tmp_path: Path
) -> None:
    before = len(switched_cluster[1].done)
    submit_as_others(cluster, tmp_path, 1, "n1")
    harness = Harness(tmp_path / "service")
    harness.apply(POWER_OFF, -1, 0)
    harness.until(lambda: harness.nodes_with(NODE_BACK) == [0])
    assert cluster.states()["n1"] == "mixed"
    assert len(switched_cluster[1].done) == before
    (tmp_path / "end").touch()
    harness.backend.close()


def test_without_power_saving_in_slurm_a_node_stays_up_and_that_is_announced_once(
    slurm_cluster: SlurmCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    harness = Harness(tmp_path)
    for _ in range(2):
        harness.apply(POWER_OFF, -1, 0)
    harness.until(lambda: harness.nodes_with(NODE_BACK) == [0, 0])
    messages = [record.getMessage() for record in caplog.records if "switched off" in record.getMessage()]
    assert messages == ["nodes are not switched off: slurm.conf has no SuspendProgram and no ResumeProgram"]
    harness.backend.close()

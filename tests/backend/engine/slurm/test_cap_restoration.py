"""Power limits that jobs leave behind, on simulated GPUs, and the epilog with a stand-in for nvidia-smi."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import wattline
from support.slurm_cluster import SlurmCluster
from support.slurm_harness import Harness
from wattline.core.events import FINISHED, LOST
from wattline.meter import open_meter

pytestmark = pytest.mark.slow

# Sets a limit, and dies with the process that would restore it.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from wattline.meter import open_meter
from wattline.meter.caps.guard import guard_caps
meter = open_meter(sys.argv[1])
guard = guard_caps(meter.gpus, 150).__enter__()
assert meter.gpus[0].cap_w() == 150
guard._watchdog._process.kill()
Path(sys.argv[2]).touch()
if sys.argv[3] == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1000)
"""


@pytest.fixture
def harness(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[Harness]:
    one = Harness(tmp_path / "service", slurm_cluster)
    yield one
    one.backend.engine.close()


class CappedJob:
    """A job that limits the power of a simulated GPU, and the limit now."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.meter = folder, f"simulated:1xv100,state={folder}/gpus"
        (folder / "train.py").write_text(SCRIPT)
        self.env = {
            "PYTHONPATH": str(Path(wattline.__file__).parents[1]),
            "WATTLINE_STATE": str(folder / "state"),
        }

    def command(self, how: str) -> tuple[str, ...]:
        return sys.executable, str(self.folder / "train.py"), self.meter, str(self.folder / "set"), how

    def limit_w(self) -> float:
        meter = open_meter(self.meter)
        try:
            return meter.gpus[0].cap_w()
        finally:
            meter.close()


def test_the_supervisor_restores_the_limits_of_a_job_that_was_killed(
    harness: Harness, tmp_path: Path
) -> None:
    job = CappedJob(tmp_path)
    harness.submit("1", *job.command("dies"), env=job.env, retries=0)
    harness.start("1")
    harness.until(lambda: harness.data("ended"))
    assert (tmp_path / "set").exists()
    # It restores them before Slurm gives the GPU to another job.
    harness.cluster.wait_for(lambda: not harness.cluster.run("squeue", "-h").strip())
    assert job.limit_w() == 300.0


def test_the_next_attempt_on_a_node_restores_the_limits_of_one_that_vanished(
    harness: Harness, tmp_path: Path
) -> None:
    job = CappedJob(tmp_path)
    harness.submit("1", *job.command("stays"), env=job.env)
    harness.start("1", (1, 1))
    harness.until((tmp_path / "set").exists)
    harness.cluster.kill_node("n2")
    assert job.limit_w() == 150.0
    harness.cluster.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
    # If its processes are missed before Slurm knows that the node is down, the attempt counts as failed.
    harness.until(lambda: harness.count(LOST) == 1 or "retry" in [kind for kind, *_ in harness.reported])
    harness.cluster.start_node("n2")
    harness.cluster.wait_for(lambda: harness.cluster.states()["n2"] == "idle")
    read = f"import wattline.meter as m; print(m.open_meter({job.meter!r}).gpus[0].cap_w())"
    harness.submit("2", sys.executable, "-c", read, env=job.env)
    harness.start("2", (1, 1))
    harness.until(lambda: harness.count(FINISHED) == 1)
    log = harness.root / "jobs" / "2" / "attempts" / "1" / "rank0.log"
    assert log.read_text() == "300.0\n"

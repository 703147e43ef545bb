"""Jobs that Slurm has purged after MinJobAge while the service was away."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.job_request import JOB_REQUEST
from support.slurm_cluster import SlurmCluster, require_slurm
from support.slurm_harness import Harness
from wattline.backend.engine.folder_layout import attempt_folders
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.job_spec import JobSpec
from wattline.backend.engine.slurm.attempt_folder import AttemptFolder
from wattline.core.events import FINISHED, LOST

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    require_slurm()
    with SlurmCluster(nodes=2, gpus=2, config=["MinJobAge=2"]) as one:
        for name, value in one.environment.items():
            monkeypatch.setenv(name, value)
        yield one


def test_the_exit_file_of_a_purged_job_counts_and_one_without_it_starts_again_once(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    ran, go = tmp_path / "ran", tmp_path / "go"
    lines = {
        "1": f"while [ ! -e {go} ]; do sleep 0.1; done; echo 1 >> {ran}",
        "2": f"echo 2 >> {ran}; while [ ! -e {go} ]; do sleep 0.1; done",
    }
    root = tmp_path / "service"
    before = Harness(root, cluster)
    for node, name in enumerate(lines):
        before.submit(name, lines[name], retries=0)
        before.start(name, (node, 1))
    before.until(lambda: all(before.state(name) == "running" for name in lines))
    before.cluster.wait_for(lambda: "2" in ran.read_text() if ran.exists() else False)
    claim = AttemptFolder(attempt_folders(root, "2")[0]).claim()
    assert claim is not None
    before.backend.close()  # the service is away
    os.kill(int(claim["pid"]), signal.SIGKILL)  # the supervisor of the second job: it writes no exit file
    go.touch()
    cluster.wait_for(lambda: not cluster.run("squeue", "-h", "-t", "all").strip())
    after = Harness(root, cluster)
    specs = [JobSpec(name, ("sh", "-c", lines[name]), retries=0) for name in lines]
    after.backend.adopt(JobRecord(spec, JOB_REQUEST, time.time()) for spec in specs)
    after.backend.initial_state()
    after.until(lambda: after.count(FINISHED) == 1 and after.count(LOST) == 1)
    assert after.data("ended")[0]["state"] == "SUCCEEDED"
    after.start("2", (1, 1))
    after.until(lambda: after.count(FINISHED) == 2)
    assert sorted(ran.read_text().split()) == ["1", "2", "2"]  # the last one in two attempts
    assert [len(attempt_folders(root, name)) for name in lines] == [1, 2]
    after.backend.engine.close()

"""A shared disk that is full: nothing is lost, nothing runs twice, and all goes on when there is space.

The disk is a small tmpfs, which only root can mount. Where that is not possible, the tests are skipped.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.slurm_cluster import SlurmCluster
from support.slurm_harness import Harness
from wattline.backend.engine.folder_layout import attempt_folders
from wattline.core.events import FINISHED

pytestmark = pytest.mark.slow


class SmallDisk:
    """A tmpfs of one megabyte, which a file can fill."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._filler = folder, folder / "filler"

    def fill(self) -> None:
        """Leave no byte; files without content can still be created."""
        with open(self._filler, "wb", buffering=0) as file:
            while True:
                try:
                    file.write(b"\0" * 4096)
                except OSError:
                    return

    def empty(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "wattline-test", str(folder)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    yield SmallDisk(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def harness(slurm_cluster: SlurmCluster, disk: SmallDisk) -> Iterator[Harness]:
    one = Harness(disk.folder / "service", slurm_cluster)
    yield one
    one.backend.engine.close()


def test_no_job_starts_while_its_files_cannot_be_written(harness: Harness, disk: SmallDisk) -> None:
    ran = disk.folder.parent / "ran"
    harness.submit("1", f"echo 1 >> {ran}", retries=0)
    disk.fill()
    harness.start("1")
    harness.until(lambda: harness.backend.engine.problem)
    assert harness.backend.engine.problem.endswith("/jobs/1/attempts/1: No space left on device")
    assert harness.state("1") == "queued"
    prefix = harness.backend.engine._tracker.prefix
    assert not any(comment.startswith(prefix) for comment in harness.slurm_jobs())
    disk.empty()
    harness.until(lambda: harness.count(FINISHED) == 1 and not harness.backend.engine.problem)
    assert ran.read_text() == "1\n"
    assert len(attempt_folders(harness.root, "1")) == 1


def test_a_job_does_not_run_before_its_claim_is_written(harness: Harness, disk: SmallDisk) -> None:
    ran = disk.folder.parent / "ran"
    cluster = harness.cluster
    cluster.run("scontrol", "update", "PartitionName=two", "State=DOWN")  # jobs wait
    harness.submit("1", f"echo 1 >> {ran}", retries=0)
    harness.start("1")
    harness.until(lambda: "PENDING" in harness.slurm_jobs().values())
    disk.fill()
    cluster.run("scontrol", "update", "PartitionName=two", "State=UP")
    harness.until(lambda: "RUNNING" in harness.slurm_jobs().values())
    (folder,) = attempt_folders(harness.root, "1")
    harness.until(lambda: (folder / "slurm.log").exists())
    assert harness.state("1") == "queued"
    assert not ran.exists()
    disk.empty()
    harness.until(lambda: harness.count(FINISHED) == 1)
    assert ran.read_text() == "1\n"


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_end_of_a_job_is_noticed_when_there_is_space_again(
    harness: Harness, disk: SmallDisk, nodes: int
) -> None:
    outside = disk.folder.parent
    harness.submit(
        "1", f"while [ ! -e {outside}/go ]; do sleep 0.1; done; echo much; echo 1 >> {outside}/ran", retries=0
    )
    harness.start("1", *((node, 1) for node in range(nodes)))
    harness.until(lambda: harness.state("1") == "running")
    disk.fill()
    (outside / "go").touch()
    harness.until(lambda: (outside / "ran").exists() and len((outside / "ran").read_text().split()) == nodes)
    for _ in range(30):  # its heartbeats would be missed by now
        harness.poll()
    assert harness.state("1") == "running"
    harness.backend.engine.retune(harness.backend._attempts.attempts[0])  # cannot be written
    disk.empty()
    harness.until(lambda: harness.count(FINISHED) == 1)
    assert (outside / "ran").read_text() == "1\n" * nodes
    assert len(attempt_folders(harness.root, "1")) == 1

"""slurmctld that was killed and has lost its last writes: it forgets jobs, and reuses their ids."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import wattline
from support.slurm_cluster import SlurmCluster
from support.slurm_harness import Harness
from wattline.backend.engine.folder_layout import attempt_folders
from wattline.backend.engine.slurm.attempt_folder import AttemptFolder
from wattline.backend.engine.slurm.commands import cancel_jobs, find_own_jobs, signal_batch_step
from wattline.core.actions import STOP
from wattline.core.events import FINISHED, LOST

pytestmark = pytest.mark.slow


@pytest.fixture
def harness(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[Harness]:
    one = Harness(tmp_path, slurm_cluster)
    yield one
    one.backend.engine.close()


def wait_and_write(folder: Path, name: str) -> str:
    """Return a command that waits for a file, and appends *name* to another one."""
    return f"while [ ! -e {folder}/go ]; do sleep 0.1; done; echo {name} >> {folder}/ran"


def test_running_jobs_that_slurm_forgets_start_again_and_finish_once(
    harness: Harness, tmp_path: Path
) -> None:
    saved = harness.cluster.save_state()
    places = {"1": ((0, 1),), "2": ((1, 1),), "3": ((0, 1), (1, 1))}  # the last one spans two nodes
    for name in places:
        harness.submit(name, wait_and_write(tmp_path, name), retries=0)
        harness.start(name, *places[name])
    harness.until(lambda: all(harness.state(name) == "running" for name in places))
    ids = {harness.job_id(name) for name in places}
    harness.cluster.return_to_state(saved)
    harness.until(lambda: harness.count(LOST) == len(places))
    assert {data["message"] for data in harness.data("stopped")} == {"Slurm had forgotten it."}
    for name in reversed(places):  # each gets an id that another one had
        harness.start(name, *places[name])
        harness.until(lambda name=name: harness.state(name) == "running")
    assert {harness.job_id(name) for name in places} == ids
    (tmp_path / "go").touch()
    harness.until(lambda: harness.count(FINISHED) == len(places))
    assert sorted((tmp_path / "ran").read_text().split()) == ["1", "2", "3", "3"]
    assert harness.count(LOST) == len(places)


def test_a_running_job_that_slurm_takes_for_pending_starts_again_and_finishes_once(
    harness: Harness, tmp_path: Path
) -> None:
    harness.cluster.run("scontrol", "update", "PartitionName=two", "State=DOWN")  # jobs wait
    harness.submit("1", wait_and_write(tmp_path, "1"), retries=0)
    harness.start("1")
    harness.until(lambda: "PENDING" in harness.slurm_jobs().values())
    saved = harness.cluster.save_state()
    harness.cluster.run("scontrol", "update", "PartitionName=two", "State=UP")
    harness.until(lambda: harness.state("1") == "running")
    harness.cluster.return_to_state(saved)
    harness.cluster.run("scontrol", "update", "PartitionName=two", "State=UP")
    harness.until_event(LOST)
    (tmp_path / "go").touch()
    harness.start("1")
    harness.until(lambda: harness.count(FINISHED) == 1)
    assert (tmp_path / "ran").read_text().split() == ["1"]


def test_a_session_that_slurm_has_forgotten_and_does_not_kill_saves_and_goes_on(
    harness: Harness, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time, wattline\n"
        "with wattline.Session(save=lambda path: path.write_text('state'), aim='none') as run:\n"
        "    for epoch in run.epochs(1):\n"
        "        for batch in run.steps(range(100_000)):\n"
        f"            if os.path.exists('{tmp_path}/go'):\n"
        "                break\n"
        "            time.sleep(0.05)\n"
    )
    cluster, path = harness.cluster, {"PYTHONPATH": str(Path(wattline.__file__).parents[1])}
    saved = cluster.save_state()
    harness.submit("1", sys.executable, str(script), env=path, retries=0)
    harness.start("1")
    (folder,) = attempt_folders(harness.root, "1")
    harness.until(lambda: '"event": "progress"' in (folder / "events.jsonl").read_text())
    cluster.pause_node("n1")  # until its job has the id of another one that has just ended
    cluster.return_to_state(saved)
    other = cluster.run("sbatch", "--parsable", "--hold", "--wrap=true").strip()
    assert other == harness.job_id("1")
    cluster.run("scancel", other)
    cluster.continue_node("n1")
    harness.until_event(LOST)
    assert '"event": "yielded"' in (folder / "events.jsonl").read_text()
    assert harness.data("stopped")[0]["message"] == "Slurm had forgotten it."
    (tmp_path / "go").touch()
    harness.start("1")
    harness.until_event(FINISHED)
    assert '"resumed": true' in (attempt_folders(harness.root, "1")[-1] / "events.jsonl").read_text()


def test_another_job_with_the_id_of_a_forgotten_one_is_never_touched(
    harness: Harness, tmp_path: Path
) -> None:
    saved = harness.cluster.save_state()
    harness.submit("1", wait_and_write(tmp_path, "1"))
    harness.start("1")
    harness.until(lambda: harness.state("1") == "running" and "RUNNING" in harness.slurm_jobs().values())
    (folder,) = attempt_folders(harness.root, "1")
    job_id, comment = harness.job_id("1"), f"{harness.backend.engine._tracker.prefix}1:1"
    harness.until(lambda: comment in harness.backend.engine._poller.latest.jobs)
    harness.backend.engine._poller.close()  # from here on it knows the old state only
    harness.cluster.return_to_state(saved)
    theirs = tmp_path / "theirs.sh"
    theirs.write_text(
        "#!/bin/sh\n"
        f"trap 'echo hit > {tmp_path}/hit' TERM USR1\n"
        f"echo up > {tmp_path}/up\n"
        f"while [ ! -e {tmp_path}/end ]; do sleep 0.1; done\n"
    )
    flags = ["-p", "two", "-w", "n2", "--gres=gpu:1", "--comment=theirs", "-o", "/dev/null"]
    other = harness.cluster.run("sbatch", "--parsable", *flags, str(theirs)).strip()
    assert other == job_id
    harness.cluster.wait_for((tmp_path / "up").exists)
    # By the old state the job of this service runs under this id.
    assert find_own_jobs({job_id: comment}) == []
    assert not signal_batch_step(job_id, comment, "TERM")
    cancel_jobs({job_id: comment})
    harness.apply((STOP, 0, 0, -1))
    harness.backend.engine.kill(harness.backend._attempts.attempts[0])
    ours = AttemptFolder(folder)
    harness.cluster.wait_for(lambda: ours.exit() is not None or ours.heartbeat_age_s() > 2)
    harness.backend.engine._threads._pool.shutdown()  # when all commands have run
    assert harness.slurm_jobs()["theirs"] == "RUNNING"
    assert not (tmp_path / "hit").exists()
    (tmp_path / "end").touch()
    harness.cluster.wait_for(lambda: harness.slurm_jobs()["theirs"] == "COMPLETED")

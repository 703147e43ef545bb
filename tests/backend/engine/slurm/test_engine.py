"""Faults of Slurm, of its nodes and of its users, on a real cluster."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import wattline
from support.slurm_cluster import SlurmCluster
from support.slurm_harness import Harness
from wattline.backend.engine.folder_layout import attempt_folders
from wattline.backend.engine.slurm import engine as slurm_engine
from wattline.core.actions import RETUNE, STOP
from wattline.core.events import FINISHED, LOST, NODE_BACK, NODE_LOST, STOPPED

pytestmark = pytest.mark.slow


@pytest.fixture
def harness(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[Harness]:
    one = Harness(tmp_path, slurm_cluster)
    yield one
    one.backend.engine.close()


def test_nothing_waits_for_a_slurmctld_that_hangs(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_engine, "TIMEOUT_S", 1.0)
    harness = Harness(tmp_path, slurm_cluster)
    harness.submit("1", "exec sleep 1000")
    harness.start("1")
    harness.until(lambda: harness.state("1") == "running")
    slurm_cluster.pause_controller()
    harness.until(lambda: harness.backend.engine.problem)
    began_s = time.monotonic()
    harness.poll()
    assert time.monotonic() - began_s < 5
    assert harness.state("1") == "running"
    # A stop needs no slurmctld: the batch step reads it from a file.
    harness.apply((STOP, 0, 0, -1))
    harness.until_event(STOPPED)
    slurm_cluster.continue_controller()
    harness.until(lambda: not harness.backend.engine.problem)
    assert [event.verb for event in harness.events].count(STOPPED) == 1
    harness.backend.engine.close()


def test_a_job_that_slurm_never_got_is_submitted_again(harness: Harness) -> None:
    harness.submit("1", "true")
    harness.cluster.kill_controller()
    harness.start("1")
    harness.until(lambda: harness.backend.engine.problem)
    harness.cluster.start_controller()
    harness.until_event(FINISHED)
    done = [job for job in harness.slurm_jobs() if job.startswith(harness.backend.engine._tracker.prefix)]
    assert len(done) == 1


def test_a_plain_scancel_lets_a_session_save_and_the_job_goes_on(harness: Harness, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import time, wattline\n"
        "with wattline.Session(save=lambda path: path.write_text('state'), aim='none') as run:\n"
        "    for epoch in run.epochs(1):\n"
        "        for batch in run.steps(range(100)):\n"
        "            time.sleep(0.1 if run.position.steps < 50 else 0.0)\n"
    )
    path = {"PYTHONPATH": str(Path(wattline.__file__).parents[1])}
    harness.submit("1", sys.executable, str(script), env=path)
    harness.start("1")
    (folder,) = attempt_folders(harness.root, "1")
    harness.until(lambda: '"event": "progress"' in (folder / "events.jsonl").read_text())
    ids = harness.cluster.run("squeue", "-h", "-o", "%i").split()
    harness.cluster.run("scancel", *ids)
    harness.until_event(LOST)
    assert '"event": "yielded"' in (folder / "events.jsonl").read_text()
    assert json.loads((folder / "exit.json").read_text())["code"] == 75
    harness.start("1")
    harness.until_event(FINISHED)
    assert '"resumed": true' in (attempt_folders(harness.root, "1")[-1] / "events.jsonl").read_text()


def test_a_queued_attempt_that_is_withdrawn_never_starts(harness: Harness, tmp_path: Path) -> None:
    harness.submit("1", "exec sleep 1000")
    harness.submit("2", f"touch {tmp_path}/started")
    harness.start("1", (0, 2))
    harness.until(lambda: harness.state("1") == "running")
    harness.start("2", (0, 2))
    harness.until(lambda: "PENDING" in harness.slurm_jobs().values())
    harness.backend.cancel("2")
    harness.until(lambda: "PENDING" not in harness.slurm_jobs().values())
    harness.backend.cancel("1")
    harness.until(lambda: not harness.backend.records)
    assert not (tmp_path / "started").exists()


def test_jobs_of_others_are_left_alone_and_stray_ones_of_this_service_are_cancelled(harness: Harness) -> None:
    prefix = harness.backend.engine._tracker.prefix
    for comment in ("theirs", f"{prefix}99:1"):
        harness.cluster.run(
            "sbatch", "-p", "two", f"--comment={comment}", "-o", "/dev/null", "--wrap", "sleep 1000"
        )
    harness.until(lambda: harness.slurm_jobs().get(f"{prefix}99:1") == "CANCELLED")
    assert harness.slurm_jobs()["theirs"] in ("PENDING", "RUNNING")


def test_a_drained_node_is_not_used_until_it_is_back(harness: Harness) -> None:
    harness.submit("1", "exec sleep 1000")
    harness.start("1", (1, 1))
    harness.until(lambda: harness.state("1") == "running")
    harness.cluster.run("scontrol", "update", "NodeName=n[1-2]", "State=DRAIN", "Reason=test")
    harness.until_event(NODE_LOST)
    assert [event.job for event in harness.events if event.verb == NODE_LOST] == [0]
    assert harness.state("1") == "running"  # on the other node it runs on
    harness.apply((STOP, 0, 0, -1))
    harness.until(lambda: [event.job for event in harness.events if event.verb == NODE_LOST] == [0, 1])
    harness.cluster.run("scontrol", "update", "NodeName=n[1-2]", "State=RESUME")
    harness.until(lambda: [event.job for event in harness.events if event.verb == NODE_BACK] == [0, 1])


def test_a_refusal_of_slurm_is_the_reason_of_the_job(harness: Harness) -> None:
    harness.submit("1", "true", memory_gib=100_000.0, retries=0)
    harness.start("1")
    harness.until(lambda: harness.data("ended"))
    assert harness.data("ended")[0]["message"].startswith("It could not be started: sbatch: ")
    assert "not available" in harness.data("ended")[0]["message"]


def test_a_job_that_runs_on_behind_a_dead_slurmd_is_not_started_again(harness: Harness) -> None:
    harness.submit("1", "sleep 6")
    harness.start("1", (1, 1))
    harness.until(lambda: harness.state("1") == "running")
    harness.cluster.kill_node("n2", with_jobs=False)
    harness.cluster.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
    harness.until_event(FINISHED)
    assert LOST not in [event.verb for event in harness.events]


def test_joules_are_those_of_the_meters_on_the_nodes(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    meter = f"simulated:1xa100,state={tmp_path}/gpus-{{node}}"
    harness = Harness(tmp_path / "service", slurm_cluster, meter=meter)
    assert harness.backend.engine.energy_method == "unmetered"
    harness.submit("1", "sleep 4")
    harness.start("1", (0, 1), (1, 1))
    harness.until(lambda: harness.data("ended"))
    (ended,) = harness.data("ended")
    assert ended["energy_method"] == "simulated"
    assert ended["energy_j"] > 0
    harness.backend.engine.close()


def test_a_new_cap_is_ordered_from_the_session_of_a_running_job(harness: Harness) -> None:
    harness.submit("1", "exec sleep 1000")
    harness.start("1")
    harness.until(lambda: harness.state("1") == "running")
    harness.apply((RETUNE, 0, 0, -1, 0, 200))
    (folder,) = attempt_folders(harness.root, "1")
    assert json.loads((folder / "orders.json").read_text()) == {"cap_w": 200}
    assert harness.state("1") == "running"

"""Jobs in containers, with stand-ins: nothing here was run with a real Apptainer or Pyxis."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

import wattline
from support.container_stand_in import write_apptainer
from support.controllers import (
    run_controller,
    submit_text,
    wait_until,
    wait_until_over,
    wait_until_running,
)
from support.job_request import JOB_REQUEST
from support.pyxis_stand_in import write_plugin
from support.slurm_cluster import SlurmCluster
from wattline.backend.engine.container import wrap_command
from wattline.backend.engine.folder_layout import attempt_folders
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.job_spec import JobSpec
from wattline.backend.engine.slurm.submission import SlurmOptions
from wattline.errors import Conflict

TRAIN = """\
import os, wattline
with wattline.Session(save=lambda path: path.write_text("state"), aim="none") as run:
    for epoch in run.epochs(1):
        for batch in run.steps(range(20)):
            pass
print("done in", os.getcwd())
"""


def make_job(name: str = "7", **more: object) -> JobRecord:
    spec = JobSpec(name, ("python", "train.py"), workdir="/home/ann/p", image="pytorch.sif", **more)
    return JobRecord(spec, JOB_REQUEST, time.time())


def test_the_folders_of_a_job_are_bound_and_its_mounts_follow() -> None:
    job = make_job(mounts=("/data:/mnt:ro",), checkpoint="/ckpt/x")
    words = wrap_command("/usr/bin/apptainer", job.spec.command, Path("/srv"), [job])
    binds = ("--bind", "/home/ann/p", "--bind", "/srv/jobs/7", "--bind", "/ckpt/x", "--bind", "/data:/mnt:ro")
    start = ("/usr/bin/apptainer", "exec", "--nv")
    assert words == (*start, *binds, "--pwd", "/home/ann/p", "pytorch.sif", "python", "train.py")


def test_an_array_binds_the_folders_of_all_its_members() -> None:
    words = wrap_command("apptainer", ("python",), Path("/srv"), [make_job("7"), make_job("8")])
    assert {"/srv/jobs/7", "/srv/jobs/8"} <= set(words)


def test_pyxis_gets_both_sides_of_each_mount() -> None:
    words = wrap_command(
        "pyxis", ("python",), Path("/srv"), [make_job(mounts=("/data", "/d:ro", "/a:/b:ro"))]
    )
    assert words[:2] == ("sh", "-c")
    assert "trap stop TERM" in words[2]
    assert words[-4:] == (
        "--container-image=pytorch.sif",
        "--container-mounts=/home/ann/p:/home/ann/p,/srv/jobs/7:/srv/jobs/7,/data:/data,/d:/d:ro,/a:/b:ro",
        "--container-workdir=/home/ann/p",
        "python",
    )


def test_a_job_without_a_container_is_left_as_it_is() -> None:
    job = JobRecord(JobSpec("1", ("true",)), JOB_REQUEST, time.time())
    assert wrap_command("", ("true",), Path("/srv"), [job]) == ("true",)


def write_job(folder: Path) -> str:
    (folder / "train.py").write_text(TRAIN)
    path = Path(wattline.__file__).parents[1]
    return (
        f"run: {sys.executable} train.py\nworkdir: {folder}\nenv: {{PYTHONPATH: {path}}}\n"
        f"container: {{image: pytorch.sif, mounts: [{folder}]}}\n"
    )


@pytest.mark.slow
def test_a_session_in_a_container_saves_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_apptainer(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    with run_controller(tmp_path / "service") as controller:
        (job,) = submit_text(controller, write_job(tmp_path))
        assert wait_until_over(controller, job.id).state == "SUCCEEDED"
    check_container(tmp_path, job.id)


@pytest.mark.slow
def test_on_slurm_a_job_runs_in_a_container(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_apptainer(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    options = SlurmOptions("main", meter="none", heartbeat_s=0.5)
    with run_controller(tmp_path / "service", gpus="auto", slurm=options) as controller:
        (job,) = submit_text(controller, write_job(tmp_path))
        assert wait_until_over(controller, job.id).state == "SUCCEEDED"
    check_container(tmp_path, job.id)


@pytest.mark.slow
def test_with_the_flags_of_pyxis_each_rank_is_a_step_that_gets_the_signals_of_the_job(
    slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    write_plugin(slurm_cluster.folder)
    try:
        options = SlurmOptions("two", meter="none", heartbeat_s=0.5)
        with run_controller(tmp_path / "service", gpus="auto", slurm=options) as controller:
            line = "echo $RANK $SLURMD_NODENAME $CONTAINER_IMAGE $CONTAINER_WORKDIR; "
            line += f"cd {tmp_path}; [ $RANK = 3 ] || exec touch wrote$RANK; "
            line += "until [ -e wrote0 ] && [ -e wrote1 ] && [ -e wrote2 ]; do sleep 0.1; done; exit 7"
            (failing,) = submit_text(controller, describe_job(line, gpus=4))
            line = f"trap 'exit 75' TERM; touch {tmp_path}/ready$RANK; while :; do sleep 0.1; done"
            assert wait_until_over(controller, failing.id).exit_code == 7
            (stopped,) = submit_text(controller, describe_job(line, gpus=2))
            wait_until(lambda: all((tmp_path / f"ready{rank}").exists() for rank in range(2)))
            wait_until_running(controller, stopped.id)
            controller.cancel(stopped.id)
            wait_until_over(controller, stopped.id)
    finally:
        (slurm_cluster.folder / "plugstack.conf").unlink()
    (attempt,) = attempt_folders(tmp_path / "service", failing.id)
    logs = [(attempt / f"rank{rank}.log").read_text() for rank in range(4)]
    for rank, (log, node) in enumerate(zip(logs, ("n1", "n1", "n2", "n2"), strict=True)):
        assert f"{rank} {node} pytorch.sif /tmp" in log.splitlines()  # messages of srun may be there, too
    (attempt,) = attempt_folders(tmp_path / "service", stopped.id)
    assert json.loads((attempt / "exit.json").read_text())["code"] == 75


def describe_job(line: str, gpus: int) -> str:
    words = json.dumps(["sh", "-c", line.replace("$", "$$")])
    return f"run: {words}\nworkdir: /tmp\nretries: 0\ncontainer: pytorch.sif\nresources: {{gpus: {gpus}}}\n"


def check_container(folder: Path, job: str) -> None:
    words = (folder / "bin" / "words").read_text().splitlines()
    assert words[:2] == ["exec", "--nv"]
    assert words[-3:] == ["pytorch.sif", sys.executable, "train.py"]
    (attempt,) = attempt_folders(folder / "service", job)
    assert (attempt / "rank0.log").read_text().strip().endswith(f"done in {folder}")
    assert '"event": "ended"' in (attempt / "events.jsonl").read_text()


def test_without_apptainer_a_container_is_refused_at_the_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_controller(tmp_path / "service") as controller:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(Conflict) as caught:
            submit_text(controller, "run: 'true'\ncontainer: pytorch.sif")
    assert caught.value.message == (
        "container.image is 'pytorch.sif', and jobs cannot run in containers: "
        "Apptainer is not installed on this machine"
    )
    assert caught.value.hint == "install Apptainer, or leave out container"

"""Job files as scripts of other schedulers; the batch script runs on a real Slurm cluster."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from support.command_line import run_command
from support.slurm_cluster import SlurmCluster, require_slurm

Capsys = pytest.CaptureFixture[str]
JOB = """\
name: train
run: [sh, -c, 'echo $RANK-$WORLD_SIZE-$WATTLINE_POWER_LIMIT_W-$COLOUR >> ran']
workdir: {workdir}
env: {{COLOUR: dark blue}}
resources: {{gpus: 2, time: 10m, gpu_type: a100}}
energy: {{power: {power}}}
"""


def write_job(folder: Path, power: str = "250W", **more: object) -> Path:
    path = folder / "job.yaml"
    path.write_text(
        JOB.format(workdir=folder, power=power) + "".join(f"{k}: {json.dumps(v)}\n" for k, v in more.items())
    )
    return path


def emit(capsys: Capsys, *words: str) -> str:
    code, out, err = run_command(capsys, "emit", *words)
    assert code == 0, err
    return out


def test_the_flags_are_those_of_the_job_file(tmp_path: Path, capsys: Capsys) -> None:
    script = emit(capsys, "sbatch", str(write_job(tmp_path)), "--licence", "watts", "--partition", "main")
    flags = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]
    assert flags == [
        "--job-name=train",
        "--nodes=1",
        "--ntasks=2",
        "--partition=main",
        "--gres=gpu:a100:2",
        "--time=10",
        "--signal=TERM@30",
        "--requeue",
        "--licenses=watts:500",
    ]


def test_slurm_is_asked_for_the_type_by_its_own_name(tmp_path: Path, capsys: Capsys) -> None:
    path = write_job(tmp_path, power="auto")
    path.write_text(path.read_text().replace("gpu_type: a100", "gpu_type: nvidia_a100_80gb_pcie"))
    script = emit(capsys, "sbatch", str(path), "--licence", "watts")
    assert "--gres=gpu:nvidia_a100_80gb_pcie:2" in script
    assert "--licenses=watts:600" in script  # of two A100 with PCIe


def test_without_a_power_limit_a_job_holds_the_watts_that_its_gpus_can_draw(
    tmp_path: Path, capsys: Capsys
) -> None:
    script = emit(capsys, "sbatch", str(write_job(tmp_path, power="auto")), "--licence", "watts")
    assert "--licenses=watts:800" in script


@pytest.mark.slow
def test_the_batch_script_runs_on_slurm_and_waits_for_watts(
    slurm_cluster: SlurmCluster, tmp_path: Path, capsys: Capsys
) -> None:
    script = tmp_path / "job.sh"
    script.write_text(emit(capsys, "sbatch", str(write_job(tmp_path)), "--licence", "watts"))
    sleep = ("-o", "/dev/null", "--wrap", "sleep 1000")
    held = slurm_cluster.run("sbatch", "--parsable", "-L", "watts:900", *sleep)
    slurm_cluster.wait_for(lambda: "RUNNING" in slurm_cluster.run("squeue", "-h", "-o", "%T"))
    slurm_cluster.run("sbatch", "-o", str(tmp_path / "log"), str(script))
    slurm_cluster.wait_for(lambda: "(Licenses)" in slurm_cluster.run("squeue", "-h", "-o", "%R"))
    slurm_cluster.run("scancel", held.strip())
    ran = tmp_path / "ran"
    slurm_cluster.wait_for(lambda: ran.exists() and len(ran.read_text().splitlines()) == 2)
    assert sorted(ran.read_text().splitlines()) == ["0-2-250-dark blue", "1-2-250-dark blue"]


def write_epilog(folder: Path, text: str) -> Path:
    """Write an epilog that finds a stand-in for nvidia-smi: it appends its arguments to a file."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "nvidia-smi").write_text(
        f'#!/bin/sh\necho "$*" >> {folder}/calls\ncase "$*" in *query*) echo 400.00;; esac\n'
    )
    path = folder / "epilog"
    path.write_text(text.replace("PATH=$PATH", f"PATH={programs}:$PATH"))
    for one in (path, programs / "nvidia-smi"):
        one.chmod(0o755)
    return path


def test_an_epilog_sets_the_limit_of_each_gpu_of_the_job(tmp_path: Path, capsys: Capsys) -> None:
    epilog = write_epilog(tmp_path, emit(capsys, "epilog", "--watts", "350"))
    subprocess.run([str(epilog)], env={"SLURM_JOB_GPUS": "1,3"}, check=True)
    assert (tmp_path / "calls").read_text() == "-i 1 -pl 350\n-i 3 -pl 350\n"
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexit 1\n")
    done = subprocess.run([str(epilog)], env={"SLURM_JOB_GPUS": "1"}, check=True, capture_output=True)
    assert b"GPU 1: its power limit could not be restored" in done.stderr
    subprocess.run([str(epilog)], env={}, check=True)  # a job without GPUs


@pytest.mark.slow
def test_slurm_runs_the_epilog_after_a_job_that_was_killed(tmp_path: Path, capsys: Capsys) -> None:
    require_slurm()
    epilog = write_epilog(tmp_path, emit(capsys, "epilog"))
    with SlurmCluster(nodes=2, gpus=2, config=[f"Epilog={epilog}"]) as cluster:
        flags = ("-p", "one", "--gres=gpu:2", "-o", "/dev/null", "--wrap", "kill -KILL $$")
        cluster.run("sbatch", *flags)
        calls = tmp_path / "calls"
        cluster.wait_for(lambda: calls.exists() and len(calls.read_text().splitlines()) == 4)
    default = "--query-gpu=power.default_limit --format=csv,noheader,nounits"
    limits = [f"-i {gpu} {what}\n" for gpu in (0, 1) for what in (default, "-pl 400.00")]
    assert calls.read_text() == "".join(limits)


def test_a_manifest_is_a_job_and_is_labelled_as_not_run(tmp_path: Path, capsys: Capsys) -> None:
    text = emit(capsys, "k8s", str(write_job(tmp_path)), "--image", "pytorch/pytorch:2.4")
    assert "not run here" in text.splitlines()[0]
    manifest = yaml.safe_load(text)
    assert (manifest["apiVersion"], manifest["kind"]) == ("batch/v1", "Job")
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert {"name": "WATTLINE_POWER_LIMIT_W", "value": "250"} in container["env"]
    assert manifest["spec"]["activeDeadlineSeconds"] == 600


CONTAINER = {"image": "pytorch.sif", "mounts": ["/data:/mnt:ro"]}


def test_a_container_is_run_by_apptainer_in_the_batch_script(tmp_path: Path, capsys: Capsys) -> None:
    script = emit(capsys, "sbatch", str(write_job(tmp_path, container=CONTAINER)))
    command = f"apptainer exec --nv --bind {tmp_path} --bind /data:/mnt:ro --pwd {tmp_path} pytorch.sif sh -c"
    assert command in script


def test_a_container_is_run_by_pyxis_where_srun_has_its_flags(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text("#!/bin/sh\necho '--container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH'\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{srun.parent}:/usr/bin:/bin")
    script = emit(capsys, "sbatch", str(write_job(tmp_path, container=CONTAINER)))
    mounts = f"{tmp_path}:{tmp_path},/data:/mnt:ro"
    flags = f"--container-image=pytorch.sif --container-mounts={mounts} --container-workdir={tmp_path}"
    assert f"srun {flags} bash -c" in script


def test_a_manifest_has_the_container_of_the_job_file(tmp_path: Path, capsys: Capsys) -> None:
    manifest = yaml.safe_load(emit(capsys, "k8s", str(write_job(tmp_path, container=CONTAINER))))
    pod = manifest["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "pytorch.sif"
    assert pod["containers"][0]["volumeMounts"] == [
        {"name": "mount-0", "mountPath": "/mnt", "readOnly": True}
    ]
    assert pod["volumes"] == [{"name": "mount-0", "hostPath": {"path": "/data"}}]
    text = emit(capsys, "k8s", str(write_job(tmp_path, container=CONTAINER)), "--image", "other:1")
    assert "image: other:1" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sbatch",), "emit sbatch needs a job file"),
        (("epilog", "--watts", "-3"), "--watts is -3, expected watts of one GPU"),
    ],
)
def test_what_is_missing_or_wrong_is_explained(capsys: Capsys, words: tuple[str, ...], message: str) -> None:
    code, _, err = run_command(capsys, "emit", *words)
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    ("words", "more", "message"),
    [
        (("k8s",), {}, "a manifest needs a container image"),
        (("sbatch",), {"matrix": {"lr": [1, 2]}}, "is a sweep of 2 jobs"),
        (("epilog",), {}, "emit epilog is for all jobs"),
    ],
)
def test_what_cannot_be_written_is_explained(
    tmp_path: Path, capsys: Capsys, words: tuple[str, ...], more: dict[str, object], message: str
) -> None:
    path = write_job(tmp_path, **more)
    if more:
        path.write_text(path.read_text().replace("echo $RANK", "echo ${lr} $RANK"))
    code, _, err = run_command(capsys, "emit", words[0], str(path), *words[1:])
    assert code == 2
    assert message in err

"""Job files as scripts of other schedulers, to run jobs without the service.

A batch script for Slurm was run on 22.05. A manifest for Kubernetes follows `batch/v1` and was not run.
"""

from __future__ import annotations

import math
import shlex
from typing import Any

from wattline.backend.engine.container import build_apptainer_command, build_pyxis_flags
from wattline.errors import ConfigError
from wattline.measurement.devices import DEVICES
from wattline.service.submission import Submission

_REQUEUE = 75
_NOT_RUN = "# Written by wattline emit k8s; not run here: check it before you use it.\n"


def build_sbatch_script(
    submission: Submission, licence: str = "", partition: str = "", runtime: str = "", gpu_type: str = ""
) -> str:
    """Return a batch script with all flags in it; *licence* is the name of the licences that are watts.

    The job holds as many of these licences as its GPUs may draw, so that Slurm keeps a watt budget:
    `Licenses=watts:40000` in slurm.conf. With the *runtime* "pyxis" its flags run a job in its container,
    else Apptainer does. *gpu_type* is Slurm's name of its kind of GPU; empty: as Wattline names it.
    """
    spec, gpus = submission.spec, int(submission.columns["gpus"])
    single = spec["config"] is not None or _starts_ranks(spec["command"])
    flags = _list_flags(submission, gpus, 1 if single else gpus, licence, partition, gpu_type)
    lines = ["#!/bin/bash", *(f"#SBATCH {flag}" for flag in flags), ""]
    for name, value in _list_variables(submission, gpus).items():
        lines.append(f"export {name}={value}")
    for name, value in spec["env"].items():
        lines.append(f"export {name}={shlex.quote(value)}")
    lines += [f"cd {shlex.quote(spec['workdir'])} || exit 1", 'mkdir -p "$WATTLINE_CHECKPOINT_DIR"']
    step, command = _wrap_command(spec, runtime)
    if single:
        lines.append(f"srun --ntasks=1 {step}{command}")
    else:
        lines += [
            "export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
            f"srun {step}bash -c {shlex.quote(_RANK + command)}",
        ]
    lines += [
        "code=$?",
        f"if [ $code = {_REQUEUE} ]; then  # it has saved its work, and wants to be started again",
        '  scontrol requeue "$SLURM_JOB_ID"',
        "fi",
        "exit $code",
    ]
    return "\n".join(lines) + "\n"


def _wrap_command(spec: dict[str, Any], runtime: str) -> tuple[str, str]:
    """Return the flags of srun for the container of a job, and its command, as words of a shell."""
    command, folder = shlex.join(spec["command"]), spec["workdir"]
    if not spec["image"]:
        return "", command
    mounts = [*([] if folder == "/" else [folder]), *spec["mounts"]]
    if runtime == "pyxis":
        return f"{shlex.join(build_pyxis_flags(spec['image'], mounts, folder))} ", command
    words = build_apptainer_command("apptainer", spec["image"], mounts, folder)
    return "", f"{shlex.join(words)} {command}"


_RANK = (
    "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID"
    " LOCAL_WORLD_SIZE=$((SLURM_NTASKS / SLURM_NNODES)); exec "
)


def _list_flags(
    submission: Submission, gpus: int, tasks: int, licence: str, partition: str, gpu_type: str
) -> list[str]:
    spec, columns = submission.spec, submission.columns
    kinds = [kind for kind in str(columns["gpu_kind"]).split("|") if kind]
    if len(kinds) > 1:
        raise ConfigError(
            f"resources.gpu_type has {len(kinds)} kinds, and a batch script names one",
            f"use one of {', '.join(kinds)}",
        )
    kind = f"{gpu_type or kinds[0]}:" if kinds else ""
    flags = [f"--job-name={shlex.quote(submission.name)}", "--nodes=1", f"--ntasks={tasks}"]
    flags += [f"--partition={partition}"] if partition else []
    flags.append(f"--gres=gpu:{kind}{gpus}")
    if columns["cpus"]:
        flags.append(f"--cpus-per-task={max(math.floor(columns['cpus'] / tasks), 1)}")
    if spec["memory_gib"]:
        flags.append(f"--mem={math.ceil(spec['memory_gib'] * 1024 * gpus)}M")
    if spec["time_limit_s"] is not None:
        flags.append(f"--time={math.ceil(spec['time_limit_s'] / 60)}")
    flags += [f"--signal={spec['signal'].removeprefix('SIG')}@{math.ceil(spec['grace_s'])}", "--requeue"]
    if licence:
        flags.append(f"--licenses={licence}:{_count_watts(spec, kinds, gpus)}")
    return flags


def _count_watts(spec: dict[str, Any], kinds: list[str], gpus: int) -> int:
    """Return the watts of all GPUs of a job: their power limit, or the largest that they can draw."""
    watts = spec["power_w"]
    if watts is None and kinds and kinds[0] in DEVICES:
        watts = DEVICES[kinds[0]].max_w
    if watts is None:
        raise ConfigError(
            "the watts of the job are not known", "set energy.power, such as 250W, or resources.gpu_type"
        )
    return math.ceil(float(watts) * gpus)


def _list_variables(submission: Submission, gpus: int) -> dict[str, str]:
    """Return the variables of `wattline.Session`, as words of a shell."""
    spec = submission.spec
    folder = spec["checkpoint"] or "checkpoints/$SLURM_JOB_ID"
    values = {
        "JOB_ID": "$SLURM_JOB_ID",
        "GPUS": str(gpus),
        "RESTART_COUNT": "${SLURM_RESTART_COUNT:-0}",
        "CHECKPOINT_DIR": f"{shlex.quote(spec['workdir'])}/{folder}",
        "SIGNAL": spec["signal"],
        "GRACE_S": f"{spec['grace_s']:g}",
        "POWER_LIMIT_W": "" if spec["power_w"] is None else f"{spec['power_w']:g}",
        "BATCH_SIZE": str(spec["batch"] or ""),
        "GROUP": shlex.quote(spec["group"]) if spec["group"] else "",
        "TARGET": shlex.quote(spec["target"]) if spec["target"] else "",
        "AIM": spec["aim"],
    }
    return {f"WATTLINE_{name}": value for name, value in values.items() if value}


def _starts_ranks(command: tuple[str, ...]) -> bool:
    from wattline.backend.engine.job_spec import JobSpec

    return JobSpec("", tuple(command)).starts_ranks


_EPILOG = """\
#!/bin/sh
# Epilog for slurmd, written by wattline emit epilog: Epilog=/etc/slurm/wattline-epilog in slurm.conf.
# Restores the power limits of the GPUs of a job, however it has ended. nvidia-smi must find them by the
# indices in SLURM_JOB_GPUS. Exits with 0: slurmd drains a node after an epilog that fails.
PATH=$PATH:/usr/bin:/bin
for gpu in $(echo "$SLURM_JOB_GPUS" | tr , ' '); do
  watts={watts}
  if [ -n "$watts" ] && nvidia-smi -i "$gpu" -pl "$watts" >/dev/null; then
    echo "GPU $gpu: power limit $watts W"
  else
    echo "GPU $gpu: its power limit could not be restored" >&2
  fi
done
exit 0
"""
_DEFAULT_WATTS = '$(nvidia-smi -i "$gpu" --query-gpu=power.default_limit --format=csv,noheader,nounits)'


def build_epilog(watts: float | None = None) -> str:
    """Return an epilog for slurmd that sets the power limit of a job's GPUs; None: the default of each."""
    return _EPILOG.replace("{watts}", _DEFAULT_WATTS if watts is None else f"{watts:g}")


def build_k8s_manifest(submission: Submission, image: str) -> str:
    """Return a `batch/v1` Job as YAML: one pod with all GPUs of the job; it was not run.

    *image* replaces the image of the job file.
    """
    import yaml

    spec, gpus = submission.spec, int(submission.columns["gpus"])
    limits: dict[str, Any] = {"nvidia.com/gpu": gpus}
    if submission.columns["cpus"]:
        limits["cpu"] = f"{float(submission.columns['cpus']):g}"
    if spec["memory_gib"]:
        limits["memory"] = f"{math.ceil(spec['memory_gib'] * 1024 * gpus)}Mi"
    variables = {
        **spec["env"],
        "WATTLINE_GPUS": str(gpus),
        "WATTLINE_SIGNAL": spec["signal"],
        "WATTLINE_GRACE_S": f"{spec['grace_s']:g}",
        "WATTLINE_CHECKPOINT_DIR": spec["checkpoint"] or "checkpoints",
        **({} if spec["power_w"] is None else {"WATTLINE_POWER_LIMIT_W": f"{spec['power_w']:g}"}),
    }
    container: dict[str, Any] = {
        "name": "job",
        "image": image or spec["image"],
        "command": list(spec["command"]),
        "workingDir": spec["workdir"],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"limits": limits},
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(spec["grace_s"]),
        "containers": [container],
    }
    if spec["mounts"]:
        container["volumeMounts"], pod["volumes"] = _list_volumes(spec["mounts"])
    kinds = str(submission.columns["gpu_kind"])
    labels = {"app.kubernetes.io/managed-by": "wattline", **({"wattline/gpu-kind": kinds} if kinds else {})}
    name = "".join(char if char.isalnum() else "-" for char in submission.name.casefold()).strip("-")[:52]
    job: dict[str, Any] = {"backoffLimit": spec["retries"], "template": {"spec": pod}}
    if spec["time_limit_s"] is not None:
        job["activeDeadlineSeconds"] = math.ceil(spec["time_limit_s"])
    document = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": f"{name or 'job'}-", "labels": labels},
        "spec": job,
    }
    return _NOT_RUN + yaml.safe_dump(document, sort_keys=False)


def _list_volumes(mounts: tuple[str, ...]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the mounts of a container, and the folders of the node that they show."""
    places, volumes = [], []
    for number, mount in enumerate(mounts):
        source, *rest = mount.split(":")
        inside = rest[0] if rest and rest[0].startswith("/") else source
        name = f"mount-{number}"
        places.append({"name": name, "mountPath": inside, **({"readOnly": True} if "ro" in rest else {})})
        volumes.append({"name": name, "hostPath": {"path": source}})
    return places, volumes

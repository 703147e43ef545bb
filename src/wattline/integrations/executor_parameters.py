"""Parameters of `Executor.update_parameters`: those of submitit and fields of a job file, as a job document.

    submitit              job file
    timeout_min           resources.time
    gpus_per_node, nodes  resources.gpus (their product)
    tasks_per_node        number of processes: one, or one for each GPU
    cpus_per_task         resources.cpus_per_gpu (all tasks of the job, per GPU)
    mem_gb                resources.memory_per_gpu (all memory of the job, per GPU)
    slurm_array_parallelism  max_parallel

Names with the prefix `slurm_` are for other clusters and are left out, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from wattline.errors import ConfigError, did_you_mean

_SUBMITIT = ("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node")
_RESOURCES = ("gpus", "gpu_type", "cpus_per_gpu", "memory_per_gpu", "time")
_FIELDS = (
    *("workdir", "env", "container", "model", "batch_size", "max_parallel", "depends_on", "energy"),
    *("deadline", "tardiness_weight", "elastic", "checkpoint", "recurring", "team", "priority"),
    *("retries", "retry", "preemptible"),
)
_IGNORED = ("stderr_to_stdout",)  # a job has one log for both
_OTHER_CLUSTERS = ("slurm_", "local_", "debug_")


class JobSettings(NamedTuple):
    """Fields of the job document of a call, and the number of its tasks."""

    fields: dict[str, Any]
    tasks: int


def normalise_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters without prefixes and those of other clusters; raise for unknown names."""
    known = (*_SUBMITIT, *_RESOURCES, *_FIELDS)
    result: dict[str, Any] = {}
    skipped = []
    for name, value in parameters.items():
        plain = name.removeprefix("wattline_")
        if plain == "slurm_array_parallelism":
            result["max_parallel"] = value
        elif plain in _IGNORED:
            continue
        elif plain.startswith(_OTHER_CLUSTERS):
            skipped.append(name)
        elif plain in known:
            result[plain] = value
        else:
            hint = did_you_mean(plain, known) or f"known are {', '.join(known)}"
            raise ConfigError(f"unknown parameter {name!r}", hint)
    if skipped:
        text = f"{', '.join(sorted(skipped))}: for another cluster, has no effect on Wattline"
        warnings.warn(text, UserWarning, stacklevel=3)
    return result


def build_settings(parameters: Mapping[str, Any]) -> JobSettings:
    """Return the job document of normalised parameters; None and unset are the same."""
    given = {name: value for name, value in parameters.items() if value is not None}
    nodes = _count("nodes", given.get("nodes", 1))
    tasks = nodes * _count("tasks_per_node", given.get("tasks_per_node", 1))
    gpus, kind = _read_gpus(given, nodes)
    if gpus is None:
        gpus = tasks
    if tasks not in (1, gpus):
        raise ConfigError(
            f"tasks_per_node and nodes make {tasks} tasks on {gpus} GPUs, expected 1 or {gpus}",
            "a job of Wattline has one process, or one for each GPU",
        )
    resources: dict[str, Any] = {"gpus": gpus}
    if kind:
        resources["gpu_type"] = kind
    count = gpus if isinstance(gpus, int) else 1
    if "timeout_min" in given:
        resources["time"] = 60.0 * float(given["timeout_min"])
    if "cpus_per_task" in given:
        resources["cpus_per_gpu"] = float(given["cpus_per_task"]) * tasks / count
    if "mem_gb" in given:
        resources["memory_per_gpu"] = f"{float(given['mem_gb']) * nodes / count:g}G"
    resources |= {name: given[name] for name in _RESOURCES[1:] if name in given}
    fields = {name: given[name] for name in _FIELDS if name in given}
    if "name" in given:
        fields["name"] = str(given["name"]).replace("$", "$$")
    return JobSettings({**fields, "resources": resources}, tasks)


def _read_gpus(given: Mapping[str, Any], nodes: int) -> tuple[int | str | None, str]:
    """Return the number or range of GPUs, and their kind if `gpus_per_node` has one (`a100:2`)."""
    if "gpus" in given:
        if "gpus_per_node" in given:
            raise ConfigError("gpus and gpus_per_node are both given, expected one of them")
        return given["gpus"], ""
    if "gpus_per_node" not in given:
        return None, ""
    kind, _, count = str(given["gpus_per_node"]).rpartition(":")
    return nodes * _count("gpus_per_node", count) or None, kind


def _count(name: str, value: Any) -> int:
    least = 0 if name == "gpus_per_node" else 1
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < least:
        raise ConfigError(f"{name} is {value!r}, expected a whole number of at least {least}")
    return number

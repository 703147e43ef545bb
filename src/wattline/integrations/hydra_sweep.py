"""Jobs of a Hydra sweep: the task function as pickled calls, or a fusible script as a matrix."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, run_job, setup_globals
from omegaconf import OmegaConf, open_dict

from wattline.errors import ConfigError
from wattline.integrations.executor import Executor
from wattline.integrations.submitted_call import ServiceAddress, SubmittedCall

_log = logging.getLogger(__name__)
_OWN = ("url", "dir", "script", "metric", "fuse")


def launch_sweep(launcher: Any, job_overrides: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
    """Submit a job for each list of overrides as one sweep, wait, and return the results in order."""
    setup_globals()
    hydra = launcher.config.hydra
    configure_log(hydra.hydra_logging, hydra.verbose)
    settings = {
        name: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        for name, value in launcher.settings.items()
    }
    configs = [
        _load_config(launcher, overrides, first + index) for index, overrides in enumerate(job_overrides)
    ]
    parameters = {
        name: value for name, value in settings.items() if name not in _OWN and value not in (None, {})
    }
    Path(str(hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
    if settings["script"]:
        return _launch_script(settings, parameters, job_overrides, configs)
    folder = Path(str(hydra.sweep.dir)).absolute() / ".wattline"
    executor = Executor(folder, url=settings["url"], dir=settings["dir"], **parameters)
    executor.update_parameters(name=str(hydra.job.name))
    state = Singleton.get_state()
    calls = [(config, launcher.task_function, state, launcher.hydra_context) for config in configs]
    jobs = executor.map_array(run_sweep_job, *zip(*calls, strict=True))
    for job, overrides in zip(jobs, job_overrides, strict=True):
        _log.info("\tjob %s : %s", job.job_id, " ".join(filter_overrides(overrides)))
    return [_collect(job, config) for job, config in zip(jobs, configs, strict=True)]


def run_sweep_job(config: Any, task_function: Any, singletons: Any, hydra_context: Any) -> JobReturn:
    """Run the task function inside its job; raise its error, so that the job is FAILED."""
    Singleton.set_state(singletons)
    setup_globals()
    result = run_job(
        hydra_context=hydra_context,
        task_function=task_function,
        config=config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
    if result.status != JobStatus.COMPLETED:
        raise result._return_value
    return result


def _load_config(launcher: Any, overrides: Sequence[str], number: int) -> Any:
    config = launcher.hydra_context.config_loader.load_sweep_config(launcher.config, list(overrides))
    with open_dict(config):
        config.hydra.job.id, config.hydra.job.num = str(number), number
    return config


def _collect(job: SubmittedCall[JobReturn], config: Any) -> JobReturn:
    error = job.exception()
    if error is None:
        return job.result()
    overrides = list(OmegaConf.to_container(config.hydra.overrides.task))
    return JobReturn(overrides=overrides, cfg=config, status=JobStatus.FAILED, _return_value=error)


# -- a fusible script


def _launch_script(
    settings: Mapping[str, Any],
    parameters: Mapping[str, Any],
    job_overrides: Sequence[Sequence[str]],
    configs: Sequence[Any],
) -> list[JobReturn]:
    """Submit the script with the overrides as its arguments: a matrix, of which members may be fused."""
    from wattline.integrations.executor_parameters import build_settings, normalise_parameters

    matrix = build_matrix(job_overrides)
    fields, _ = build_settings(normalise_parameters(dict(parameters)))
    python = sys.executable.replace("$", "$$")
    words = [python, str(settings["script"]), *(f"{name}=${{{name}}}" for name in matrix)]
    document = {"workdir": os.getcwd(), **fields, "run": words, "matrix": matrix, "fuse": settings["fuse"]}
    service = ServiceAddress(settings["url"], settings["dir"])
    rows = service.connect().post("/jobs", document, key=uuid.uuid4().hex)["jobs"]
    results = []
    for row, overrides, config in zip(rows, job_overrides, configs, strict=True):
        job = SubmittedCall[Any](service, job_id=row["id"])
        job.wait_for_end()
        results.append(_describe_end(job.get_info(), list(overrides), config, settings["metric"]))
    return results


def _describe_end(job: Mapping[str, Any], overrides: list[str], config: Any, metric: str | None) -> JobReturn:
    end = JobReturn(overrides=overrides, cfg=config, status=JobStatus.COMPLETED)
    value = job["metrics"].get(metric) if metric else None
    if job["state"] != "SUCCEEDED":
        error = "\n".join([f"job {job['id']} is {job['state']}: {job['reason']}", *job["log_tail"]])
    elif metric and value is None:
        error = f"job {job['id']} reported {', '.join(job['metrics']) or 'no metric'}, expected {metric}"
    else:
        end._return_value = value
        return end
    end.status, end._return_value = JobStatus.FAILED, RuntimeError(error)
    return end


def build_matrix(job_overrides: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """Return the overrides of a sweep as a matrix; raise unless they are all combinations, in order."""
    rows = [dict(_split(word) for word in filter_overrides(words)) for words in job_overrides]
    matrix = {name: list(dict.fromkeys(row.get(name, "") for row in rows)) for name in rows[0]}
    product = [dict(zip(matrix, values, strict=True)) for values in itertools.product(*matrix.values())]
    if rows != product:
        raise ConfigError(
            f"the {len(rows)} jobs are not all combinations of the values of {', '.join(matrix)}",
            "with hydra.launcher.script use the basic sweeper",
        )
    return {name: [value.replace("$", "$$") for value in values] for name, values in matrix.items()}


def _split(word: str) -> tuple[str, str]:
    name, sign, value = word.partition("=")
    name = name.lstrip("+")
    if not sign or not name.isidentifier():
        raise ConfigError(f"override {word!r} cannot be passed to a script, expected name=value")
    return name, value

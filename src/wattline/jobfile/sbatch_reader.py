"""Batch scripts of Slurm as jobs: `#SBATCH` lines become fields of a job file.

The script itself is the command, as it is now: later changes of the file have no effect, as with sbatch.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from wattline.errors import ConfigError
from wattline.jobfile import sbatch_values as values
from wattline.jobfile.sbatch_options import REFUSED, WITHOUT_EFFECT, SbatchOption, read_options

_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_LIMIT_CHARACTERS = 32_000  # of one word of a command
_ONE_PROCESS = (  # the service starts a process for each GPU, sbatch starts the script once
    'if [ "${RANK:-0}" != 0 ]; then exit 0; fi\n'
    "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT\n"
)


@dataclass
class SbatchJob:
    """A batch script as a job document; *notices* are what was left out or changed in meaning."""

    document: dict[str, Any]
    notices: list[str] = field(default_factory=list)
    held: bool = False


def read_sbatch(text: str, where: str, path: str, arguments: Sequence[str] = ()) -> SbatchJob:
    """Read a batch script; *path* is its absolute path, messages begin with `where:line: `.

    Raise `ConfigError` for options that are unknown, invalid or cannot be kept.
    """
    if not text.startswith("#!"):
        raise ConfigError(f"{where}:1: does not begin with #!, expected a batch script such as #!/bin/bash")
    options = {option.name: option for option in read_options(text, where)}
    reader = _Reader(where, options)
    job = SbatchJob(reader.build_fields(), reader.notices, "hold" in options)
    gpus = job.document["resources"]["gpus"]
    job.document["run"] = _build_command(text, path, arguments, gpus > 1, job.notices)
    job.document.setdefault("name", _escape(PurePath(path).name))
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*srun\b", line):
            job.notices.append(f"{where}:{number}: srun needs a service with --engine slurm")
    return job


class _Reader:
    """Builds the fields of a job document from the options of one script."""

    def __init__(self, where: str, options: dict[str, SbatchOption]) -> None:
        self._where, self._options = where, options
        self.notices: list[str] = []

    def build_fields(self) -> dict[str, Any]:
        """Return the fields of the job document, without its command."""
        for option in self._options.values():
            place = f"{self._where}:{option.line}: --{option.name}"
            if option.name in REFUSED:
                raise ConfigError(f"{place} cannot be kept: {REFUSED[option.name]}")
            if option.name in WITHOUT_EFFECT:
                self.notices.append(f"{place} has no effect: {WITHOUT_EFFECT[option.name]}")
        fields: dict[str, Any] = {"resources": self._read_resources()}
        simple = (("job-name", "name"), ("account", "team"), ("container-image", "container"))
        fields |= {key: _escape(text) for name, key in simple if (text := self._text(name)) is not None}
        if "chdir" in self._options:
            fields["workdir"] = self._options["chdir"].value
        for name, sign in (("nice", -1), ("priority", 1)):
            if name in self._options:
                fields["priority"] = sign * float(self._parse(name, lambda text: int(text or 100)))
        if "no-requeue" in self._options:
            fields["retries"] = 0
        if "signal" in self._options:
            name, seconds = self._parse("signal", values.parse_signal)
            fields["checkpoint"] = {"signal": name, **({} if seconds is None else {"grace": f"{seconds}s"})}
        if "dependency" in self._options:
            fields["depends_on"] = self._parse("dependency", values.parse_dependencies)
            line = self._options["dependency"].line
            self.notices.append(f"{self._where}:{line}: --dependency names jobs of Wattline, not of Slurm")
        fields["env"] = self._read_environment()
        self._add_array(fields)
        return fields

    def _text(self, name: str) -> str | None:
        return self._options[name].value if name in self._options else None

    def _parse(self, name: str, parse: Any, default: Any = None) -> Any:
        """Return the parsed value of an option; name its line in the error."""
        if name not in self._options:
            return default
        option = self._options[name]
        try:
            return parse(option.value)
        except ValueError as error:
            raise ConfigError(f"{self._where}:{option.line}: --{name} is {option.value!r}: {error}") from None

    def _read_resources(self) -> dict[str, Any]:
        nodes = self._parse("nodes", values.parse_count, 1)
        if nodes > 1:
            line = self._options["nodes"].line
            raise ConfigError(f"{self._where}:{line}: --nodes is {nodes}, but jobs do not span machines")
        tasks = self._parse("ntasks", values.parse_count) or self._parse(
            "ntasks-per-node", values.parse_count, 1
        )
        kind, gpus = self._read_gpus(tasks)
        resources: dict[str, Any] = {"gpus": gpus, **({"gpu_type": kind} if kind else {})}
        cpus = self._parse("cpus-per-task", values.parse_count)
        per_gpu = self._parse("cpus-per-gpu", values.parse_count)
        if per_gpu or cpus:
            resources["cpus_per_gpu"] = float(per_gpu or cpus * tasks / gpus)
        mib = self._parse("mem-per-gpu", values.parse_mib)
        if mib is None and "mem" in self._options:
            mib = self._parse("mem", values.parse_mib) / gpus
        if mib is None and "mem-per-cpu" in self._options:
            mib = self._parse("mem-per-cpu", values.parse_mib) * resources.get("cpus_per_gpu", tasks / gpus)
        if mib:
            resources["memory_per_gpu"] = f"{mib / 1024:.6g}G"
        seconds = self._parse("time", values.parse_time_s)
        if seconds is not None:
            resources["time"] = seconds
        return resources

    def _read_gpus(self, tasks: int) -> tuple[str, int]:
        found = []
        for name, factor in (("gpus", 1), ("gres", 1), ("gpus-per-node", 1), ("gpus-per-task", tasks)):
            if name in self._options:
                kind, count = self._parse(name, values.parse_gpus)
                found.append((name, kind, count * factor))
        if not found:
            self.notices.append(f"{self._where}: requests no GPU; a job of Wattline has at least one")
            return "", 1
        if len({count for _, _, count in found}) > 1:
            names = " and ".join(f"--{name} ({count})" for name, _, count in found)
            raise ConfigError(f"{self._where}: {names} request different numbers of GPUs")
        return next((kind for _, kind, _ in found if kind), ""), max(found[0][2], 1)

    def _read_environment(self) -> dict[str, str]:
        words = (self._text("export") or "").split(",")
        environment = {}
        for word in words:
            name, sign, value = word.partition("=")
            if sign:
                environment[name] = _escape(value)
            elif name not in ("", "ALL", "NONE", "NIL"):
                line = self._options["export"].line
                self.notices.append(f"{self._where}:{line}: --export={name}: add --env {name} to copy it")
        return environment

    def _add_array(self, fields: dict[str, Any]) -> None:
        if "array" not in self._options:
            return
        indices, limit = self._parse("array", values.parse_array)
        fields["matrix"] = {"task": indices}
        fields["env"] |= {
            "SLURM_ARRAY_TASK_ID": "${task}",
            "SLURM_ARRAY_TASK_COUNT": str(len(indices)),
            "SLURM_ARRAY_TASK_MIN": str(min(indices)),
            "SLURM_ARRAY_TASK_MAX": str(max(indices)),
        }
        if limit is not None:
            fields["max_parallel"] = limit


def _build_command(
    text: str, path: str, arguments: Sequence[str], is_shared: bool, notices: list[str]
) -> list[str]:
    """Return the command that runs the script once, whatever the number of its GPUs."""
    interpreter = shlex.split(text.splitlines()[0].removeprefix("#!")) or ["/bin/sh"]
    shell = PurePath(interpreter[-1] if interpreter[0].endswith("/env") else interpreter[0]).name
    script = _escape((_ONE_PROCESS if is_shared else "") + text)
    rest = [_escape(word) for word in (path, *arguments)]
    if shell in _SHELLS and len(script) <= _LIMIT_CHARACTERS:
        return [*interpreter, "-c", script, *rest]
    if shell in _SHELLS:
        notices.append(f"{path}: longer than {_LIMIT_CHARACTERS:,} letters: it is read when the job starts")
    if is_shared:
        guard = _escape(f'{_ONE_PROCESS}exec "$@"')
        return ["bash", "-c", guard, "bash", *interpreter, *rest]
    return [*interpreter, *rest]


def _escape(text: str) -> str:
    return text.replace("$", "$$")

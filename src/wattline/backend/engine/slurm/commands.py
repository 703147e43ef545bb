"""Slurm's commands, each with a timeout.

Text formats (`-o`, `--oneliner`, `--parsable`) are used throughout: JSON and REST differ between releases.
Run here on 22.05; later releases document the same formats.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from wattline.backend.engine.container import PYXIS_FLAG, find_apptainer
from wattline.errors import BackendError, ConfigError, Unreachable, WattlineError

PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "srun")
TIMEOUT_S = 15.0
"""Of one command; slurmctld that was killed lets squeue hang for more than 5 s."""

_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "SLURM_CONF")
_AWAY = re.compile(
    r"Unable to contact slurm controller|Connection refused|Socket timed out|Connection timed out"
    r"|Zero Bytes were transmitted|Unable to establish controller|Transport endpoint|in standby mode"
    r"|Resource temporarily unavailable|Communication connection failure|Unexpected message received",
    re.IGNORECASE,
)
_GONE = re.compile(r"Invalid job id|already completing or completed|Job/step already", re.IGNORECASE)
_GONE_CODES = (2017 % 256, 2021 % 256)  # ESLURM_INVALID_JOB_ID, ESLURM_ALREADY_DONE
_SEPARATOR = "\x1f"  # of columns: no comment contains it


_READS = (("squeue",), ("sinfo",), ("sacct",), ("scontrol", "show"))
_only_reading: ContextVar[bool] = ContextVar("_only_reading", default=False)


@contextmanager
def only_reading() -> Iterator[None]:
    """Refuse within this block, and in this thread, every command that could change something in Slurm."""
    token = _only_reading.set(True)
    try:
        yield
    finally:
        _only_reading.reset(token)


class SlurmRefused(BackendError):
    """Slurm has read the request and refused it."""

    code = "slurm_refused"
    exit_code = 0


def run_command(
    command: Sequence[str],
    timeout_s: float = TIMEOUT_S,
    text: str | None = None,
    basis: Mapping[str, str] = os.environ,
) -> str:
    """Run a command of Slurm with *text* as its input and the variables *basis*, and return its output.

    Raises `Unreachable` if slurmctld did not respond, so that it may or may not have done the request, and
    `SlurmRefused` with Slurm's own sentence otherwise.
    """
    if _only_reading.get() and not any(tuple(command[: len(words)]) == words for words in _READS):
        raise BackendError(f"{' '.join(command[:2])} could change something in Slurm, expected to only read")
    env = {**basis, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            command,
            env=env,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{command[0]} has not answered within {timeout_s:g} s") from None
    except FileNotFoundError:
        raise ConfigError(
            f"{command[0]} is not installed", "install Slurm's client programs: apt-get install slurm-client"
        ) from None
    if done.returncode == 0:
        return done.stdout
    message = clean_message(done.stderr) or clean_message(done.stdout) or f"exit code {done.returncode}"
    if done.returncode < 0 or _AWAY.search(done.stderr):
        raise Unreachable(f"{command[0]}: {message}")
    refused = SlurmRefused(f"{command[0]}: {message}")
    refused.exit_code = done.returncode
    raise refused


def clean_message(stderr: str) -> str:
    """Return the sentences of an error output without the names of programs and levels."""
    lines = [re.sub(r"^\w+: (?:error|fatal): ", "", line).strip() for line in stderr.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line))


def check_installation() -> None:
    """Raise `ConfigError` if a program is missing."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} are not installed", "install Slurm's client programs on this machine"
        )


def find_container_runtime() -> str:
    """Return how jobs run in containers: "pyxis", the path of Apptainer here, or empty for not at all."""
    with suppress(WattlineError):  # without slurm.conf srun has no plugins, and fails
        if PYXIS_FLAG in run_command(["srun", "--help"]):
            return "pyxis"
    return find_apptainer()


def submit_script(flags: Sequence[str], script: str, variables: Mapping[str, str] | None = None) -> str:
    """Submit a batch script, and return Slurm's job id; *variables* replace those of this process.

    The job gets all variables of sbatch, which are few. For any other `--export` than ALL slurmd runs a login
    shell of the user to find more: with pyenv in its profile 200 jobs took minutes to start.
    """
    basis = {name: os.environ[name] for name in _PASSED if name in os.environ} | dict(variables or {})
    answer = run_command(["sbatch", "--parsable", "--export=ALL", *flags], text=script, basis=basis)
    return answer.strip().splitlines()[-1].partition(";")[0]


def find_own_jobs(jobs: Mapping[str, str]) -> list[str]:
    """Return the ids among *jobs*, a map of ids to comments, that still have these comments.

    slurmctld that was killed forgets jobs, and gives their ids to jobs of others: an id is checked here right
    before it is used.
    """
    if not jobs:
        return []
    try:
        rows = run_command(["squeue", "-h", "-j", ",".join(jobs), "-o", f"%i{_SEPARATOR}%k"]).splitlines()
    except SlurmRefused as error:
        if _is_gone(error):
            return []
        raise
    pairs = (row.split(_SEPARATOR) for row in rows if row.count(_SEPARATOR) == 1)
    found = {(job_id.partition("+")[0], comment) for job_id, comment in pairs}
    return [job_id for job_id, comment in jobs.items() if (job_id, comment) in found]


def signal_batch_step(job_id: str, comment: str, signal: str) -> bool:
    """Signal only the first process of a job's batch step; False: no job has this id and *comment*."""
    own = find_own_jobs({job_id: comment})
    if own:
        _run_scancel("--batch", f"--signal={signal}", *own)
    return bool(own)


def cancel_jobs(jobs: Mapping[str, str]) -> None:
    """End jobs: SIGTERM to every process, and SIGKILL after KillWait.

    *jobs* maps ids to comments; those that are gone, or are others now, are left alone.
    """
    own = find_own_jobs(jobs)
    if own:
        _run_scancel(*own)


def _run_scancel(*arguments: str) -> None:
    try:
        run_command(["scancel", *arguments])
    except SlurmRefused as error:
        if not _is_gone(error):
            raise


def _is_gone(error: SlurmRefused) -> bool:
    return bool(_GONE.search(error.message)) or error.exit_code in _GONE_CODES


def read_config() -> dict[str, str]:
    """Return the settings of `scontrol show config` by name."""
    lines = run_command(["scontrol", "show", "config"]).splitlines()
    pairs = (line.split("=", 1) for line in lines if "=" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def parse_records(text: str) -> list[dict[str, str]]:
    """Return the records of `scontrol show … --oneliner`: names before "=", values up to the next name."""
    records = []
    for line in text.splitlines():
        parts = re.split(r"(?:^|\s+)([A-Za-z][\w:/]*)=", line)
        record = dict(zip(parts[1::2], (value.strip() for value in parts[2::2]), strict=True))
        if record:
            records.append(record)
    return records

"""Jobs of all users in a Slurm partition: their times, GPUs and nodes, as slurmctld reports them.

`scontrol show job --detail` is read line by line. It is the one format that names the GPUs of each node
whatever is accounted, and text that users choose (names, comments, commands) ends its line or has its own.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from wattline.backend.engine.slurm.commands import SlurmRefused, run_command
from wattline.backend.engine.slurm.node_list import count_gpus, parse_time_limit

_NOT_OVER = frozenset(
    (
        *("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD"),
        *("STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT", "RESV_DEL_HOLD"),
    )
)
_READ_LINES = frozenset(
    (
        *("UserId", "Priority", "JobState", "RunTime", "SubmitTime", "StartTime", "Partition", "NodeList"),
        *("NumNodes", "JOB_GRES", "TRES", "ReqTRES", "AllocTRES", "TresPerJob", "TresPerNode", "TresPerTask"),
    )
)
_YEAR_S = 365 * 86400.0
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][\w:/]*)=(\S*)")
_SHARE = re.compile(r"Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)")
_GPU = re.compile(r"(?:gres[:/])?gpu(?::([A-Za-z][^:=]*))?(?:[:=](\d+))?")


@dataclass(frozen=True)
class RecordedJob:
    """A job of any user. Times are seconds since the epoch; nan: not known, or not yet."""

    id: str
    state: str
    user: str
    account: str
    submit_s: float
    eligible_s: float  # when it could have started: after its dependencies, or its requested begin
    start_s: float
    end_s: float
    limit_s: float | None  # its time limit; None: unlimited
    gpus: int
    gpu_type: str  # as requested; empty: any
    allocation: tuple[tuple[str, int], ...]  # GPUs by name of the node; empty: it was not seen running

    @property
    def is_over(self) -> bool:
        """True when it has ended, or was cancelled before it started."""
        return self.state not in _NOT_OVER

    @property
    def has_run(self) -> bool:
        """True if it has started; one that is cancelled before has a time of start as well, but no nodes."""
        return self.state != "PENDING" and math.isfinite(self.start_s) and bool(self.allocation)


class PartitionHistory:
    """All jobs of a partition that were seen, and the latest record of each."""

    def __init__(self, partition: str, *, accounted: bool) -> None:
        self._partition, self._accounted = partition, accounted
        self._jobs: dict[tuple[str, float], RecordedJob] = {}  # by id and time of submission: ids are reused
        self.unknown_ends: set[str] = set()  # ids of jobs that Slurm has forgotten before their end was read

    @property
    def jobs(self) -> list[RecordedJob]:
        """The jobs in the order of their submission."""
        return sorted(self._jobs.values(), key=lambda job: (job.submit_s, int(job.id)))

    def update(self) -> None:
        """Ask Slurm for all jobs, also those that have just ended."""
        found = read_jobs(self._partition)
        for job in found:
            self._add(job)
        known = {(job.id, job.submit_s) for job in found}
        gone = [job for key, job in self._jobs.items() if key not in known and not job.is_over]
        for job in gone:
            self._jobs[job.id, job.submit_s] = self._find_end(job)

    def _add(self, job: RecordedJob) -> None:
        for key in [key for key in self._jobs if key[0] == job.id and key[1] != job.submit_s]:
            if not self._jobs[key].is_over:
                del self._jobs[key]  # it was requeued
        before = self._jobs.get((job.id, job.submit_s))
        if before is not None and before.allocation and job.is_over:  # the GPUs of its nodes are not shown
            job = replace(job, gpus=before.gpus, allocation=before.allocation)
        self._jobs[job.id, job.submit_s] = job

    def _find_end(self, job: RecordedJob) -> RecordedJob:
        """Return a job that slurmctld has forgotten, with its end from accounting where that is on."""
        ended = _read_accounted_end(job) if self._accounted else None
        if ended is None:
            self.unknown_ends.add(job.id)
            return job
        self.unknown_ends.discard(job.id)
        return ended


def read_jobs(partition: str) -> list[RecordedJob]:
    """Ask slurmctld for all jobs of a partition that it remembers."""
    try:
        text = run_command(["scontrol", "show", "job", "--detail"])
    except SlurmRefused as error:
        if "No jobs" in error.message:
            return []
        raise
    return parse_jobs_of(text, partition)


def parse_jobs_of(text: str, partition: str) -> list[RecordedJob]:
    """Return the jobs of a partition in the output of `scontrol show job --detail`."""
    blocks = re.split(r"\n\s*\n", text)
    jobs = (_parse_block(block.splitlines(), partition) for block in blocks if "JobId=" in block)
    return [job for job in jobs if job is not None]


def _parse_block(lines: Sequence[str], partition: str) -> RecordedJob | None:
    values: dict[str, str] = {}
    shares: list[tuple[str, int]] = []
    for line in map(str.strip, lines):
        name = line.partition("=")[0]
        if name == "JobId":
            values.setdefault(name, line.partition("=")[2].split(" ")[0])
        elif name == "Nodes" and (share := _SHARE.fullmatch(line)):
            shares += [(node, count_gpus(share[2])) for node in expand_hosts(share[1])]
        elif name in _READ_LINES:
            for key, value in _PAIR.findall(line):
                values.setdefault(key, value)
    if partition not in values.get("Partition", "").split(","):
        return None
    allocation = tuple((node, gpus) for node, gpus in shares if gpus > 0)
    requested, gpu_type = _count_requested_gpus(values)
    return RecordedJob(
        id=values["JobId"],
        state=values.get("JobState", ""),
        user=values.get("UserId", "").partition("(")[0],
        account="" if values.get("Account", "(null)") == "(null)" else values["Account"],
        submit_s=parse_moment(values.get("SubmitTime", "")),
        eligible_s=parse_moment(values.get("EligibleTime", "")),
        start_s=parse_moment(values.get("StartTime", "")),
        end_s=parse_moment(values.get("EndTime", "")),
        limit_s=_parse_limit(values.get("TimeLimit", "")),
        gpus=sum(gpus for _, gpus in allocation) or count_gpus(values.get("JOB_GRES", "")) or requested,
        gpu_type=gpu_type,
        allocation=allocation or _split_evenly(values.get("NodeList", ""), requested),
    )


def _parse_limit(text: str) -> float | None:
    """Return a time limit; None: unlimited, for which Slurm also writes a year."""
    limit_s = None if text == "Partition_Limit" else parse_time_limit(text)
    return None if limit_s is None or limit_s >= _YEAR_S else limit_s


def _split_evenly(nodes: str, gpus: int) -> tuple[tuple[str, int], ...]:
    """Return GPUs by node of a job that ended before its allocation could be read."""
    names = [] if nodes in ("", "(null)") else list(expand_hosts(nodes))
    counts = [gpus // len(names) + (number < gpus % len(names)) for number in range(len(names))]
    return tuple((name, count) for name, count in zip(names, counts, strict=True) if count)


def _count_requested_gpus(values: dict[str, str]) -> tuple[int, str]:
    """Return the number of GPUs that a job has requested, and their type."""
    nodes, tasks = (int((re.match(r"\d+", values.get(key, "")) or ["1"])[0]) for key in _TIMES)
    for key, times in (("TresPerNode", nodes), ("TresPerJob", 1), ("TresPerTask", tasks)):
        gpus, gpu_type = _parse_tres(values.get(key, ""))
        if gpus:
            return gpus * times, gpu_type
    return next((found for key in _TRES if (found := _parse_tres(values.get(key, "")))[0]), (0, ""))


_TIMES = ("NumNodes", "NumTasks")
_TRES = ("AllocTRES", "ReqTRES", "TRES")


def _parse_tres(text: str) -> tuple[int, str]:
    """Return the GPUs of a text such as gres:gpu:a100:2 or cpu=4,gres/gpu=2, and their type."""
    found = [match for word in text.split(",") if (match := _GPU.fullmatch(word))]
    typed = [match for match in found if match[1]]  # newer releases list both gres/gpu and gres/gpu:TYPE
    return sum(int(match[2] or 1) for match in typed or found), typed[0][1] if len(typed) == 1 else ""


def parse_moment(text: str) -> float:
    """Return a time of Slurm, which is local time, as seconds since the epoch; nan: it has none."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return math.nan


def expand_hosts(text: str) -> Iterator[str]:
    """Yield the names of a list of nodes such as a1,n[01-03,7]."""
    for word in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        match = re.match(r"([^\[]*)\[([^\]]*)\](.*)", word)
        if match is None:
            yield word
            continue
        for part in match[2].split(","):
            low, _, high = part.partition("-")
            for number in range(int(low), int(high or low) + 1):
                for rest in expand_hosts(match[3]) if match[3] else ("",):
                    yield f"{match[1]}{number:0{len(low)}d}{rest}"


def _read_accounted_end(job: RecordedJob) -> RecordedJob | None:
    """Return a job with its state, start and end in slurmdbd; None: it is not known there, or not over."""
    columns = "JobIDRaw,State,Start,End"
    text = run_command(["sacct", "-n", "-P", "-X", "-j", job.id, "-o", columns])
    for row in (line.split("|") for line in text.splitlines()):
        if len(row) == 4 and row[0] == job.id:
            state, start_s, end_s = row[1].partition(" ")[0], parse_moment(row[2]), parse_moment(row[3])
            ended = replace(job, state=state, start_s=start_s, end_s=end_s)
            if ended.is_over and math.isfinite(end_s):
                return ended
    return None

"""Schema of a job file: YAML, or the same document as JSON. Only `run` is required.

Fields hold the text of the user (`4h`); properties convert it (14400.0).
"""

from __future__ import annotations

from datetime import datetime
from signal import Signals
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from wattline.jobfile import fields as f
from wattline.jobfile.dependencies import Dependency, check_dependencies, list_dependencies
from wattline.jobfile.errors import FieldError, Path, convert_validation_error
from wattline.jobfile.matrix import check_matrix
from wattline.jobfile.template import split_command
from wattline.jobfile.yaml_reader import LIMIT_BYTES as LIMIT_BYTES
from wattline.jobfile.yaml_reader import read_yaml
from wattline.measurement.gpu_names import resolve_gpu_kind
from wattline.train.environment import Target
from wattline.units import parse_gib, parse_joules, parse_seconds, parse_watts


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ResourcesSection(_Section):
    """Resources that a job requests."""

    gpus: f.GpuCount | f.GpuRange = Field(
        default=1, description="a number of GPUs such as 2, 1..4, or 8.. for at least 8"
    )
    gpu_type: f.Kind | f.Kinds = Field(
        default=(), description="a kind of GPU such as a100, or a list of kinds"
    )
    cpus_per_gpu: f.Auto | f.Cpus = Field(default="auto", description="auto, or a number above 0")
    memory_per_gpu: f.Auto | f.Gib | f.GibText = Field(
        default="auto", description="auto, or a size such as 32G"
    )
    time: f.Seconds | f.Duration | None = Field(
        default=None, description="a duration such as 300s, 4h or 1-12:00:00"
    )

    @property
    def gpu_range(self) -> tuple[int, int, int]:
        """Minimum, requested and maximum number of GPUs; maximum 0: no limit."""
        if isinstance(self.gpus, int):
            return self.gpus, self.gpus, self.gpus
        first, dots, last = self.gpus.partition("..")
        if dots and not last:
            return int(first), int(first), 0
        least, most = sorted((int(first), int(last or first)))
        return least, most, most

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Accepted kinds of GPU, as the library and clusters name them; empty: any."""
        return tuple(dict.fromkeys(map(resolve_gpu_kind, self.typed_gpu_types)))

    @property
    def typed_gpu_types(self) -> tuple[str, ...]:
        """Accepted kinds of GPU as the user names them, such as the types of a cluster's Slurm."""
        return (self.gpu_type,) if isinstance(self.gpu_type, str) else self.gpu_type

    @property
    def cpus(self) -> float | None:
        """CPUs per GPU; None: chosen by Wattline."""
        return None if self.cpus_per_gpu == "auto" else self.cpus_per_gpu

    @property
    def memory_gib(self) -> float | None:
        """Host memory per GPU in GiB; None: chosen by Wattline."""
        if self.memory_per_gpu == "auto":
            return None
        return parse_gib(self.memory_per_gpu) if isinstance(self.memory_per_gpu, str) else self.memory_per_gpu

    @property
    def time_s(self) -> float | None:
        """Time limit in seconds; None: no limit."""
        return parse_seconds(self.time) if isinstance(self.time, str) else self.time


class EnergySection(_Section):
    """Limits of slowdown, power and energy."""

    max_slowdown: f.Ratio | f.Percent | None = Field(
        default=None, description="a slowdown such as 5%, or a ratio of at least 1 such as 1.05"
    )
    power: f.Auto | f.Watts | f.WattsText = Field(
        default="auto", description="auto, or watts of one GPU such as 250W"
    )
    budget: f.Joules | f.JoulesText | None = Field(
        default=None, description="an energy such as 3kWh, 2MJ or 500kJ"
    )

    @property
    def slowdown(self) -> float | None:
        """Allowed run time relative to that without power caps; None: unset."""
        if isinstance(self.max_slowdown, str):
            return 1 + float(self.max_slowdown.removesuffix("%")) / 100
        return self.max_slowdown

    @property
    def power_w(self) -> float | None:
        """Power limit of each GPU in watts; None: chosen by Wattline."""
        if self.power == "auto":
            return None
        return parse_watts(self.power) if isinstance(self.power, str) else self.power

    @property
    def budget_j(self) -> float | None:
        """Energy budget of the whole job in joules; None: no limit."""
        return parse_joules(self.budget) if isinstance(self.budget, str) else self.budget


class CheckpointSection(_Section):
    """Signal and grace period of a stop, and the folder of checkpoints."""

    signal: f.StopSignal = Field(
        default="SIGTERM", description="the name of a signal such as SIGTERM or SIGUSR2"
    )
    grace: f.Grace | f.GraceText = Field(
        default="30s", description="a duration of at most a day such as 120s or 5m"
    )
    dir: f.FolderTemplate | None = Field(default=None, description="a folder such as ckpt/")
    min_runtime: f.Grace | f.GraceText | None = Field(
        default=None,
        description="a duration of at most a day such as 5m, for which each attempt is not preempted",
    )

    @property
    def min_runtime_s(self) -> float | None:
        """Seconds of an attempt before it may be preempted; None: by its start-up."""
        return parse_seconds(self.min_runtime) if isinstance(self.min_runtime, str) else self.min_runtime

    @property
    def stop(self) -> Signals:
        """Signal that asks a job to stop."""
        return Signals[self.signal]

    @property
    def grace_s(self) -> float:
        """Seconds from the stop signal to SIGKILL."""
        return parse_seconds(self.grace) if isinstance(self.grace, str) else self.grace


class RetrySection(_Section):
    """Number, delay and causes of retries."""

    limit: f.Retries | None = Field(
        default=None, description="how often it is started again, a whole number from 0 to 100"
    )
    delay: f.Grace | f.GraceText | None = Field(
        default=None, description="a duration of at most a day such as 10s, before each retry"
    )
    on: f.RetryCauses | None = Field(
        default=None,
        description="a list of causes: crash, killed, node_fail, error, out_of_memory, timeout",
    )

    @property
    def delay_s(self) -> float | None:
        """Seconds before each retry; None: a delay that grows."""
        return parse_seconds(self.delay) if isinstance(self.delay, str) else self.delay


class RecurringSection(_Section):
    """Group of a recurring job, and the settings that are tuned from run to run."""

    group: Annotated[f.Line, Field(min_length=1)] = Field(
        description="the name of what recurs such as nightly-nmt"
    )
    tune: f.TunedSettings = Field(
        default=("batch_size", "power_limit"),
        description="a list of what may be tuned: batch_size, power_limit",
    )
    batch_sizes: f.BatchSizes = Field(
        default=(), description="a list of whole numbers above 0 such as [32, 64, 128]"
    )
    target: f.TargetText | None = Field(default=None, description="a goal such as accuracy>=0.6 or wer<=40")

    @property
    def goal(self) -> Target | None:
        """Metric and threshold that a run has to reach; None: its exit code decides."""
        return None if self.target is None else Target.parse(self.target)


class ContainerSection(_Section):
    """Container image of a job, and folders of the host in it."""

    image: f.Image = Field(description="an image such as pytorch.sif or docker://pytorch/pytorch:2.4")
    mounts: f.Mounts = Field(
        default=(), description="a list of absolute paths such as /data, /data:/inside or /data:/inside:ro"
    )


class DependencySection(_Section):
    """A job or a sweep that has to end first."""

    job: f.JobNumber | f.DependencyName | None = Field(default=None, description="the id or name of a job")
    sweep: f.JobNumber | f.SweepNumber | None = Field(
        default=None, description="a sweep by the id of its first job"
    )
    when: Literal["success", "end"] = Field(default="success", description="success or end")


_DEPENDENCIES = "jobs such as 12, 12:end, sweep:12, a name, or {job: 12, when: end}, or a list of these"


class JobFile(_Section):
    """A job, or with a `matrix` a sweep of jobs."""

    run: f.Command | f.Words = Field(
        description="one command such as python train.py, or a list of its words"
    )
    name: f.Label = Field(default="", description="a name of at most 200 letters on one line")
    workdir: f.Folder | None = Field(default=None, description="an absolute path such as /home/me/project")
    env: f.Env = Field(default={}, description="environment variables such as {OMP_NUM_THREADS: 4}")
    container: f.Image | ContainerSection | None = Field(
        default=None, description="an image such as pytorch.sif, or {image: pytorch.sif, mounts: [/data]}"
    )
    model: f.Line | None = Field(default=None, description="the name of a known workload such as resnet50")
    batch_size: f.Count | None = Field(default=None, description="a whole number above 0")
    resources: ResourcesSection = Field(
        default=ResourcesSection(), description="a mapping such as {gpus: 1..4, time: 4h}"
    )
    matrix: f.Matrix = Field(default={}, description="a list of values, or a range such as 0..7")
    max_parallel: f.MemberCount | None = Field(
        default=None, description="how many jobs of the matrix may run at once, a whole number above 0"
    )
    depends_on: (
        f.JobNumber
        | f.DependencyText
        | DependencySection
        | Annotated[
            tuple[f.JobNumber | f.DependencyText | DependencySection, ...],
            Field(max_length=100),
            BeforeValidator(f.as_tuple),
        ]
    ) = Field(default=(), description=_DEPENDENCIES)
    fuse: f.FuseMode | f.MemberCount = Field(
        default="auto", description="off, auto, or how many members are trained as one"
    )
    energy: EnergySection = Field(
        default=EnergySection(), description="a mapping such as {max_slowdown: 5%, budget: 3kWh}"
    )
    deadline: f.Instant | None = Field(
        default=None, description="a time with its zone such as 2026-11-16T09:00+01:00 or 2026-11-16T08:00Z"
    )
    tardiness_weight: Annotated[float, Field(ge=0, le=1e9)] | None = Field(
        default=None, description="what an hour of being late costs, a number of at least 0"
    )
    elastic: bool = Field(default=False, description="true or false")
    checkpoint: CheckpointSection = Field(
        default=CheckpointSection(), description="a mapping such as {signal: SIGUSR2, grace: 120s}"
    )
    recurring: RecurringSection | None = Field(
        default=None, description="a mapping such as {group: nightly-nmt}"
    )
    notify: f.WebhookUrl = Field(
        default="", description="a URL that is called when it ends, such as https://hooks.example.org/me"
    )
    team: f.Team = Field(default="", description="a name of at most 200 letters without * and :")
    priority: float = Field(default=0.0, ge=-1e9, le=1e9, description="a number from -1e9 to 1e9")
    retries: f.Retries = Field(
        default=3, description="how often it is started again after it was killed, 0 to 100"
    )
    retry: RetrySection = Field(
        default=RetrySection(),
        description="a mapping such as {limit: 3, delay: 10s, on: [killed, node_fail]}",
    )
    preemptible: bool | None = Field(
        default=None, description="true or false; without it, once it has saved a checkpoint"
    )

    @property
    def words(self) -> tuple[str, ...]:
        """Words of the command, with `${name}` not yet filled in."""
        return split_command(self.run) if isinstance(self.run, str) else self.run

    @property
    def container_image(self) -> str:
        """Container image; empty: none."""
        return self.container.image if isinstance(self.container, ContainerSection) else self.container or ""

    @property
    def container_mounts(self) -> tuple[str, ...]:
        """Folders of the host in the container."""
        return self.container.mounts if isinstance(self.container, ContainerSection) else ()

    @property
    def dependencies(self) -> tuple[Dependency, ...]:
        """Jobs and sweeps that have to end first."""
        return list_dependencies(self)

    @property
    def width(self) -> int | None:
        """Members trained as one array; 1: fusion is off; None: chosen by Wattline."""
        return self.fuse if isinstance(self.fuse, int) else {"off": 1, "auto": None}[self.fuse]

    @property
    def deadline_at(self) -> datetime | None:
        """Deadline with its time zone; None: none."""
        return None if self.deadline is None else datetime.fromisoformat(self.deadline)


_AS_WRITTEN: frozenset[Path] = frozenset(
    (
        *((key,) for key in ("name", "run", "workdir", "env", "container")),
        *((key,) for key in ("model", "team", "deadline", "matrix")),
        *(("resources", "gpu_type"), ("checkpoint", "dir"), ("recurring", "group"), ("recurring", "target")),
    )
)
"""Paths at which scalars stay as written: `name: 2024` is text, not a number."""
_BOOLEANS = {"yes": True, "on": True, "no": False, "off": False}


def read_job(text: str, where: str) -> JobFile:
    """Read a job from YAML; error messages begin with `where:line: `."""
    node = read_yaml(text, where)
    document = node.plain(lambda path: path[:1] in _AS_WRITTEN or path[:2] in _AS_WRITTEN)
    for name in ("elastic", "preemptible"):
        if isinstance(document, dict) and isinstance(document.get(name), str):
            document[name] = _BOOLEANS.get(document[name].casefold(), document[name])
    try:
        return _validate(document)
    except FieldError as error:
        raise error.at(where, node.line_of(error.path)) from None


def read_document(document: object, where: str) -> JobFile:
    """Read a job from parsed JSON; error messages begin with `where: `."""
    try:
        return _validate(document)
    except FieldError as error:
        raise error.at(where, None) from None


def _validate(document: object) -> JobFile:
    if not isinstance(document, dict):
        raise FieldError(
            (),
            "is not a mapping, expected at least run: followed by a command",
            hint="to submit a script: wattline submit -- bash SCRIPT",
        )
    try:
        job = JobFile.model_validate(document)
    except ValidationError as error:
        raise convert_validation_error(error, document, JobFile) from None
    check_matrix(job)
    check_retries(job)
    check_dependencies(job)
    return job


def check_retries(job: JobFile) -> None:
    """Raise `FieldError` if the number of retries is given twice."""
    if "retries" in job.model_fields_set and job.retry.limit is not None:
        raise FieldError(
            ("retry", "limit"),
            f"retry.limit is {job.retry.limit} and retries is {job.retries}, expected one of them",
            hint="retries: N is the short form of retry: {limit: N}",
        )

"""The nouns: what a job, a node, a plan and a lease are.

Many rows are a `Table` of read-only columns, or a block: one 2-D array, where a new one is made every
round. Units are in the names: `_s` seconds, `_w` watts, `_j` joules, `_gib` GiB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from wattline.errors import InputError, PlanError
from wattline.messages import EVERY_EVENT, Actions, Events
from wattline.table import INT64, Bools, Floats, Ints, Labels, Table, check_array


@dataclass(frozen=True, eq=False)
class Jobs(Table):
    """What users asked for, one row per training job, in order of submission.

    A job is *steps* units of work; one takes *step_s* seconds with what was asked for. Where only the
    duration is known a step is one second and *whole* is False: progress then needs no whole steps.
    """

    id: NDArray[np.object_]
    submit_s: Floats
    gpus: Ints
    steps: Floats
    step_s: Floats
    whole: Bools
    deadline_s: Floats  # inf: none
    late_per_h: Floats  # money for each hour that it ends after its deadline; 0: nobody said
    priority: Floats  # larger goes first
    batch: Ints  # 0: unknown
    min_gpus: Ints  # fewest GPUs it may be given; 0: nobody said
    max_gpus: Ints  # most GPUs it may be given; 0: nobody said
    max_batch: Ints  # largest batch it may be trained with; 0: its batch is fixed
    noise: Floats  # gradient noise scale in samples; 0: unknown
    cpus: Floats  # cores of the whole job with which a step takes step_s; 0: nobody said
    mem_gib: Floats  # likewise host memory
    team: Labels  # virtual cluster, account
    user: Labels
    model: Labels
    gpu_kind: Labels  # kinds it accepts, "|" between them; "": any
    key: Labels  # equal for recurrences of one job; "": unknown
    fuse: (
        Labels  # equal for jobs that may be trained as one array, with "!" at its end should; "": it may not
    )
    status: Labels  # how it ended in the recorded world; "": unknown

    @classmethod
    def of(
        cls,
        *,
        submit_s: Sequence[float] | Floats,
        gpus: Sequence[int] | Ints,
        duration_s: Sequence[float] | Floats | None = None,
        steps: Sequence[float] | Floats | None = None,
        step_s: Sequence[float] | Floats | None = None,
        id: Sequence[str] | None = None,
        deadline_s: Sequence[float] | Floats | None = None,
        late_per_h: Sequence[float] | Floats | None = None,
        priority: Sequence[float] | Floats | None = None,
        batch: Sequence[int] | Ints | None = None,
        min_gpus: Sequence[int] | Ints | None = None,
        max_gpus: Sequence[int] | Ints | None = None,
        max_batch: Sequence[int] | Ints | None = None,
        noise: Sequence[float] | Floats | None = None,
        cpus: Sequence[float] | Floats | None = None,
        mem_gib: Sequence[float] | Floats | None = None,
        team: Sequence[str] | Labels | None = None,
        user: Sequence[str] | Labels | None = None,
        model: Sequence[str] | Labels | None = None,
        gpu_kind: Sequence[str] | Labels | None = None,
        key: Sequence[str] | Labels | None = None,
        fuse: Sequence[str] | Labels | None = None,
        status: Sequence[str] | Labels | None = None,
    ) -> Jobs:
        """Jobs from what is known of them: either *duration_s*, or *steps* and *step_s*.

        Rows are sorted by submission (stable). Values that no job can have raise `InputError`.
        """
        count = len(submit_s)
        if (duration_s is None) == (steps is None or step_s is None):
            raise InputError("give either duration_s, or both steps and step_s")
        if duration_s is not None:
            whole = np.zeros(count, dtype=np.bool_)
            steps, step_s = duration_s, np.ones(count)
        else:
            whole = np.ones(count, dtype=np.bool_)

        def floats(values: Sequence[float] | Floats | None, missing: float) -> Floats:
            return np.full(count, missing) if values is None else np.array(values, dtype=np.float64)

        def counts(values: Sequence[int] | Ints | None) -> Ints:
            return np.zeros(count, np.int64) if values is None else np.array(values, dtype=np.int64)

        def labels(words: Sequence[str] | Labels | None) -> Labels:
            if words is None:
                return Labels.same("", count)
            return words if isinstance(words, Labels) else Labels.of(words)

        ids = np.empty(count, dtype=np.object_)
        ids[:] = [str(row) for row in range(count)] if id is None else list(id)
        jobs = cls(
            id=ids,
            submit_s=floats(submit_s, 0.0),
            gpus=np.array(gpus, dtype=np.int64),
            steps=floats(steps, 0.0),
            step_s=floats(step_s, 1.0),
            whole=whole,
            deadline_s=floats(deadline_s, math.inf),
            late_per_h=floats(late_per_h, 0.0),
            priority=floats(priority, 0.0),
            batch=counts(batch),
            min_gpus=counts(min_gpus),
            max_gpus=counts(max_gpus),
            max_batch=counts(max_batch),
            noise=floats(noise, 0.0),
            cpus=floats(cpus, 0.0),
            mem_gib=floats(mem_gib, 0.0),
            team=labels(team),
            user=labels(user),
            model=labels(model),
            gpu_kind=labels(gpu_kind),
            key=labels(key),
            fuse=labels(fuse),
            status=labels(status),
        )
        jobs._check()
        order = np.argsort(jobs.submit_s, kind="stable")
        return jobs if np.array_equal(order, np.arange(count)) else jobs.take(order)

    @property
    def duration_s(self) -> Floats:
        """Seconds each job runs when it gets what it asked for."""
        return self.steps * self.step_s

    def _check(self) -> None:
        rules = (
            ("submit_s", np.isfinite(self.submit_s), "a finite number of seconds"),
            ("gpus", self.gpus > 0, "at least 1"),
            ("steps", np.isfinite(self.steps) & (self.steps >= 0), "a finite number, not negative"),
            ("step_s", np.isfinite(self.step_s) & (self.step_s > 0), "a finite number above 0"),
            ("deadline_s", self.deadline_s > -np.inf, "a number of seconds, or inf for none"),
            (
                "late_per_h",
                np.isfinite(self.late_per_h) & (self.late_per_h >= 0),
                "a finite number, not negative",
            ),
            ("priority", np.isfinite(self.priority), "a finite number"),
            ("min_gpus", (self.min_gpus >= 0) & (self.min_gpus <= self.gpus), "0, or at most gpus"),
            (
                "max_gpus",
                (self.max_gpus == 0) | (self.max_gpus >= self.gpus),
                "0, or at least gpus",
            ),
            ("max_batch", (self.max_batch == 0) | (self.max_batch >= self.batch), "0, or at least batch"),
            ("noise", np.isfinite(self.noise) & (self.noise >= 0), "a finite number, not negative"),
            ("cpus", np.isfinite(self.cpus) & (self.cpus >= 0), "a finite number, not negative"),
            ("mem_gib", np.isfinite(self.mem_gib) & (self.mem_gib >= 0), "a finite number, not negative"),
        )
        for name, good, expected in rules:
            if not good.all():
                row = int(np.argmin(good))
                value = getattr(self, name)[row]
                raise InputError(f"job {self.id[row]}: {name} is {value}, expected {expected}")
        if len(set(self.id.tolist())) != len(self):
            seen: set[str] = set()
            twice = next(i for i in self.id.tolist() if i in seen or seen.add(i))  # type: ignore[func-returns-value]
            raise InputError(f"job {twice}: the id appears twice, expected unique ids")


@dataclass(frozen=True, eq=False)
class Nodes(Table):
    """The machines, one row each. Build them with `wattline.nodes` or `wattline.read_cluster`."""

    name: NDArray[np.object_]
    kind: Labels  # of GPU
    gpus: Ints
    cpus: Floats
    mem_gib: Floats
    storage_mib_s: Floats  # what its storage delivers; 0: as much as anybody wants
    rack: Ints
    base_w: Floats  # the node without its GPUs
    idle_w: Floats  # one GPU without a job
    busy_w: Floats  # one GPU that trains
    off_w: Floats  # the whole node when it is switched off
    boot_s: Floats  # from switching it on until jobs may start
    boot_w: Floats  # the whole node meanwhile

    @property
    def rest_w(self) -> Floats:
        """Each node when it is up and nobody trains on it."""
        return np.asarray(self.base_w + self.gpus * self.idle_w)

    @property
    def break_even_s(self) -> Floats:
        """For how long each must be off to save what booting it costs; inf: being off saves nothing."""
        saves_w = self.rest_w - self.off_w
        saves = saves_w > 0
        return np.where(saves, self.boot_s * self.boot_w / np.where(saves, saves_w, 1.0), math.inf)

    @cached_property
    def host(self) -> Ints:
        """What there is to share out of each node's host: rows as in `HOST`, a column per node."""
        return np.array((1000 * self.cpus, 1024 * self.mem_gib, self.storage_mib_s)).astype(np.int64)

    @cached_property
    def share(self) -> Ints:
        """The proportional share: what of the host belongs to one of a node's GPUs, rows as in `HOST`."""
        return self.host // self.gpus

    def accepts(self, gpu_kind: Labels) -> Ints:
        """For each row of *gpu_kind*, a bit mask of this cluster's kinds that it accepts."""
        every = (1 << len(self.kind.names)) - 1
        bits = {name.casefold(): 1 << bit for bit, name in enumerate(self.kind.names)}
        wanted = [{word.strip() for word in text.casefold().split("|")} for text in gpu_kind.names]
        masks = [every if words == {""} else sum(bits.get(word, 0) for word in words) for words in wanted]
        return np.array(masks, dtype=np.int64)[gpu_kind.codes] if masks else np.empty(0, dtype=np.int64)


HOST = ("mcpus", "mem_mib", "read_mib_s")
"""What jobs are given of the host beside GPUs: thousandths of a core, MiB of memory, MiB/s from storage.

Always for each GPU, so that a job which spans nodes has it everywhere in proportion to its GPUs there.
0 is "nobody said": the proportional share of the node.
"""


class Reason(Enum):
    """Why a job holds no GPUs now: the value is the sentence its owner reads."""

    NONE = "It is running, or nobody has looked at it yet."
    NO_ROOM = "It is next in line; the GPUs that are free are fewer than it needs."
    OUTRANKED = "The GPUs went to jobs that go first, or are kept for the one that is next in line."
    TOO_BIG = "It asks for more GPUs than the cluster has of the kinds it accepts."
    HELD = "The policy holds it back."
    OVER_BUDGET = "The energy budget leaves nothing for it now."
    NEVER_IN_BUDGET = "The energy budget will never allow it, not even alone and in its most frugal way."
    BOOTING = "Nodes are being switched on for it."
    NO_HOST = "GPUs are free, but not the cores, memory or storage that it needs beside them."
    NO_NODE = "No single node has the GPUs that it needs, and the policy spreads no job over several."
    CHEAPER_LATER = "Energy will be cheaper before its deadline, and there is time enough."


REASONS: tuple[Reason, ...] = tuple(Reason)
"""Reasons by the number that tables and logs store."""

# Rows of a queue's block; one 2-D array, so that a new state is one copy.
QUEUE_ROWS = 17
JOB, ASKED, ACCEPTS, DONE, MARK, RATE, SERVICE = range(7)
GPU_SERVICE, SINCE, FIRST, RESTARTS, HELD, REASON, WATTS = range(7, 14)
LAST_GPUS, LAST_CAP, LAST_NODE = range(14, QUEUE_ROWS)  # on what it ran last, or runs: all, cap, the first


@dataclass(frozen=True, eq=False, slots=True)
class Queue:
    """The unfinished jobs, one column of *block* each, in order of submission."""

    block: Floats

    def __post_init__(self) -> None:
        self.block.setflags(write=False)

    def __len__(self) -> int:
        return int(self.block.shape[1])

    @property
    def job(self) -> Ints:
        """Row in `Snapshot.jobs`."""
        row: Ints = self.block[JOB].astype(np.int64)
        return row

    @property
    def gpus(self) -> Ints:
        """GPUs asked for."""
        row: Ints = self.block[ASKED].astype(np.int64)
        return row

    @property
    def since_s(self) -> Floats:
        """Since when it runs or waits."""
        row: Floats = self.block[SINCE]
        return row

    @property
    def first_s(self) -> Floats:
        """When it first started; nan: never."""
        row: Floats = self.block[FIRST]
        return row

    @property
    def restarts(self) -> Floats:
        """How often it was started again."""
        row: Floats = self.block[RESTARTS]
        return row

    @property
    def held(self) -> Floats:
        """GPUs it holds now; 0: it waits."""
        row: Floats = self.block[HELD]
        return row

    @property
    def watts(self) -> Floats:
        """What its GPUs drew when it was last measured, on what it ran last or runs; 0: nobody knows."""
        row: Floats = self.block[WATTS]
        return row

    @property
    def running(self) -> Bools:
        """Which jobs hold GPUs."""
        row: Bools = self.block[HELD] > 0
        return row


LEASE_ROWS = 9


@dataclass(frozen=True, eq=False, slots=True)
class Leases:
    """Who holds what: one column of *block* per job and node, sorted by job, then node.

    Columns with the same *group* run as one (packed or fused) on the same GPUs, counted once: for
    the job that leads, `job == group`. All columns of a group have its power cap, batch and host share.
    """

    block: Ints  # rows job, group, node, gpus, cap_w, batch, and those of HOST

    @classmethod
    def of(
        cls,
        job: Sequence[int],
        group: Sequence[int],
        node: Sequence[int],
        gpus: Sequence[int],
        cap_w: Sequence[int] | None = None,
        batch: Sequence[int] | None = None,
        host: Sequence[Sequence[int]] | Ints | None = None,
    ) -> Leases:
        """Leases from their columns, sorted as they have to be; *host* has the rows of `HOST`."""
        block = np.zeros((LEASE_ROWS, len(job)), dtype=np.int64)
        for row, column in enumerate((job, group, node, gpus, cap_w, batch)):
            if column is not None:
                block[row] = column
        if host is not None:
            block[6:] = host
        return cls(np.ascontiguousarray(block[:, np.lexsort((block[2], block[0]))]))

    def __post_init__(self) -> None:
        check_array("Leases.block", self.block, INT64, 2, PlanError)
        self.block.setflags(write=False)

    def __len__(self) -> int:
        return int(self.block.shape[1])

    @property
    def job(self) -> Ints:
        """Row in `Snapshot.jobs`."""
        row: Ints = self.block[0]
        return row

    @property
    def group(self) -> Ints:
        """The job that leads the group."""
        row: Ints = self.block[1]
        return row

    @property
    def node(self) -> Ints:
        """Row in `Snapshot.nodes`."""
        row: Ints = self.block[2]
        return row

    @property
    def gpus(self) -> Ints:
        """GPUs held on that node."""
        row: Ints = self.block[3]
        return row

    @property
    def cap_w(self) -> Ints:
        """Power cap of each of its GPUs; 0: none."""
        row: Ints = self.block[4]
        return row

    @property
    def batch(self) -> Ints:
        """Samples of a step, of all its GPUs; 0: as asked."""
        row: Ints = self.block[5]
        return row

    @property
    def host(self) -> Ints:
        """What each of its GPUs has of the host: rows as in `HOST`."""
        rows: Ints = self.block[6:]
        return rows


@dataclass(frozen=True, eq=False, slots=True)
class Meter:
    """What was read of the energy meter so far: one row of *energy_j* per reading, since the start.

    Column 0 is the whole cluster, column 1 + t what the jobs of team t used.
    """

    at_s: Floats
    energy_j: Floats  # 2-D

    @classmethod
    def unread(cls) -> Meter:
        """Before the first reading."""
        return cls(np.empty(0), np.empty((0, 1)))

    def used_j(self, column: int, since_s: float = -math.inf) -> float:
        """Joules from *since_s* to the last reading; 0 while nothing was read."""
        if not len(self.at_s) or column >= self.energy_j.shape[1]:
            return 0.0
        energy_j = self.energy_j[:, column]
        return float(
            energy_j[-1] - (np.interp(since_s, self.at_s, energy_j) if since_s > self.at_s[0] else 0.0)
        )


@dataclass(frozen=True, eq=False, slots=True)
class Snapshot:
    """All that a policy may know at `now_s`; nothing in it can be written to."""

    now_s: float
    jobs: Jobs  # by row; a simulation's rows beyond the queue's are the future: not for policies
    nodes: Nodes
    queue: Queue
    leases: Leases
    free: Ints  # GPUs per node that nobody holds; 0 on a node that is down
    up: Bools
    wakes_s: Floats  # when a node that was switched off has booted; inf: it stays off, -inf: it is not off
    quiet_s: Floats  # since when nobody holds GPUs of a node; inf: somebody does
    meter: Meter
    seed: int = 0  # randomness is a function of this and now_s

    @property
    def usable(self) -> Bools:
        """Nodes that are up, or would be if they were switched on."""
        return np.asarray(self.up | (self.wakes_s > -math.inf))

    @property
    def steps_done(self) -> Floats:
        """Steps each queued job has done by now."""
        block = self.queue.block
        return np.asarray(block[DONE] + block[RATE] * np.maximum(0.0, self.now_s - block[MARK]))

    @property
    def steps_left(self) -> Floats:
        """Steps each queued job still has to do."""
        return np.maximum(0.0, self.jobs.steps[self.queue.job] - self.steps_done)

    @property
    def service_s(self) -> Floats:
        """Seconds each queued job has held GPUs."""
        block = self.queue.block
        return np.asarray(block[SERVICE] + np.where(block[HELD] > 0, self.now_s - block[SINCE], 0.0))

    @property
    def service_gpu_s(self) -> Floats:
        """GPU-seconds each queued job has held."""
        block = self.queue.block
        return np.asarray(block[GPU_SERVICE] + block[HELD] * (self.now_s - block[SINCE]))


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """Who should run, first come first: what a policy answers.

    *row* counts in `Snapshot.queue`; a job left out is held back. Rows with the same *group* (the
    row of the first of them) run as one on the same GPUs. *keeps*: nobody who runs is stopped for
    somebody else. *tick_s*: when the policy wants to be asked again if nothing happens before.
    *lasts*: once everybody has what the plan grants, jobs that end are no reason to ask again
    (true of policies that only order; not of those that give freed GPUs to who runs already).
    *cap_w* is the power cap of each GPU (0: none), *batch* that of the whole job (0: as asked), *host* what
    each GPU should have beside it, rows as in `HOST`; None: so for all. *reason* says, by row of the queue,
    why a job is left out. *meters*: the policy wants the energy meter read before it is asked again.
    *kind* is the only kind of GPU that an entry may have, *node* the only node (-1: any); a plan that names
    nodes is for placers that leave them alone, such as `Pack`. *gap*: how far from the best decision this one
    may be, relative to what it costs; inf: nobody knows, nan: the policy does not look for the best.
    """

    row: Ints
    gpus: Ints
    group: Ints
    keeps: bool = False
    tick_s: float = math.inf
    lasts: bool = False
    cap_w: Ints | None = None
    batch: Ints | None = None
    reason: Ints | None = None
    meters: bool = False
    host: Ints | None = None
    kind: Ints | None = None
    node: Ints | None = None
    gap: float = math.nan

    def __post_init__(self) -> None:
        check_array("Plan.row", self.row, INT64, 1, PlanError)
        check_array("Plan.gpus", self.gpus, INT64, 1, PlanError)
        check_array("Plan.group", self.group, INT64, 1, PlanError)
        if not len(self.row) == len(self.gpus) == len(self.group):
            lengths = f"{len(self.row)}, {len(self.gpus)} and {len(self.group)}"
            raise PlanError(f"a plan's row, gpus and group have {lengths} entries, expected as many of each")
        for name in ("cap_w", "batch", "kind", "node"):
            column = getattr(self, name)
            if column is not None:
                check_array(f"Plan.{name}", column, INT64, 1, PlanError)
                if len(column) != len(self.row):
                    raise PlanError(f"a plan's {name} has {len(column)} entries, expected {len(self.row)}")
        if self.reason is not None:
            check_array("Plan.reason", self.reason, INT64, 1, PlanError)
        if self.host is not None:
            check_array("Plan.host", self.host, INT64, 2, PlanError)
            if self.host.shape != (len(HOST), len(self.row)):
                expected = (len(HOST), len(self.row))
                raise PlanError(f"a plan's host has the shape {self.host.shape}, expected {expected}")

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, eq=False, slots=True)
class Placement:
    """What a placer answers: the leases, and for every row of the queue why it has none.

    *waiting* says how many have none. *on* says which nodes should be switched on; None: leave them
    as they are. *tick_s*: when the placer wants to be asked again if nothing happens before. *unsettled*:
    somebody who runs could use more of the host, so that jobs that end are a reason to ask again.
    """

    leases: Leases
    reason: Ints  # numbers of `REASONS`
    waiting: int
    on: Bools | None = None
    tick_s: float = math.inf
    unsettled: bool = False

    def __post_init__(self) -> None:
        check_array("Placement.reason", self.reason, INT64, 1, PlanError)


@dataclass(frozen=True, eq=False, slots=True)
class Grants:
    """Ways to run jobs, one entry each: what models are asked about."""

    job: Ints  # row in `Jobs`
    gpus: Ints
    nodes: Ints
    members: Ints  # jobs on the same GPUs, itself included
    fused: Bools  # whether these are trained as one array, or only packed
    cap_w: Ints  # of each GPU; 0: none
    batch: Ints  # of the whole job; 0: as asked
    host: Ints  # beside each GPU, rows as in `HOST`; 0: as asked
    kind: Labels  # of GPU; "": nobody says

    @classmethod
    def of(
        cls,
        job: Ints,
        gpus: Ints,
        nodes: Ints | None = None,
        *,
        members: Ints | None = None,
        fused: Bools | None = None,
        cap_w: Ints | None = None,
        batch: Ints | None = None,
        host: Ints | None = None,
        kind: Labels | str = "",
    ) -> Grants:
        """Ways to run jobs; alone on one node, without a cap, with their own batch and share unless said."""
        one, none = np.ones(len(job), dtype=np.int64), np.zeros(len(job), dtype=np.int64)
        return cls(
            job=job,
            gpus=gpus,
            nodes=one if nodes is None else nodes,
            members=one if members is None else members,
            fused=np.zeros(len(job), dtype=np.bool_) if fused is None else fused,
            cap_w=none if cap_w is None else cap_w,
            batch=none if batch is None else batch,
            host=np.zeros((len(HOST), len(job)), dtype=np.int64) if host is None else host,
            kind=Labels.same(kind, len(job)) if isinstance(kind, str) else kind,
        )

    def __len__(self) -> int:
        return len(self.job)

    def keys(self, sort: Ints) -> list[tuple[object, ...]]:
        """Each entry as one thing to look up, of jobs of these sorts."""
        company = (self.members, self.fused)
        numbers = (sort[self.job], self.gpus, self.nodes, *company, self.cap_w, self.batch, *self.host)
        kinds = [self.kind.names[code] for code in self.kind.codes.tolist()]
        return list(zip(kinds, *(column.tolist() for column in numbers), strict=True))

    def take(self, rows: Ints) -> Grants:
        """These entries, in this order."""
        return Grants(
            self.job[rows],
            self.gpus[rows],
            self.nodes[rows],
            self.members[rows],
            self.fused[rows],
            self.cap_w[rows],
            self.batch[rows],
            self.host[:, rows],
            self.kind[rows],
        )


@runtime_checkable
class Models(Protocol):
    """What is believed about jobs; learns by being replaced, never by changing.

    A class may have *alike* set to True: what it says of a job then depends on what the trace says of it
    and not on which job it is, so that what was said of one need not be asked of others like it. It may have
    a method *widest(jobs, grants)*, too: how many such jobs fit as one array into the memory of a GPU.
    """

    def speed(self, jobs: Jobs, grants: Grants) -> Floats:
        """How fast jobs advance when they are run so, relative to what the trace says of each: 1.0 is
        "as asked"."""
        ...

    def watts(self, jobs: Jobs, grants: Grants) -> Floats:
        """What one GPU of each draws when they are run so; nan: nobody knows."""
        ...

    def observe(self, events: Events, jobs: Jobs, leases: Leases, nodes: Nodes) -> Models:
        """What is believed after these events; *leases* are what jobs held on *nodes* when they happened."""
        ...


Policy = Callable[[Snapshot, Models], Plan]
Placer = Callable[[Plan, Snapshot, Models], Placement]


class Backend(Protocol):
    """What runs leases and keeps the time."""

    @property
    def jobs(self) -> Jobs:
        """Everything submitted so far or to come; only rows that have arrived may be shown."""
        ...

    @property
    def nodes(self) -> Nodes:
        """The machines."""
        ...

    def wait(self, until_s: float, wake: frozenset[int] = EVERY_EVENT) -> tuple[float, Events]:
        """Let time pass until something happens, at most until *until_s*.

        Events whose verb is not in *wake* need not end the waiting; they are told with the next that
        does. Answers the time and what happened, in order; `inf` when nothing will ever happen again.
        """
        ...

    def apply(self, actions: Actions) -> None:
        """Do what was decided."""
        ...

    def idle(self) -> bool:
        """Whether nothing runs and nobody is still to come."""
        ...

    def close(self) -> Events:
        """Stop the clock and give the last readings."""
        ...

    def describe(self) -> dict[str, Any]:
        """What the header of a log says about it."""
        ...

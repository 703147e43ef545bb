"""Operators' rules as values: partitions, QOS, reservations, accounts, topology and priorities.

Names and meanings are those of Slurm (slurm.conf, sacctmgr, scontrol). 0, inf and empty are unset.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, fields, replace
from typing import Any

from wattline.core.quotas import QuotaRule
from wattline.errors import ConfigError


@dataclass(frozen=True)
class UseLimits:
    """Limits of what runs at once: of a user, of an account, and in sum; None: unset."""

    user_jobs: int | None = None
    user_gpus: int | None = None
    account_jobs: int | None = None
    account_gpus: int | None = None
    group_jobs: int | None = None
    group_gpus: int | None = None
    borrow: bool = False  # beyond them a job runs behind all others, on GPUs that are left


@dataclass(frozen=True)
class PartitionRule:
    """A partition: its nodes, its limits for one job, and its place before other partitions."""

    name: str
    nodes: str = "ALL"  # a list of nodes such as n[1-4],m2; kind:a100; ALL
    default: bool = False
    state: str = "UP"
    priority_tier: int = 1  # jobs of a larger tier are looked at first
    priority_job_factor: int = 1
    max_time_s: float = math.inf
    default_time_s: float = math.nan  # of a job without time limit; nan: the largest allowed
    min_gpus: int = 0  # of one job
    max_gpus: int | None = None  # of one job
    min_nodes: int = 0
    max_nodes: int | None = None
    limits: UseLimits = UseLimits()
    qos: str = ""  # the QOS with limits that hold for all jobs of the partition
    allow_accounts: tuple[str, ...] = ()  # empty: all
    deny_accounts: tuple[str, ...] = ()
    allow_qos: tuple[str, ...] = ()
    deny_qos: tuple[str, ...] = ()


@dataclass(frozen=True)
class QosRule:
    """A quality of service: priority, limits, and the QOS that its jobs may preempt."""

    name: str
    priority: int = 0
    max_wall_s: float = math.inf
    min_gpus: int = 0  # of one job
    max_gpus: int | None = None  # of one job
    limits: UseLimits = UseLimits()
    preempts: tuple[str, ...] = ()
    exempt_s: float = 0.0  # a job is not preempted before
    over_partition: bool = False  # its limits go before those of the partition's QOS


@dataclass(frozen=True)
class ReservationRule:
    """Nodes that only some may use for some time; *maintenance*: that are to be empty then.

    *start* is a date as in 2026-11-17T08:00:00, or seconds after the first submission.
    """

    name: str
    start: str
    duration_s: float
    nodes: str = "ALL"
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    maintenance: bool = False
    every_s: float = math.inf  # it repeats after this time


@dataclass(frozen=True)
class RackRule:
    """A rack: its nodes, and the pod that it belongs to."""

    name: str
    nodes: str
    pod: str = ""


@dataclass(frozen=True)
class TopologyRule:
    """Preference for one rack, then one pod, and the slowdown of jobs that spread.

    *within* rack (or pod): a job that fits into an empty one waits for that instead of spreading.
    """

    within: str = ""  # "rack", "pod"; "": it only prefers them
    rack_penalty: float = 1.0  # slowdown of a job in several racks of one pod
    pod_penalty: float = 1.0  # slowdown of a job in several pods

    def __post_init__(self) -> None:
        if self.within not in ("", "rack", "pod"):
            raise ConfigError(f"topology: within is {self.within!r}, expected rack or pod")
        for name in ("rack_penalty", "pod_penalty"):
            if not 1 <= getattr(self, name) < math.inf:
                raise ConfigError(f"topology: {name} is {getattr(self, name)!r}, expected at least 1")


@dataclass(frozen=True)
class PriorityRule:
    """Weights of a job's priority; None: not known, then QOS come first and partitions second.

    *preempt* says which jobs stop running ones: `qos` (of a QOS that names theirs), `partition` (of a larger
    tier) or none.
    """

    weight_qos: float | None = None
    weight_partition: float | None = None
    preempt: str = "qos"

    def __post_init__(self) -> None:
        if self.preempt not in ("", "qos", "partition"):
            raise ConfigError(f"priority: preempt is {self.preempt!r}, expected qos, partition or nothing")


@dataclass(frozen=True)
class FairShareRule:
    """Order of waiting jobs by the fair share of their account and user."""

    half_life_s: float = 604_800.0
    age_s: float = 86_400.0


@dataclass(frozen=True)
class RuleSet:
    """All rules of a simulation, and the fields that were read and have no effect.

    *ignored* counts them: `partition: OverSubscribe` -> 3.
    """

    partitions: tuple[PartitionRule, ...] = ()
    qos: tuple[QosRule, ...] = ()
    reservations: tuple[ReservationRule, ...] = ()
    racks: tuple[RackRule, ...] = ()
    quotas: tuple[QuotaRule, ...] = ()
    topology: TopologyRule | None = None
    priority: PriorityRule | None = None
    fairshare: FairShareRule | None = None
    ignored: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        for name in ("partitions", "qos", "reservations", "racks"):
            twice = [word for word, n in Counter(rule.name for rule in getattr(self, name)).items() if n > 1]
            if twice:
                raise ConfigError(f"rules: {name} has two entries named {twice[0]!r}, expected one")
        known = {qos.name for qos in self.qos}
        for partition in self.partitions:
            if partition.qos and known and partition.qos not in known:
                raise ConfigError(
                    f"partition {partition.name}: its QOS {partition.qos!r} is not among the rules",
                    hint=f"the QOS are {', '.join(sorted(known))}",
                )
        if sum(partition.default for partition in self.partitions) > 1:
            raise ConfigError("rules: two partitions are the default, expected at most one")

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self) if field.name != "ignored")

    def __add__(self, more: RuleSet) -> RuleSet:
        """Return the rules of both; of single rules those of *more* if it has them."""
        joined: dict[str, Any] = {}
        for field in fields(self):
            mine, other = getattr(self, field.name), getattr(more, field.name)
            joined[field.name] = mine + other if isinstance(mine, tuple) else other or mine
        counts: Counter[str] = Counter()
        for name, count in joined["ignored"]:
            counts[name] += count
        return RuleSet(**(joined | {"ignored": tuple(counts.items())}))

    def without(self, part: str) -> RuleSet:
        """Return the rules without one *part*, which is the name of a field."""
        empty: Any = () if isinstance(getattr(self, part), tuple) else None
        return replace(self, **{part: empty})

    @property
    def limits_nodes(self) -> bool:
        """True if the rules say where and when a job may start, so that only their own placer keeps them."""
        return bool(self.partitions or self.qos or self.reservations or self.racks or self.topology)


RULE_LISTS = {"partitions": PartitionRule, "qos": QosRule, "reservations": ReservationRule, "racks": RackRule}
"""Fields of `RuleSet` with several rules, and what each of them is."""

RULE_TABLES = {"topology": TopologyRule, "priority": PriorityRule, "fairshare": FairShareRule}
"""Fields of `RuleSet` with one rule at most, and what it is."""

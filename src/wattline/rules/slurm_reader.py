"""Rules as Slurm prints them: `scontrol show partition`, `reservation`, `config`, `topology`; `sacctmgr -P`.

Outputs may follow each other in one file. Fields that have no effect here are counted in
`RuleSet.ignored`, unless they have a value that means nothing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from wattline.core.quotas import QuotaRule
from wattline.errors import TraceError
from wattline.rules.hostlist import expand_hostlist
from wattline.rules.rule_set import (
    PartitionRule,
    PriorityRule,
    QosRule,
    RackRule,
    ReservationRule,
    RuleSet,
    UseLimits,
)
from wattline.trace.clock_parser import parse_limit

_ENTRIES = {
    "PartitionName": "partition",
    "ReservationName": "reservation",
    "SwitchName": "switch",
}
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][\w/:]*)=(\S*)")
_SETTING = re.compile(r"^(\w+)\s+=\s?(.*)$")
_NOTHING = frozenset(("", "none", "n/a", "(null)", "unlimited", "infinite", "no", "all", "0", "0k"))
_PERIODS = {"HOURLY": 3600.0, "DAILY": 86_400.0, "WEEKLY": 604_800.0}
_MAINTENANCE = frozenset(("MAINT",))
_NO_EFFECT_FLAGS = frozenset(("SPEC_NODES", "ALL_NODES", "IGNORE_JOBS"))  # the list of nodes says it
_SILENT = {  # facts about other fields, or about nodes and the time of the export: no rules
    "partition": {
        *("TotalCPUs", "TotalNodes", "TRES", "SelectTypeParameters", "Hidden", "NodeSets", "AllocNodes"),
        *("MaxCPUsPerNode", "DefMemPerNode", "DefMemPerCPU", "MaxMemPerNode", "MaxMemPerCPU", "JobDefaults"),
        "CpuBind",
    },
    "reservation": {"EndTime", "NodeCnt", "CoreCnt", "TRES", "State", "MaxStartDelay", "Comment"},
    "switch": {"LinkSpeed", "Level", "Switches"},
    "qos": {"Descr", "Description", "ID"},
}
_QOS_LIMITS = {
    "MaxJobsPU": "user_jobs",
    "MaxJobsPerUser": "user_jobs",
    "MaxJobsPA": "account_jobs",
    "MaxJobsPerAccount": "account_jobs",
    "GrpJobs": "group_jobs",
    "MaxTRESPU": "user_gpus",
    "MaxTRESPerUser": "user_gpus",
    "MaxTRESPA": "account_gpus",
    "MaxTRESPerAccount": "account_gpus",
    "GrpTRES": "group_gpus",
}
_CONFIG = {"PriorityWeightQOS", "PriorityWeightPartition", "PriorityType", "PreemptType"}


@dataclass(frozen=True)
class SlurmEntry:
    """One partition, reservation, switch, QOS, association or setting: its fields, and its line."""

    kind: str
    fields: Mapping[str, str]
    line: int


@dataclass
class _Reading:
    """The file that is read, and the fields without effect so far."""

    path: str
    ignored: Counter[str] = field(default_factory=Counter)

    def ignore_rest(self, entry: SlurmEntry, known: set[str]) -> None:
        """Count the fields of *entry* that are neither *known* nor without meaning."""
        silent = _SILENT.get(entry.kind, set())
        for name, value in entry.fields.items():
            if name not in known and name not in silent and value.casefold() not in _NOTHING:
                self.ignored[f"{entry.kind}: {name}"] += 1

    def error(self, entry: SlurmEntry, name: str, expected: str) -> TraceError:
        value = entry.fields[name]
        return TraceError(self.path, entry.line, f"{entry.kind}: {name} is {value!r}, expected {expected}")

    def limit_s(self, entry: SlurmEntry, name: str, missing: float = math.inf) -> float:
        """Return a time limit, which is minutes if it is a bare number."""
        text = entry.fields.get(name, "")
        value = parse_limit(text)
        if value == -1.0:
            raise self.error(entry, name, "a time as in 1-00:00:00, or UNLIMITED")
        if math.isnan(value):
            return missing
        return 60.0 * value if text.strip().isdecimal() else value

    def count(self, entry: SlurmEntry, name: str) -> int | None:
        """Return a whole number; None: unset."""
        text = entry.fields.get(name, "")
        if text.casefold() in ("", "unlimited", "infinite", "none", "n/a", "(null)"):
            return None
        if not text.isdecimal():
            raise self.error(entry, name, "a whole number")
        return int(text)

    def gpus(self, entry: SlurmEntry, name: str) -> int | None:
        """Return the GPUs in a list of TRES; None: unset. All other resources are counted as ignored."""
        gpus = None
        for item in entry.fields.get(name, "").split(","):
            resource, equals, count = item.partition("=")
            if not resource:
                continue
            if resource == "gres/gpu" and equals and count.isdecimal():
                gpus = int(count)
            else:
                self.ignored[f"{entry.kind}: {name} of {resource}"] += 1
        return gpus


def read_slurm_rules(path: str, text: str) -> RuleSet:
    """Return the rules in the output of Slurm's commands; raise `TraceError` with the line of a problem."""
    reading = _Reading(path)
    entries = list(split_entries(text))
    if not entries:
        raise TraceError(
            path,
            None,
            "no rules: the text has no partition, reservation or QOS",
            "make it by scontrol show partition; scontrol show reservation; sacctmgr show qos -P",
        )
    by_kind: dict[str, list[SlurmEntry]] = {}
    for entry in entries:
        by_kind.setdefault(entry.kind, []).append(entry)
    return RuleSet(
        partitions=tuple(_read_partition(reading, entry) for entry in by_kind.get("partition", [])),
        qos=tuple(_read_qos(reading, entry) for entry in by_kind.get("qos", [])),
        reservations=tuple(_read_reservation(reading, entry) for entry in by_kind.get("reservation", [])),
        racks=_read_switches(reading, by_kind.get("switch", [])),
        quotas=_read_associations(reading, by_kind.get("association", [])),
        priority=_read_config(by_kind.get("setting", [])),
        ignored=tuple(reading.ignored.items()),
    )


def split_entries(text: str) -> Iterator[SlurmEntry]:
    """Yield the entries of the output of `scontrol` (key=value, key = value) and `sacctmgr -P` (a|b)."""
    header: list[str] = []
    kind, fields, begin = "", dict[str, str](), 0
    for number, line in enumerate(text.splitlines(), 1):
        pairs = _PAIR.findall(line)
        if "|" in line and not (pairs and pairs[0][0] in _ENTRIES):
            words = line.rstrip().split("|")
            if "Name" in words or {"Account", "User"} <= set(words):
                header = words
            elif header:
                table = "qos" if "Name" in header else "association"
                yield SlurmEntry(table, dict(zip(header, words, strict=False)), number)
            continue
        setting = _SETTING.match(line)
        if setting is not None:
            if setting[1] in _CONFIG:
                yield SlurmEntry("setting", {setting[1]: setting[2].strip()}, number)
            continue
        for name, value in pairs:
            if name in _ENTRIES and (name, value) == pairs[0]:  # a reservation has a PartitionName, too
                if kind:
                    yield SlurmEntry(kind, fields, begin)
                kind, fields, begin = _ENTRIES[name], {"Name": value}, number
            elif kind:
                fields.setdefault(name, value)
    if kind:
        yield SlurmEntry(kind, fields, begin)


def _words(text: str) -> tuple[str, ...]:
    return () if text.casefold() in ("", "(null)", "all", "n/a", "none") else tuple(text.split(","))


def _read_partition(reading: _Reading, entry: SlurmEntry) -> PartitionRule:
    get = entry.fields.get
    known = {
        *("Name", "Nodes", "Default", "State", "PriorityTier", "PriorityJobFactor", "MaxTime", "QoS"),
        *("DefaultTime", "MinNodes", "MaxNodes", "AllowAccounts", "DenyAccounts", "AllowQos", "DenyQos"),
    }
    reading.ignore_rest(entry, known)
    return PartitionRule(
        name=entry.fields["Name"],
        nodes="" if get("Nodes", "") in ("(null)", "") else get("Nodes", ""),
        default=get("Default", "NO").upper() == "YES",
        state=get("State", "UP"),
        priority_tier=_or(reading.count(entry, "PriorityTier"), 1),
        priority_job_factor=_or(reading.count(entry, "PriorityJobFactor"), 1),
        max_time_s=reading.limit_s(entry, "MaxTime"),
        default_time_s=reading.limit_s(entry, "DefaultTime", math.nan),
        min_nodes=_or(reading.count(entry, "MinNodes"), 0),
        max_nodes=reading.count(entry, "MaxNodes"),
        qos=next(iter(_words(get("QoS", ""))), ""),
        allow_accounts=_words(get("AllowAccounts", "")),
        deny_accounts=_words(get("DenyAccounts", "")),
        allow_qos=_words(get("AllowQos", "")),
        deny_qos=_words(get("DenyQos", "")),
    )


def _or(value: int | None, unset: int) -> int:
    return unset if value is None else value


def _read_qos(reading: _Reading, entry: SlurmEntry) -> QosRule:
    limits: dict[str, int | None] = {}
    for name, target in _QOS_LIMITS.items():
        if name in entry.fields:
            read = reading.gpus if "TRES" in name else reading.count
            limits[target] = read(entry, name)
    flags = _words(entry.fields.get("Flags", ""))
    for flag in flags:
        if flag != "OverPartQOS":
            reading.ignored[f"qos: Flags of {flag}"] += 1
    known = {"Name", "Priority", "MaxWall", "MaxTRES", "MinTRES", "Preempt", "PreemptExemptTime", "Flags"}
    silent = {
        name
        for name, plain in (
            ("UsageFactor", "1.000000"),
            ("PreemptMode", "cluster"),
            ("GraceTime", "00:00:00"),
        )
        if entry.fields.get(name, plain) == plain
    }
    reading.ignore_rest(entry, known | silent | set(_QOS_LIMITS))
    return QosRule(
        name=entry.fields["Name"],
        priority=_or(reading.count(entry, "Priority"), 0),
        max_wall_s=reading.limit_s(entry, "MaxWall"),
        min_gpus=_or(reading.gpus(entry, "MinTRES"), 0),
        max_gpus=reading.gpus(entry, "MaxTRES"),
        limits=UseLimits(**limits),  # type: ignore[arg-type]
        preempts=_words(entry.fields.get("Preempt", "")),
        exempt_s=reading.limit_s(entry, "PreemptExemptTime", 0.0),
        over_partition="OverPartQOS" in flags,
    )


def _read_reservation(reading: _Reading, entry: SlurmEntry) -> ReservationRule:
    known = {"Name", "StartTime", "Duration", "Nodes", "Users", "Accounts", "Flags"}
    reading.ignore_rest(entry, known)
    flags = _words(entry.fields.get("Flags", ""))
    for flag in flags:
        if flag not in (*_MAINTENANCE, *_PERIODS, *_NO_EFFECT_FLAGS):
            reading.ignored[f"reservation: Flags of {flag}"] += 1
    for name in ("StartTime", "Duration"):
        if name not in entry.fields:
            raise TraceError(reading.path, entry.line, f"reservation {entry.fields['Name']}: no {name}")
    return ReservationRule(
        name=entry.fields["Name"],
        start=entry.fields["StartTime"],
        duration_s=reading.limit_s(entry, "Duration"),
        nodes=entry.fields.get("Nodes", ""),
        users=_words(entry.fields.get("Users", "")),
        accounts=_words(entry.fields.get("Accounts", "")),
        maintenance=bool(_MAINTENANCE & set(flags)),
        every_s=next((_PERIODS[flag] for flag in flags if flag in _PERIODS), math.inf),
    )


def _read_switches(reading: _Reading, entries: list[SlurmEntry]) -> tuple[RackRule, ...]:
    """Return switches of level 0 as racks, in the pod of the switch of level 1 above them."""
    for entry in entries:
        reading.ignore_rest(entry, {"Name", "Nodes"})
        if int(entry.fields.get("Level") or 0) > 1:
            reading.ignored["switch: Level above 1"] += 1
    above: dict[str, str] = {}
    for entry in entries:
        if entry.fields.get("Level") == "1":
            names = expand_hostlist(entry.fields.get("Switches", ""))
            above.update(dict.fromkeys(names, entry.fields["Name"]))
    racks = [entry for entry in entries if entry.fields.get("Level", "0") == "0"]
    return tuple(
        RackRule(entry.fields["Name"], entry.fields.get("Nodes", ""), above.get(entry.fields["Name"], ""))
        for entry in racks
    )


def _read_associations(reading: _Reading, entries: list[SlurmEntry]) -> tuple[QuotaRule, ...]:
    """Return GrpTRES of GPUs and Share of accounts, and of users in their account, as quotas."""
    rules: dict[tuple[str, str], QuotaRule] = {}
    for entry in entries:
        reading.ignore_rest(entry, {"Cluster", "Account", "User", "Share", "GrpTRES", "Par Name", "QOS"})
        user, account = entry.fields.get("User", ""), entry.fields.get("Account", "")
        owner = ("user", user) if user else ("team", account)
        gpus, share = reading.gpus(entry, "GrpTRES"), entry.fields.get("Share", "")
        if share == "parent" or not owner[1] or (gpus is None and share in ("", "1")):
            continue
        weight = float(share) if share.isdecimal() and int(share) > 0 else None
        if owner in rules:
            reading.ignored["association: further accounts of a user"] += 1
        else:
            rules[owner] = QuotaRule(*owner, gpus=gpus, share=weight)
    return tuple(rules.values())


def _read_config(entries: list[SlurmEntry]) -> PriorityRule | None:
    settings = {name: value for entry in entries for name, value in entry.fields.items()}
    if not settings:
        return None
    basic = settings.get("PriorityType", "") == "priority/basic"
    weights = [
        0.0 if basic else float(text) if (text := settings.get(name, "")).isdecimal() else None
        for name in ("PriorityWeightQOS", "PriorityWeightPartition")
    ]
    preempt = {"preempt/qos": "qos", "preempt/partition_prio": "partition", "preempt/none": ""}
    mode = preempt.get(settings.get("PreemptType", "preempt/qos"), "")
    return PriorityRule(weights[0], weights[1], mode)

"""Sentences about rules: what was read, what has no effect, and what each part means."""

from __future__ import annotations

import math
from typing import NamedTuple

from wattline.rules.rule_set import RuleSet
from wattline.units import format_seconds, pluralize

_NOUNS = {
    "partitions": "partition",
    "qos": "QOS",
    "reservations": "reservation",
    "racks": "rack",
    "quotas": "quota",
}


class RulePart(NamedTuple):
    """A part of the rules that can be left out: its name, its value in short, and what it means."""

    name: str
    value: str
    says: str


def describe_rules(rules: RuleSet) -> list[str]:
    """Return what was read, and the fields that have no effect."""
    read = [
        f"{count} {noun}{'' if count == 1 or noun == 'QOS' else 's'}"
        for name, noun in _NOUNS.items()
        if (count := len(getattr(rules, name)))
    ]
    read += [name for name in ("topology", "priority", "fairshare") if getattr(rules, name) is not None]
    lines = [f"rules: {', '.join(read)}"] if read else []
    if rules.ignored:
        fields = ", ".join(f"{name} ({count})" for name, count in rules.ignored)
        lines.append(f"fields of the rules without effect here: {fields}")
    return lines


def list_parts(rules: RuleSet, dependent_jobs: int, counted_jobs: int = 0) -> list[RulePart]:
    """Return the parts of *rules* in force, for the list of assumptions.

    *counted_jobs* keep to the number of nodes that they were recorded on.
    """
    parts = []
    if rules.partitions:
        names = ", ".join(p.name for p in rules.partitions)
        parts.append(
            RulePart("partitions", str(len(rules.partitions)), f"jobs keep to their partition: {names}")
        )
    if rules.qos:
        says = f"jobs keep to the limits of their QOS: {', '.join(q.name for q in rules.qos)}"
        if (rules.priority is None or rules.priority.weight_qos is None) and _ranks_differ(rules):
            says += "; with weights unknown, the larger priority goes first"
        parts.append(RulePart("qos", str(len(rules.qos)), says))
    if rules.reservations:
        kept = sum(rule.maintenance for rule in rules.reservations)
        says = f"nodes are reserved {pluralize(len(rules.reservations), 'time')}, {kept} for maintenance"
        if any(math.isfinite(rule.every_s) for rule in rules.reservations):
            says += ", some of them again and again"
        parts.append(RulePart("reservations", str(len(rules.reservations)), says))
    if rules.topology is not None:
        topology = rules.topology
        says = (
            f"a job in several racks runs {topology.rack_penalty:g} times slower, in several pods"
            f" {topology.pod_penalty:g} times"
        )
        parts.append(RulePart("topology", f"{topology.rack_penalty:g}/{topology.pod_penalty:g}", says))
    if rules.fairshare is not None:
        says = f"GPU time counts half after {format_seconds(rules.fairshare.half_life_s)} for fair share"
        parts.append(RulePart("fairshare", f"{rules.fairshare.half_life_s:g}s", says))
    if rules.quotas:
        says = "accounts and users keep to their quotas and shares"
        parts.append(RulePart("quotas", str(len(rules.quotas)), says))
    if dependent_jobs:
        says = f"{pluralize(dependent_jobs, 'job')} wait for others; how those ended is as recorded"
        parts.append(RulePart("dependencies", "recorded", says))
    if counted_jobs:
        says = (
            f"{pluralize(counted_jobs, 'job')} hold at most as many nodes as recorded, or the fewest that"
            " have their GPUs"
        )
        parts.append(RulePart("nodes", "recorded", says))
    return parts


def _ranks_differ(rules: RuleSet) -> bool:
    return len({qos.priority for qos in rules.qos}) > 1

"""Rules in the header of a run log, so that a replay can keep them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.quotas import QuotaRule
from wattline.core.table import Labels
from wattline.rules.binding import BoundRules, bind_rules
from wattline.rules.rule_set import RULE_LISTS, RULE_TABLES, RuleSet, UseLimits
from wattline.trace.reader import Trace
from wattline.trace.recorded import RecordedSchedule

_WORDS = ("partition", "qos", "name", "array", "nodes", "dependency", "reservation")


def encode_rules(bound: BoundRules, trace: Trace) -> dict[str, Any]:
    """Return the rules and the recorded columns that they read as JSON data; `read_logged_rules` reads it."""
    rules, recorded = bound.rules, trace.recorded
    data: dict[str, Any] = {name: [_encode(rule) for rule in getattr(rules, name)] for name in RULE_LISTS}
    data |= {name: _encode(getattr(rules, name)) for name in RULE_TABLES if getattr(rules, name) is not None}
    data["quotas"] = [rule.as_dict() for rule in rules.quotas]
    data = {name: value for name, value in data.items() if value != []}
    columns: dict[str, Any] = {}
    if recorded is not None:
        columns = {name: _encode_words(getattr(recorded, name)) for name in _WORDS}
        columns["time_limit_s"] = [_encode_number(value) for value in recorded.time_limit_s.tolist()]
    return {
        "set": data,
        "ignored": dict(rules.ignored),
        "notes": list(bound.notes),
        "origin_s": trace.origin_s,
        "dependencies": bound.dependencies is not None,
        "keep_nodes": bound.node_limits is not None,
        "drains": [] if bound.drains is None else bound.drains.as_list(),
        "recorded": {name: column for name, column in columns.items() if column is not None},
    }


def read_logged_rules(header: Mapping[str, Any], jobs: Jobs, nodes: Nodes) -> BoundRules | None:
    """Return the rules of the log with this *header*; None: it had none."""
    logged = header.get("rules")
    if logged is None:
        return None
    data = logged["set"]
    parts: dict[str, Any] = {
        name: tuple(_decode(rule, entry) for entry in data.get(name, [])) for name, rule in RULE_LISTS.items()
    }
    parts |= {name: _decode(rule, data[name]) for name, rule in RULE_TABLES.items() if name in data}
    parts["quotas"] = tuple(QuotaRule.from_dict(entry) for entry in data.get("quotas", []))
    columns: dict[str, Any] = {
        name: Labels(np.array(column["codes"], dtype=np.int64), tuple(column["names"]))
        for name, column in logged["recorded"].items()
        if name in _WORDS
    }
    if "time_limit_s" in logged["recorded"]:
        limits = [float(value) for value in logged["recorded"]["time_limit_s"]]
        columns["time_limit_s"] = np.array(limits)
    recorded = RecordedSchedule.of(len(jobs), columns)
    parts_off = () if logged["dependencies"] else ("dependencies",)
    drains = [(int(node), float(from_s), float(to_s)) for node, from_s, to_s in logged["drains"]]
    keep_nodes = bool(logged.get("keep_nodes"))
    origin_s = logged["origin_s"]
    return bind_rules(RuleSet(**parts), jobs, recorded, nodes, origin_s, parts_off, drains, keep_nodes)


def _encode(rule: Any) -> dict[str, Any]:
    values = {field.name: getattr(rule, field.name) for field in fields(rule)}
    return {
        name: _encode(value) if is_dataclass(value) else _encode_number(value)
        for name, value in values.items()
    }


def _encode_number(value: Any) -> Any:
    """Return a value as JSON has it: words for inf and nan, lists for tuples."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _encode_words(labels: Labels) -> dict[str, Any] | None:
    if not any(labels.names):
        return None
    return {"names": list(labels.names), "codes": labels.codes.tolist()}


def _decode(rule: type, entry: Mapping[str, Any]) -> Any:
    values = dict(entry)
    for field in fields(rule):
        value = values.get(field.name)
        if field.name == "limits":
            values["limits"] = UseLimits(**values["limits"])
        elif str(field.type).startswith("tuple"):
            values[field.name] = tuple(values[field.name])
        elif str(field.type).startswith("float") and isinstance(value, str):
            values[field.name] = float(value)
    return rule(**values)

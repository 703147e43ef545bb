"""Audit log: changes that operators made, read from the events of the store.

Events of these kinds carry the name of the caller's token (`by`) and the old value (`before`). Retention
keeps them for longer than other events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from wattline.service.storage.events import NewEvent, StoredEvent
from wattline.service.storage.store import Store

_HIDDEN_SETTINGS = ("budgets_s",)


def read_audit(
    store: Store, *, since_s: float = 0.0, by: str = "", after: int = 0, limit: int = 1000
) -> list[dict[str, Any]]:
    """Return changes by operators, oldest first: after a time, by one token, with a larger *seq*."""
    operators = store.operator_names()
    found: list[dict[str, Any]] = []
    while len(found) < limit:
        events = store.audit_events(after, since_s, 1000)
        for event in events:
            records = _build_records(event, operators)
            found.extend(record for record in records if not by or record["by"] == by)
        if len(events) < 1000:
            break
        after = events[-1].seq
    return found[:limit]


def build_policy_change(store: Store, policy: str, at_s: float) -> list[NewEvent]:
    """Return the event of a service that is started with another `--policy` than before, or none."""
    before = store.setting("policy")
    if before == policy:
        return []
    change = {"name": "policy", "value": policy, "before": before, "by": "wattline serve"}
    return [NewEvent(at_s, "setting", None, change)]


def _build_records(event: StoredEvent, operators: frozenset[str]) -> Iterator[dict[str, Any]]:
    data = dict(event.data)
    name = str(data.get("by", ""))
    common = {"seq": event.seq, "at_s": event.at_s, "by": name}
    if event.kind in ("cancel", "hold", "priority"):
        if name in operators:
            yield {**common, **_describe_job_change(event)}
    elif event.kind == "token":
        verb = next((verb for verb in ("created", "revoked", "rotated") if verb in data), "changed")
        details = {key: data[key] for key in ("role", "user", "grace_s") if data.get(key)}
        yield {**common, "action": f"token {verb}", "subject": str(data.get(verb)), "after": details or None}
    elif event.kind == "setting" and data["name"] == "quotas":
        before, after = ({_owner(rule): rule for rule in data.get(key, [])} for key in ("before", "value"))
        for owner in sorted({*before, *after}):
            if before.get(owner) != after.get(owner):
                change = {"before": before.get(owner), "after": after.get(owner)}
                yield {**common, "action": "quota", "subject": owner, **change}
    elif event.kind == "setting" and data["name"] not in _HIDDEN_SETTINGS:
        if data.get("before") == data["value"]:
            return
        change = {"before": data.get("before"), "after": data["value"]}
        yield {**common, "action": "setting", "subject": data["name"], **change}
    elif event.kind == "prune":
        details = {key: value for key, value in data.items() if key != "by"}
        yield {**common, "action": "prune", "subject": "jobs", "after": json.loads(json.dumps(details))}


def _describe_job_change(event: StoredEvent) -> dict[str, Any]:
    data = event.data
    change: dict[str, Any] = {"action": event.kind, "subject": f"job {event.job}", "owner": data.get("owner")}
    if event.kind == "priority":
        return {**change, "before": data.get("before"), "after": data["priority"]}
    if event.kind == "hold":
        return {**change, "action": "hold" if data["held"] else "release"}
    return {**change, "before": data.get("before"), "after": "CANCELLED"}


def _owner(rule: dict[str, Any]) -> str:
    return f"team {rule['team']}" if "team" in rule else f"user {rule['user']}"

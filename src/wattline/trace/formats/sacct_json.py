"""Jobs of `sacct --json` as the columns of its text: an object with a list of jobs.

Numbers are plain (Slurm 22.05), or objects with set, infinite and number (since 23.02).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from wattline.errors import TraceError
from wattline.trace.field_parser import Chunk
from wattline.trace.file_source import ArchiveMember
from wattline.trace.format import Head


def is_sacct_json(head: Head) -> bool:
    """Return whether a text begins like the output of `sacct --json`."""
    text = head.text.lstrip()
    return text.startswith("{") and '"jobs"' in text and ('"meta"' in text or '"association"' in text)


def read_json(member: ArchiveMember) -> Iterator[Chunk]:
    """Yield the jobs in one chunk; lines are unknown."""
    try:
        jobs = json.loads(member.data.decode("utf-8-sig"))["jobs"]
    except (ValueError, RecursionError, TypeError, KeyError) as problem:
        raise TraceError(member.label, None, f"not the output of sacct --json ({problem})") from None
    if not isinstance(jobs, list):
        raise TraceError(member.label, None, "not the output of sacct --json (jobs is no list)")
    rows, problems = [], {}
    for number, job in enumerate(jobs):
        try:
            rows.append(_read_job(job))
        except (TypeError, KeyError, AttributeError) as problem:
            problems[number] = f"job {number + 1} of the list cannot be read ({problem!r})"
            rows.append(dict.fromkeys(_COLUMNS, ""))
    if rows:
        texts = {name: tuple(row[name] for row in rows) for name in _COLUMNS}
        yield Chunk(member.label, 0, np.zeros(len(rows), dtype=np.int64), dict(texts), problems)


_COLUMNS = (
    *("JobID", "JobIDRaw", "User", "Account", "Partition", "QOS", "State", "Submit", "Start", "End"),
    *("ElapsedRaw", "TimelimitRaw", "NNodes", "NodeList", "ReqTRES", "AllocTRES", "Restarts"),
    *("JobName", "WorkDir", "SubmitLine", "Reservation"),
)


def _read_job(job: Mapping[str, Any]) -> dict[str, str]:
    time, state, tres = job["time"], job["state"]["current"], job["tres"]
    return {
        "JobID": _name_job(job),
        "JobIDRaw": str(job["job_id"]),
        "User": job.get("user") or job.get("association", {}).get("user") or "",
        "Account": job.get("account") or "",
        "Partition": job.get("partition") or "",
        "QOS": job.get("qos") or "",
        "State": state if isinstance(state, str) else str(state[0]),
        "Submit": _number(time["submission"]),
        "Start": _number(time.get("start"), zero="Unknown") or "Unknown",
        "End": _number(time.get("end"), zero="Unknown") or "Unknown",
        "ElapsedRaw": _number(time.get("elapsed")),
        "TimelimitRaw": _number(time.get("limit")),
        "NNodes": _number(job.get("allocation_nodes")),
        "NodeList": job.get("nodes") or "",
        "ReqTRES": _list_tres(tres.get("requested")),
        "AllocTRES": _list_tres(tres.get("allocated")),
        "Restarts": _number(job.get("restart_cnt")),
        "JobName": job.get("name") or "",
        "WorkDir": job.get("working_directory") or "",
        "SubmitLine": job.get("submit_line") or "",
        "Reservation": _name_reservation(job.get("reservation")),
    }


def _name_reservation(value: Any) -> str:
    return str(value.get("name") or "") if isinstance(value, Mapping) else ""


def _name_job(job: Mapping[str, Any]) -> str:
    """Return the id as sacct writes it: 12_3 in an array, 12+0 in a heterogeneous job."""
    array, het = job.get("array") or {}, job.get("het") or {}
    task, offset = _number(array.get("task_id")), _number(het.get("job_offset"))
    if array.get("job_id") and task:
        return f"{array['job_id']}_{task}"
    return f"{het['job_id']}+{offset}" if het.get("job_id") and offset else str(job["job_id"])


def _number(value: Any, zero: str = "0") -> str:
    """Return a number as a word; empty: it is not set."""
    if isinstance(value, Mapping):
        if value.get("infinite"):
            return "UNLIMITED"
        value = value.get("number") if value.get("set", True) else None
    return "" if value is None else str(value) if value else zero


def _list_tres(items: Any) -> str:
    """Return `cpu=8,gres/gpu:a100=2`."""
    pairs = (
        (f"{item['type']}/{item['name']}" if item.get("name") else item["type"], item.get("count"))
        for item in items or ()
    )
    return ",".join(f"{name}={count}" for name, count in pairs if count is not None)

"""Every GPU now: its jobs, its power and its cap, as of the last power sample."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wattline.service.controller import Controller
from wattline.service.storage.projection import JobRow

_LATEST_EVENTS = 5000  # among which changes since the last sample are looked for


@dataclass(frozen=True)
class GpuNow:
    """One GPU; *power_w* and *cap_w* None: they could not be read."""

    node: str
    gpu: int
    kind: str
    jobs: tuple[str, ...]
    power_w: float | None
    cap_w: float | None
    origin: str  # of the cap: "policy", "job file", "session", or "default": no job has changed it


def read_gpus(controller: Controller) -> tuple[list[GpuNow], float | None]:
    """Return all GPUs, and the time of their power sample; None: there was none yet.

    On this machine the jobs are those that run now. On other nodes they are those of the sample.
    """
    store, nodes = controller.store, controller.view().nodes
    kinds = {str(nodes.name[at]): nodes.kind.word(at) for at in range(len(nodes))}
    found = store.read_rows(
        "SELECT at_s, node, gpu, power_w, cap_w, jobs FROM power_sample"
        " WHERE at_s = (SELECT max(at_s) FROM power_sample) ORDER BY node, gpu"
    )
    running = {row.id: row for row in store.jobs(states=("RUNNING",))}
    holders: dict[int, list[str]] = {}
    for row in running.values():
        for gpu in row.allocation.get("gpus", ()):
            holders.setdefault(gpu, []).append(row.id)
    at_s = float(found[0][0]) if found else None
    changed = _list_changed_since(controller, running.values(), at_s)
    sampled = {(node, gpu): (power_w, cap_w, jobs) for _, node, gpu, power_w, cap_w, jobs in found}
    if len(nodes) == 1:
        name = str(nodes.name[0])
        for gpu in range(int(nodes.gpus[0])):
            sampled.setdefault((name, gpu), (None, None, ""))
    gpus = []
    for (node, gpu), (power_w, cap_w, text) in sorted(sampled.items()):
        if len(nodes) == 1:
            jobs = tuple(holders.get(gpu, ()))
        else:
            jobs = tuple(job for job in text.split(",") if job)
        first = running.get(jobs[0]) if jobs else None
        if first is None:
            origin = "default"
        else:
            allocated, requested = first.allocation.get("cap_w"), first.submission["spec"].get("power_w")
            if first.id in changed:  # the sample is older than its cap
                cap_w = allocated or cap_w
            origin = _name_origin(cap_w, allocated, requested)
        gpus.append(GpuNow(node, gpu, kinds.get(node, ""), jobs, power_w, cap_w, origin))
    return gpus, at_s


def _list_changed_since(controller: Controller, running: Iterable[JobRow], at_s: float | None) -> set[str]:
    """Return the running jobs that were started, or got another cap, after the time of a sample."""
    if at_s is None:
        return set()
    found = controller.store.read_rows(
        "SELECT DISTINCT job FROM event WHERE kind = 'retuned' AND at_s > ?"
        " AND seq > (SELECT coalesce(max(seq), 0) FROM event) - ?",
        (at_s, _LATEST_EVENTS),
    )
    started = {row.id for row in running if row.start_s is not None and row.start_s > at_s}
    return started | {job for (job,) in found}


def _name_origin(cap_w: float | None, allocated_w: float | None, requested_w: float | None) -> str:
    if cap_w is None or not allocated_w:
        return "default"
    if abs(cap_w - allocated_w) > 0.5:
        return "session"
    return "job file" if requested_w and requested_w == allocated_w else "policy"

"""Every GPU now: its jobs, its power and its cap, as of the last power sample."""

from __future__ import annotations

from dataclasses import dataclass

from wattline.service.controller import Controller


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
            origin = _name_origin(cap_w, allocated, requested)
        gpus.append(GpuNow(node, gpu, kinds.get(node, ""), jobs, power_w, cap_w, origin))
    return gpus, float(found[0][0]) if found else None


def _name_origin(cap_w: float | None, allocated_w: float | None, requested_w: float | None) -> str:
    if cap_w is None or not allocated_w:
        return "default"
    if abs(cap_w - allocated_w) > 0.5:
        return "session"
    return "job file" if requested_w and requested_w == allocated_w else "policy"

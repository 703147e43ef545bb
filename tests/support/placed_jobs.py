"""States with jobs on given nodes."""

from __future__ import annotations

import numpy as np

from wattline.core.events import ARRIVED, RAN, Event, build_events
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.plan import Placement
from wattline.core.snapshot import Snapshot
from wattline.loop.reconcile import reconcile
from wattline.loop.state import Decision, advance, build_empty_decision, build_empty_state

GpusByNode = dict[int, int]


def build_snapshot(cluster: Nodes, running: list[GpusByNode], waiting: list[int]) -> Snapshot:
    """Return a snapshot of running and waiting jobs, in this order of submission."""
    gpus = [sum(place.values()) for place in running] + waiting
    jobs = Jobs.of(submit_s=np.zeros(len(gpus)), gpus=gpus, duration_s=np.full(len(gpus), 1000.0))
    accepts = cluster.accepted_kinds(jobs.gpu_kind)
    state = build_empty_state(jobs, cluster)
    arrivals = build_events(*(Event(ARRIVED, job, 0.0) for job in range(len(gpus))))
    state = advance(state, build_empty_decision(state), 0.0, arrivals, jobs, accepts)
    held = [(job, node, count) for job, place in enumerate(running) for node, count in place.items()]
    job, node, count = zip(*held, strict=True) if held else ((), (), ())
    leases = Leases.of(job, job, node, count)
    reason = (np.arange(len(gpus)) >= len(running)).astype(np.int64)
    decision = Decision(Placement(leases, reason, len(waiting)), reconcile(state.leases, leases))
    ran = build_events(*(Event(RAN, job, 0.0, 0.0, 1.0) for job in range(len(running))))
    return advance(state, decision, 1.0, ran, jobs, accepts)


def gpus_by_job(leases: Leases) -> dict[int, GpusByNode]:
    """Return the GPUs by node of each job."""
    held: dict[int, GpusByNode] = {}
    for job, node, gpus in zip(leases.job.tolist(), leases.node.tolist(), leases.gpus.tolist(), strict=True):
        held.setdefault(job, {})[node] = gpus
    return held

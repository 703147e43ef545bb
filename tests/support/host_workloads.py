"""Synthetic workloads with known host demand, and random clusters with jobs of them."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
from hypothesis import strategies as st

from support.simulations import NO_OVERHEADS
from wattline import policy as p
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import join_nodes, nodes
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models, Placer, Policy
from wattline.core.snapshot import Snapshot
from wattline.loop.check import check_placement
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.models.demand import DemandModel
from wattline.models.power.throttle import Throttle
from wattline.models.speed import Speed
from wattline.models.workload import Workload
from wattline.models.workload_models import WorkloadModels


def build_workload(name: str, **demand: float) -> Workload:
    """Return a workload of one sample per second on a GPU with unlimited host resources."""
    return Workload(
        model=name,
        gpu="v100",
        speed=Speed(sample_s=1.0),
        throttle=Throttle("v100", np.ones(1), np.full(1, np.nan)),
        demand=DemandModel(**demand),
        usual_batch=1.0,
        measured=MappingProxyType({"cpus": (1.0, 64.0), "mem_gib": (1.0, 500.0)}),
    )


MODELS = WorkloadModels(
    (
        build_workload("image", core_s=12.0),  # needs twelve cores per GPU
        build_workload("speech", core_s=4.0, storage_s=8.0, dataset_gib=200.0, read_mib_s=60.0),
        build_workload("text"),  # needs nothing of the host
    )
)
"""On a node of 8 GPUs, 24 cores and 500 GiB, the first two are slower with their share than with more."""

NODE = nodes("v100", gpus=4, cpus=12, mem_gib=250)
NAMES = ("image", "speech", "text", "unknown")


@st.composite
def model_sets(draw: st.DrawFn) -> WorkloadModels:
    """Generate three workloads with random demand."""
    part = st.floats(0, 20).map(lambda value: round(value, 2))
    return WorkloadModels(
        tuple(
            build_workload(
                name,
                fixed_s=draw(part) / 20,
                core_s=draw(part),
                storage_s=draw(part),
                dataset_gib=1 + 20 * draw(part),
                read_mib_s=draw(st.sampled_from((0.0, 60.0))),
            )
            for name in NAMES[:3]
        )
    )


def build_jobs(*names: str, gpus: list[int] | None = None, duration_s: float = 100.0) -> Jobs:
    """Return one job for each model name, all submitted at time 0."""
    count = len(names)
    return Jobs.of(
        submit_s=np.zeros(count),
        gpus=[1] * count if gpus is None else gpus,
        duration_s=np.full(count, duration_s),
        model=names,
    )


def simulate(
    jobs: Jobs,
    place: Placer,
    cluster: Nodes = NODE,
    policy: Policy = p.fifo,
    beliefs: WorkloadModels = MODELS,
    overheads: Overheads = NO_OVERHEADS,
) -> Log:
    return run(Sim(jobs, cluster, truth=beliefs, overheads=overheads), policy, beliefs, place=place)


class CheckedPlacer:
    """Placer that checks every result: no job is slower than with its proportional share."""

    def __init__(self, place: Placer) -> None:
        self.place = place

    def __call__(self, plan: Plan, snapshot: Snapshot, beliefs: Models) -> Placement:
        placement = self.place(plan, snapshot, beliefs)
        check_placement(placement, snapshot)
        leases, cluster = placement.leases, snapshot.nodes
        mine = leases.job == leases.group
        job, first = np.unique(leases.job[mine], return_index=True)
        gpus = np.bincount(np.searchsorted(job, leases.job[mine]), leases.gpus[mine]).astype(np.int64)
        on = np.bincount(np.searchsorted(job, leases.job[mine])).astype(np.int64)
        node = leases.node[mine][first]
        host = leases.host[:, mine][:, first]
        share = cluster.host_share[:, node]
        speeds = [
            beliefs.speed(snapshot.jobs, Grants.of(job, gpus, on, host=resources, kind=cluster.kind[node]))
            for resources in (np.where(host > 0, host, share), share)
        ]
        assert (speeds[0] >= speeds[1] * (1 - 1e-6)).all(), "a job is slower than with its proportional share"
        return placement


@st.composite
def clusters_with_jobs(draw: st.DrawFn) -> tuple[Nodes, Jobs]:
    """Generate a small cluster and up to 20 jobs that fit on it."""
    cluster = join_nodes(
        *(
            nodes(
                "v100",
                count=draw(st.integers(1, 3)),
                gpus=draw(st.sampled_from((1, 2, 4, 8))),
                cpus=draw(st.integers(8, 64)),
                mem_gib=draw(st.integers(32, 600)),
                storage_mib_s=draw(st.sampled_from((0.0, 0.0, 200.0))),
            )
            for _ in range(draw(st.integers(1, 2)))
        )
    )
    count = draw(st.integers(1, 20))

    def column(values: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(values, min_size=count, max_size=count))

    max_gpus = int(cluster.gpus.sum())
    jobs = Jobs.of(
        submit_s=column(st.integers(0, 300).map(float)),
        gpus=[min(max_gpus, int(g)) for g in column(st.sampled_from((1.0, 1.0, 1.0, 2.0, 3.0, 4.0, 9.0)))],
        duration_s=column(st.integers(1, 500).map(float)),
        model=draw(st.lists(st.sampled_from(NAMES), min_size=count, max_size=count)),
    )
    return cluster, jobs

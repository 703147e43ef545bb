"""Models with a power law of speed, for cases that can be solved by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes
from wattline.core.actions import ACTION_GPUS, ACTION_JOB, ACTION_VERB, START
from wattline.core.events import ARRIVED, Event, Events, build_events
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.plan import Plan
from wattline.core.protocols import Policy
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats
from wattline.loop.reconcile import reconcile
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.loop.state import Decision, advance, build_empty_decision, build_empty_state
from wattline.models.trace_model import batch_efficiency
from wattline.placement.pack import Pack

MAX_W = 300.0  # of a V100


@dataclass(frozen=True)
class PowerLawModels:
    """Speed by the name of the model: "0.5" runs at gpus^0.5, "1" scales perfectly.

    Under a cap the speed is (cap / 300 W)^*cap_exponent* and the draw is the cap, otherwise 300 W.
    """

    cap_exponent: float = 0.5

    def speed(self, jobs: Jobs, grants: Grants) -> Floats:
        """See `wattline.core.protocols.Models`."""
        power = np.array([float(name) for name in jobs.model.names])[jobs.model.codes[grants.job]]
        requested = np.maximum(jobs.batch[grants.job], 1)
        batch = np.where(grants.batch > 0, grants.batch, requested)
        share = np.where(grants.cap_w > 0, grants.cap_w / MAX_W, 1.0) ** self.cap_exponent
        batch_factor = batch / requested * batch_efficiency(jobs.noise[grants.job], requested, batch)
        return np.asarray((grants.gpus / jobs.gpus[grants.job]) ** power * share * batch_factor)

    def watts(self, jobs: Jobs, grants: Grants) -> Floats:
        """See `wattline.core.protocols.Models`."""
        return np.where(grants.cap_w > 0, grants.cap_w, MAX_W).astype(np.float64)

    def observe(self, events: Events, jobs: Jobs, leases: Leases, nodes: Nodes) -> PowerLawModels:
        """Return the same models: they do not learn."""
        return self


def build_power_law_jobs(model: Sequence[str], duration_s: Sequence[float], **more: object) -> Jobs:
    """Return jobs with names a, b, …; default: one GPU each, submitted at time 0."""
    count = len(model)
    columns = {"submit_s": [0.0] * count, "gpus": [1] * count, "id": list("abcdefgh"[:count]), **more}
    return Jobs.of(model=model, duration_s=duration_s, **columns)  # type: ignore[arg-type]


def snapshot_of_waiting(jobs: Jobs, cluster: Nodes, now_s: float | None = None) -> Snapshot:
    """Return the state in which all of *jobs* wait."""
    state = build_empty_state(jobs, cluster)
    now_s = float(jobs.submit_s.max()) if now_s is None else now_s
    events = build_events(*(Event(ARRIVED, job, float(at_s)) for job, at_s in enumerate(jobs.submit_s)))
    return advance(
        state, build_empty_decision(state), now_s, events, jobs, cluster.accepted_kinds(jobs.gpu_kind)
    )


def snapshot_after(snapshot: Snapshot, plan: Plan, seconds: float) -> Snapshot:
    """Return the state after *plan* has run for *seconds* without events."""
    placement = Pack()(plan, snapshot, PowerLawModels())
    decision = Decision(placement, reconcile(snapshot.leases, placement.leases))
    accepts = snapshot.nodes.accepted_kinds(snapshot.jobs.gpu_kind)
    return advance(snapshot, decision, snapshot.now_s + seconds, build_events(), snapshot.jobs, accepts)


def first_gpus_by_job(policy: Policy, jobs: Jobs, gpus: int) -> dict[str, int]:
    """Return the GPUs of each job after the first decision on an empty cluster of one-GPU nodes."""
    state = snapshot_of_waiting(jobs, nodes("v100", count=gpus, gpus=1))
    held = snapshot_after(state, policy(state, PowerLawModels()), 0.0).queue.held_gpus.astype(int)
    return dict(zip(jobs.id.tolist(), held.tolist(), strict=True))


def simulate_power_law(jobs: Jobs, policy: Policy, cluster: Nodes, restart_s: float = 0.0) -> Log:
    """Simulate *jobs*; a restart costs *restart_s*."""
    sim = Sim(jobs, cluster, truth=PowerLawModels(), overheads=Overheads(restart_s=restart_s))  # type: ignore[arg-type]
    return run(sim, policy, PowerLawModels())


def start_sizes(log: Log, job: str) -> list[tuple[float, int]]:
    """Return the time and the number of GPUs of each start of a job."""
    mine = (log.actions[:, ACTION_VERB] == START) & (
        log.jobs.id[np.maximum(log.actions[:, ACTION_JOB], 0)] == job
    )
    gpus_at: dict[float, int] = {}
    for at_s, gpus in zip(log.action_s[mine].tolist(), log.actions[mine, ACTION_GPUS].tolist(), strict=True):
        gpus_at[at_s] = gpus_at.get(at_s, 0) + gpus
    return list(gpus_at.items())

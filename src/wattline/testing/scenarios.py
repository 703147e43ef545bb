"""Random small clusters, jobs and faults for property tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from wattline.backend.sim.faults import Faults, Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import join_nodes, nodes
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.quotas import QuotaRule, Quotas
from wattline.models.trace_model import TraceModels


@dataclass(frozen=True)
class Scenario:
    """Jobs, a cluster, and the overheads and faults of a simulation."""

    jobs: Jobs
    nodes: Nodes
    quantum_s: float | None
    overheads: Overheads
    faults: Faults
    truth: TraceModels
    seed: int

    def sim(self) -> Sim:
        """Return a new simulation of the scenario."""
        return Sim(
            self.jobs,
            self.nodes,
            truth=self.truth,
            quantum_s=self.quantum_s,
            overheads=self.overheads,
            faults=self.faults,
            seed=self.seed,
        )


_KINDS = ("", "", "", "v100", "a100", "a100|v100")
_FUSE_KEYS = ("", "one", "one", "other")
_TEAMS = ("", "vision", "speech")
_USERS = ("", "ann", "bob", "eve")


@st.composite
def quotas(draw: st.DrawFn) -> Quotas:
    """Generate quotas of one to three of the users and teams of `scenarios`."""
    owners = [("team", team) for team in _TEAMS[1:]] + [("user", user) for user in _USERS[1:]]
    chosen = draw(st.lists(st.sampled_from(owners), min_size=1, max_size=3, unique=True))
    gpus = st.sampled_from((None, 1, 2, 3, 4))
    hours = st.sampled_from((None, None, 0.2, 1.0))
    return Quotas(tuple(QuotaRule(owner, name, draw(gpus), draw(hours)) for owner, name in chosen))


@st.composite
def scenarios(draw: st.DrawFn, max_jobs: int = 16) -> Scenario:
    """Generate up to *max_jobs* jobs on one to four nodes of one or two kinds; rounds and faults vary."""
    cluster = nodes("v100", count=draw(st.integers(1, 3)), gpus=draw(st.sampled_from((1, 2, 4))), cpus=8)
    if draw(st.booleans()):
        cluster = join_nodes(cluster, nodes("a100", gpus=draw(st.sampled_from((2, 4))), cpus=8))
    count = draw(st.integers(1, max_jobs))

    def draw_column(values: st.SearchStrategy[float]) -> list[float]:
        """Draw one value per job."""
        return draw(st.lists(values, min_size=count, max_size=count))

    seconds = st.floats(0, 4000).map(lambda value: round(value, 1))
    gpus = [int(value) for value in draw_column(st.sampled_from((1.0, 1.0, 1.0, 2.0, 4.0, 9.0)))]
    whole = draw(st.booleans())
    work = draw_column(seconds)
    jobs = Jobs.of(
        submit_s=draw_column(seconds),
        gpus=gpus,
        duration_s=None if whole else work,
        steps=[float(int(value)) for value in work] if whole else None,
        step_s=draw_column(st.sampled_from((0.5, 1.0, 7.3))) if whole else None,
        deadline_s=draw_column(st.one_of(seconds, st.just(np.inf))),
        priority=draw_column(st.sampled_from((0.0, 1.0, 5.0))),
        gpu_kind=draw(st.lists(st.sampled_from(_KINDS), min_size=count, max_size=count)),
        fuse=draw(st.lists(st.sampled_from(_FUSE_KEYS), min_size=count, max_size=count)),
        team=draw(st.lists(st.sampled_from(_TEAMS), min_size=count, max_size=count)),
        user=draw(st.lists(st.sampled_from(_USERS), min_size=count, max_size=count)),
    )
    faulty = draw(st.sampled_from((Faults(), Faults(), Faults(2000.0, 300.0, 0.3, 2, 200.0))))
    never = -1.0 if np.isinf(faulty.node_mtbf_s) else 0.0  # on failing nodes it would start over for ever
    if draw(st.sampled_from((False, False, True))):
        jobs = replace(
            jobs,
            preemptible=np.array([int(value) for value in draw_column(st.sampled_from((0.0, 1.0, 2.0)))]),
            checkpoint_s=np.array(draw_column(st.sampled_from((never, 0.0, 300.0)))),
            min_runtime_s=np.array(draw_column(st.sampled_from((0.0, 0.0, 600.0)))),
        )
    return Scenario(
        jobs=jobs,
        nodes=cluster,
        quantum_s=draw(st.sampled_from((None, None, 60.0))),
        overheads=draw(st.sampled_from((Overheads(), Overheads(5.0, 20.0, 10.0, 3.0), Overheads(0, 0)))),
        faults=faulty,
        truth=draw(st.sampled_from((TraceModels(), TraceModels(span_penalty=1.5)))),
        seed=draw(st.integers(0, 3)),
    )

"""Random decisions that stress the simulator and the reports."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from wattline.backend.sim.simulator import Sim
from wattline.core.events import EVENT_AT_S, EVENT_ENERGY_J, EVENT_JOB, EVENT_VERB, METERED
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models, Policy
from wattline.core.snapshot import Snapshot
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.models.library import library
from wattline.placement.pack import Pack
from wattline.policy import Gandiva, Las, fifo, srtf
from wattline.testing import Scenario, scenarios

TUNED_S = 150.0  # time between changes of caps; batch sizes change three times as rarely, by a restart
MODEL_NAMES = ("resnet50", "bert", "unknown model", "")


@dataclass(frozen=True)
class RandomTuning:
    """Policy with random caps and batch sizes by job and time; reads the meter before every decision."""

    policy: Policy
    seed: int = 0

    def __call__(self, snapshot: Snapshot, models: Models) -> Plan:
        plan = self.policy(snapshot, models)
        jobs = snapshot.queue.job[plan.row]
        period = int(snapshot.now_s // TUNED_S)
        requested = snapshot.jobs.batch[jobs]
        return replace(
            plan,
            cap_w=_draw((0, 0, 110, 150, 200), jobs, self.seed, period),
            batch=np.where(requested > 0, requested * _draw((0, 1, 2), jobs, self.seed, period // 3), 0),
            next_decision_s=min(plan.next_decision_s, (period + 1) * TUNED_S),
            needs_meter=True,
        )


@dataclass(frozen=True)
class RandomSwitching:
    """Placer that packs and switches idle nodes off and on at random."""

    pack: Pack
    seed: int = 0

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        placement = self.pack(plan, snapshot, models)
        every = np.arange(len(snapshot.nodes))
        on = _draw((False, True, True), every, self.seed, int(snapshot.now_s)).astype(np.bool_)
        on[placement.leases.node] = True
        return replace(placement, powered_on=on, next_decision_s=snapshot.now_s + TUNED_S)


def _draw(values: tuple[int, ...], rows: np.ndarray, seed: int, period: int) -> np.ndarray:
    """Return one of *values* for each of *rows*; equal arguments give equal results."""
    draws = np.random.default_rng((seed, period)).integers(len(values), size=int(rows.max(initial=0)) + 1)
    return np.array(values)[draws[rows]]


def add_models_and_teams(jobs: Jobs, seed: int) -> Jobs:
    """Return *jobs* with random models, batch sizes and teams."""
    rng = np.random.default_rng(seed)
    count = len(jobs)
    batch = rng.choice((0, 32, 256), count)
    columns = {name: getattr(jobs, name) for name in ("id", "submit_s", "deadline_s", "priority", "gpu_kind")}
    work = {"steps": jobs.steps, "step_s": jobs.step_s} if jobs.whole.any() else {"duration_s": jobs.steps}
    return Jobs.of(
        **columns,
        **work,
        gpus=jobs.gpus,
        batch=batch,
        max_batch=4 * batch,
        min_gpus=np.minimum(jobs.gpus, 1),
        max_gpus=2 * jobs.gpus,
        noise=rng.choice((0.0, 100.0), count),
        model=rng.choice(MODEL_NAMES, count).tolist(),
        team=rng.choice(("red", "blue", ""), count).tolist(),
    )


def set_boot_times(nodes: Nodes, seed: int) -> Nodes:
    """Return *nodes* with random boot times and powers."""
    rng = np.random.default_rng(seed)
    count = len(nodes)
    return replace(
        nodes,
        boot_s=rng.choice((0.0, 45.5, 400.0), count),
        boot_w=rng.choice((0.0, 333.3, 1000.0), count),
        off_w=rng.choice((0.0, 7.7), count),
    )


@st.composite
def random_logs(draw: st.DrawFn, max_jobs: int = 12) -> Log:
    """Generate runs with retuned jobs, restarts with other batch sizes, and switched nodes."""
    scenario: Scenario = draw(scenarios(max_jobs=max_jobs))
    seed = draw(st.integers(0, 1000))
    sim = Sim(
        add_models_and_teams(scenario.jobs, seed),
        set_boot_times(scenario.nodes, seed),
        truth=draw(st.sampled_from((scenario.truth, library()))),
        quantum_s=draw(st.sampled_from((None, 60.0, 7.5))),
        overheads=scenario.overheads,
        faults=scenario.faults,
        seed=scenario.seed,
    )
    policy = RandomTuning(draw(st.sampled_from((fifo, srtf, Las(), Gandiva(200.0)))), seed)
    return run(sim, policy, place=RandomSwitching(Pack(), seed))


def meter_readings(log: Log, team: int = -1) -> np.ndarray:
    """Return time and joules of the readings of one meter: the cluster's, or a team's."""
    rows = (log.events[:, EVENT_VERB] == METERED) & (log.events[:, EVENT_JOB] == team)
    return log.events[rows][:, (EVENT_AT_S, EVENT_ENERGY_J)]

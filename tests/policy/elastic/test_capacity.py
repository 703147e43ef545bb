"""Properties of all elastic policies: bounds, room, and that all jobs end."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.power_law_models import build_power_law_jobs, snapshot_of_waiting
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import join_nodes, nodes, parse_cluster
from wattline.core.events import FAILED, FINISHED
from wattline.core.jobs import Jobs
from wattline.core.plan import Plan
from wattline.core.protocols import Models, Policy
from wattline.core.snapshot import Snapshot
from wattline.core.table import Labels
from wattline.loop.run import run
from wattline.models import TraceModels
from wattline.models.library import library
from wattline.models.scaling import LINEAR
from wattline.placement import Pack
from wattline.policy import Afs, Cap, Pollux, chain
from wattline.policy.elastic.capacity import build_capacity, plan_from_sizes
from wattline.testing import Scenario, scenarios
from wattline.testing.laws import check_energy_totals, check_no_oversubscription, check_steps_counted_once

MODELS = ("resnet50", "vgg16", "bert", "gpt2", "deepspeech2", "unheard of", "")
ELASTIC = (Afs(quantum_s=60.0), Afs("known"), Pollux(), chain(Pollux(), Cap()), chain(Afs("known"), Cap(1.0)))
SCALES = TraceModels(scaling=LINEAR)


@st.composite
def elastic(draw: st.DrawFn) -> Scenario:
    """Small worlds of jobs with known models, bounds and batch sizes."""
    scenario = draw(scenarios(max_jobs=10))
    jobs = scenario.jobs
    count = len(jobs)

    def column(values: tuple[int, ...]) -> np.ndarray:
        return np.array(
            draw(st.lists(st.sampled_from(values), min_size=count, max_size=count)), dtype=np.int64
        )

    least, most, batch = column((0, 0, 1, 2)), column((0, 0, 1, 4)), column((0, 32, 64))
    return replace(
        scenario,
        jobs=replace(
            jobs,
            min_gpus=np.minimum(least, jobs.gpus),
            max_gpus=np.where(most > 0, most * jobs.gpus, 0),
            batch=batch,
            max_batch=batch * column((0, 0, 1, 8)),
            noise=column((0, 100, 10000)).astype(np.float64),
            model=Labels(column(tuple(range(len(MODELS)))), MODELS),
        ),
    )


def watched(policy: Policy) -> Policy:
    """Return *policy* with a check that its plans keep to the bounds of users."""

    def watch(snapshot: Snapshot, models: Models) -> Plan:
        plan = policy(snapshot, models)
        jobs, job = snapshot.jobs, snapshot.queue.job[plan.row]
        most = np.where(jobs.max_gpus[job] > 0, jobs.max_gpus[job], plan.gpus)
        assert ((np.maximum(jobs.min_gpus[job], 1) <= plan.gpus) & (plan.gpus <= most)).all()
        assert ((plan.gpus == jobs.gpus[job]) | (plan.gpus & (plan.gpus - 1) == 0)).all()
        assert plan.batch is None or (plan.batch <= jobs.max_batch[job]).all()
        return plan

    return watch


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenario=elastic(), policy=st.sampled_from(ELASTIC), measured=st.booleans(), known=st.booleans())
def test_bounds_hold_and_all_jobs_end(
    scenario: Scenario, policy: Policy, measured: bool, known: bool
) -> None:
    sim = replace(scenario, truth=library() if measured else scenario.truth).sim()
    log = run(sim, watched(policy), library() if known else TraceModels())
    check_no_oversubscription(log)
    check_steps_counted_once(log)
    check_energy_totals(log)
    jobs, cluster = log.jobs, scenario.nodes
    least = np.where(jobs.min_gpus > 0, jobs.min_gpus, 1)
    ended = log.events[np.isin(log.events[:, 0], (FINISHED, FAILED)), 1].astype(np.int64)
    room = np.bincount(cluster.kind.codes, cluster.gpus, len(cluster.kind.names))
    accepts = cluster.accepted_kinds(jobs.gpu_kind)
    for job in np.setdiff1d(np.arange(len(jobs)), ended).tolist():
        largest = max((r for k, r in enumerate(room) if accepts[job] >> k & 1), default=0)
        assert min(least[job], jobs.gpus[job]) > largest, f"job {job} never ended"


@given(
    count=st.integers(1, 40), gpus=st.integers(1, 33), policy=st.sampled_from(ELASTIC), seed=st.integers(0, 9)
)
def test_plans_give_no_more_than_there_is_and_leave_no_job_out(
    count: int, gpus: int, policy: Policy, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    jobs = Jobs.of(
        submit_s=np.zeros(count),
        gpus=2 ** rng.integers(0, 4, count),
        duration_s=10.0 ** rng.uniform(1, 5, count),
        model=rng.choice(np.array(MODELS), count).tolist(),
        batch=[64] * count,
    )
    cluster = join_nodes(nodes("v100", count=gpus, gpus=1), nodes("a100", gpus=4))
    state = snapshot_of_waiting(jobs, cluster)
    plan = policy(state, library())
    assert sorted(plan.row.tolist()) == list(range(count))
    placement = Pack()(plan, state, library())
    runs = np.isin(plan.row, placement.leases.job)
    assert plan.gpus[runs].sum() <= gpus + 4
    if count > gpus + 4:
        assert runs.sum() > (gpus + 4) / 4


@pytest.mark.parametrize("policy", ELASTIC)
def test_after_a_node_is_lost_the_rest_is_shared(policy: Policy) -> None:
    state = snapshot_of_waiting(build_power_law_jobs(["1"] * 4, [1e4] * 4), nodes("v100", count=2, gpus=4))
    half = replace(state, up=np.array([True, False]), free_gpus=np.array([4, 0]))
    for snapshot, gpus in ((state, 8), (half, 4)):
        leases = Pack("none")(policy(snapshot, SCALES), snapshot, SCALES).leases
        assert leases.gpus.sum() == gpus


def test_jobs_that_keep_their_size_come_first_then_the_largest() -> None:
    state = snapshot_of_waiting(build_power_law_jobs(["1"] * 4, [1e4] * 4), nodes("v100", gpus=16))
    capacity = replace(build_capacity(state, SCALES, None, batches=False), held=np.array([0, 0, 2, 0]))
    plan = plan_from_sizes(state, capacity, np.array([0, 2, 1, -1]), None)
    assert plan.row.tolist() == [2, 1, 0, 3]
    assert plan.gpus.tolist() == [2, 4, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ELASTIC)
def test_jobs_of_the_library_all_end_and_earlier_than_without_elasticity(policy: Policy) -> None:
    from wattline.policy import Tiresias
    from wattline.trace.synthetic import synth

    jobs, cluster = synth(count=60, seed=2, gpus_total=32), nodes("a100", count=4)

    def mean_s(policy: Policy) -> float:
        sim = Sim(jobs, cluster, truth=library(), overheads=Overheads(restart_s=30.0))
        events = run(sim, policy, library()).events
        done = events[events[:, 0] == FINISHED]
        assert len(done) == len(jobs)
        return float(np.mean(done[:, 2] - jobs.submit_s[done[:, 1].astype(np.int64)]))

    slow = 1.6 if isinstance(policy, type(ELASTIC[-1])) else 0.8  # caps take their time
    assert mean_s(policy) < slow * mean_s(Tiresias())


def pools(jobs: Jobs, cluster: str, models: Models) -> list[str]:
    """Return the kind of GPU that serves each waiting job."""
    nodes_ = parse_cluster(cluster)
    capacity = build_capacity(snapshot_of_waiting(jobs, nodes_), models, None, batches=False)
    return [nodes_.kind.names[pool] for pool in capacity.pool.tolist()]


def test_a_waiting_job_takes_the_kind_on_which_its_share_of_gpus_is_fastest() -> None:
    jobs = Jobs.of(submit_s=[0.0], gpus=[1], duration_s=[3600.0], model=["gavel/ResNet-50"], max_gpus=[1])
    timed = replace(library(), timed_on="v100")
    assert pools(jobs, "4xk80:8+1xv100:8", timed) == ["v100"]  # although there are four times as many K80s


def test_of_kinds_that_are_equally_fast_the_frugal_one_is_taken() -> None:
    jobs = Jobs.of(submit_s=[0.0], gpus=[1], duration_s=[3600.0], max_gpus=[1])
    assert pools(jobs, "4xa100:8+1xt4:8", TraceModels()) == ["t4"]


def test_jobs_that_accept_one_kind_only_are_counted_before_others_choose() -> None:
    jobs = Jobs.of(
        submit_s=[0.0] * 9,
        gpus=[1] * 9,
        duration_s=[3600.0] * 9,
        gpu_kind=["", *["v100"] * 8],
    )
    linear = TraceModels(scaling=LINEAR)
    assert pools(jobs, "1xv100:8+1xp100:8", linear)[0] == "p100"

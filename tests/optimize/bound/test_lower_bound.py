"""No policy has a lower mean JCT, or uses less energy, than the bounds say."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wattline as wl
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.protocols import Models
from wattline.loop.run import run
from wattline.models.configurations import list_caps
from wattline.models.library import library
from wattline.models.scaling import LINEAR, Scaling
from wattline.models.trace_model import TraceModels
from wattline.optimize.bound.lower_bound import find_lower_bound
from wattline.optimize.bound.single_machine import schedule_shortest_first, sum_shortest_remaining
from wattline.placement.parser import parse_placer
from wattline.policy import DEADLINE, ELASTIC, ORDERS
from wattline.policy.parser import parse_policy
from wattline.trace import read_trace

CATALOGUE = (*ORDERS, *ELASTIC, *DEADLINE)
CHAINS = (
    "fifo+fuse",
    "fifo+cap",
    "las+fuse+cap",
    "fifo+batch",
    "powerflow:eta=0.1",
    "demand+fifo",
    "gandiva",
)
PLACERS = ("pack", "buddy+power", "tune")
FREE = Overheads(start_s=0.0, restart_s=0.0)


def simulate(
    jobs: Jobs, nodes: Nodes, models: Models, policy: str, place: str, quantum_s: float | None = None
) -> wl.Report:
    sim = Sim(jobs, nodes, truth=models, overheads=FREE, quantum_s=quantum_s)
    decide = parse_policy(policy)
    if getattr(decide, "names_nodes", False):
        place = "pack"  # the only placer for policies that choose nodes themselves
    return wl.report(run(sim, decide, models, place=parse_placer(place, "greedy")))


def assert_holds(
    jobs: Jobs,
    nodes: Nodes,
    models: Models,
    policies: tuple[str, ...],
    place: str,
    quantum_s: float | None = None,
) -> None:
    bound = find_lower_bound(models, jobs, nodes)
    priced = find_lower_bound(models, jobs, nodes, energy_price=1e-4, buckets=40, steps=10)
    assert bound.none == ""
    for policy in policies:
        found = simulate(jobs, nodes, models, policy, place, quantum_s)
        assert found.unfinished == 0, policy
        assert found.jct_mean_s >= bound.jct_mean_s, policy
        assert found.energy_j >= bound.energy_j, policy
        assert found.jct_mean_s + 1e-4 * found.energy_j / len(jobs) >= priced.jct_mean_s, policy


@pytest.mark.parametrize("place", ["pack", "buddy+power"])
def test_no_policy_of_the_catalogue_beats_the_bound(place: str) -> None:
    jobs = read_trace("combined:count=30,seed=5,gpus_total=16")
    assert_holds(jobs, wl.parse_cluster("2xv100:8"), library(), (*CATALOGUE, *CHAINS), place)


@pytest.mark.parametrize("policy", ["afs", "pollux", "gavel", "powerflow:eta=0.5", "srtf", "gandiva"])
def test_no_policy_beats_the_bound_on_several_kinds(policy: str) -> None:
    models = replace(library(), timed_on="v100")
    jobs = read_trace("combined:count=40,seed=6,gpus_total=24,mixed=1,host=0.1")
    assert_holds(jobs, wl.parse_cluster("1xv100:8+1xp100:8+1xk80:8"), models, (policy,), "pack")


@st.composite
def draw_cases(draw: st.DrawFn) -> tuple[Jobs, Nodes, Models]:
    count = draw(st.integers(1, 12))
    whole = st.integers(0, 6)
    gpus = draw(st.lists(st.sampled_from([1, 1, 2, 3, 4, 8]), min_size=count, max_size=count))
    batch = draw(st.lists(st.sampled_from([0, 16, 64]), min_size=count, max_size=count))
    bounds = [draw(st.sampled_from([(0, 0), (n, n), (1, n), (0, 2 * n)])) for n in gpus]
    jobs = Jobs.of(
        submit_s=[300.0 * draw(whole) for _ in range(count)],
        gpus=gpus,
        duration_s=[draw(st.sampled_from([0.0, 1.0, 60.0, 600.0, 7200.0])) for _ in range(count)],
        min_gpus=[low for low, _ in bounds],
        max_gpus=[high for _, high in bounds],
        batch=batch,
        max_batch=[draw(st.sampled_from([0, 100, 256])) if b else 0 for b in batch],
        noise=[draw(st.sampled_from([0.0, 50.0, 5000.0])) for _ in range(count)],
        cpus=[draw(st.sampled_from([0.0, 1.0, 6.0])) for _ in range(count)],
        fuse=[draw(st.sampled_from(["", "", "a", "b"])) for _ in range(count)],
        model=[draw(st.sampled_from(["", "zeus/resnet50", "gavel/LM", "synergy/alexnet"]))] * count,
    )
    cluster = draw(st.sampled_from(["1xv100:8", "2xv100:4", "1xv100:8+2xp100:4", "3xt4:4"]))
    models = draw(
        st.sampled_from(
            [
                library(),
                replace(library(), timed_on="v100"),
                TraceModels(),
                TraceModels(scaling=LINEAR),
                TraceModels(scaling=Scaling("amdahl", 0.9), packed=1.0),
            ]
        )
    )
    return jobs, wl.parse_cluster(cluster), models


@settings(max_examples=25, deadline=None)
@given(
    case=draw_cases(),
    policies=st.lists(st.sampled_from((*CATALOGUE, *CHAINS)), min_size=2, max_size=2, unique=True),
    quantum_s=st.sampled_from([None, None, 60.0]),
    place=st.sampled_from(PLACERS),
)
def test_no_policy_beats_the_bound_on_any_drawn_trace(
    case: tuple[Jobs, Nodes, Models], policies: list[str], quantum_s: float | None, place: str
) -> None:
    jobs, nodes, models = case
    bound = find_lower_bound(models, jobs, nodes, buckets=40, steps=20)
    for policy in policies:
        found = simulate(jobs, nodes, models, policy, place, quantum_s)
        if found.unfinished == 0:
            assert bound.none == ""
            assert found.jct_mean_s >= bound.jct_mean_s * (1 - 1e-9)
            assert found.energy_j >= bound.energy_j * (1 - 1e-9)


def test_a_job_alone_meets_its_bound() -> None:
    jobs = Jobs.of(submit_s=[0.0], gpus=[2], duration_s=[1000.0], min_gpus=[2], max_gpus=[2])
    models, nodes = TraceModels(packed=0.5), wl.parse_cluster("1xv100:8")
    bound = find_lower_bound(models, jobs, nodes)
    assert bound.jct_mean_s == pytest.approx(1000.0)
    caps = list_caps("v100")
    none = np.zeros(len(caps), dtype=np.int64)
    speed = models.speed(jobs, Grants.of(none, none + 2, cap_w=caps, kind="v100"))
    watts = 2 * (np.minimum(np.where(caps > 0, caps, 1000), nodes.busy_w[0]) + nodes.base_w[0] / 8)
    assert bound.energy_j == pytest.approx(1000.0 * float((watts / speed).min()))


def test_jobs_that_fill_the_cluster_one_by_one_meet_the_bound() -> None:
    count = 6
    jobs = Jobs.of(submit_s=np.zeros(count), gpus=np.full(count, 8), duration_s=np.full(count, 600.0))
    nodes = wl.parse_cluster("1xv100:8")
    bound = find_lower_bound(TraceModels(packed=0.5), jobs, nodes)
    found = simulate(jobs, nodes, TraceModels(packed=0.5), "fifo", "pack")
    assert found.jct_mean_s == pytest.approx(600 * 3.5)
    assert bound.jct_mean_s == pytest.approx(found.jct_mean_s, rel=0.01)


def test_the_bound_is_near_the_best_policy_on_a_busy_cluster() -> None:
    jobs, nodes = read_trace("synth:count=200,seed=2,gpus_total=32,load=0.9"), wl.parse_cluster("4xv100:8")
    bound = find_lower_bound(TraceModels(packed=0.5), jobs, nodes)
    assert simulate(jobs, nodes, TraceModels(packed=0.5), "srsf", "pack").jct_mean_s < 1.25 * bound.jct_mean_s


def test_a_job_that_can_never_run_leaves_no_bound() -> None:
    jobs = Jobs.of(submit_s=[0.0], gpus=[16], duration_s=[10.0], min_gpus=[16], id=["big"])
    bound = find_lower_bound(TraceModels(), jobs, wl.parse_cluster("1xv100:8"))
    assert bound.none == "job big can never run on this cluster"
    assert math.isnan(bound.jct_mean_s)


def test_no_jobs_and_empty_jobs_are_no_problem() -> None:
    nodes = wl.parse_cluster("1xv100:8")
    assert find_lower_bound(TraceModels(), read_trace("synth:count=3").take(slice(0, 0)), nodes).none
    jobs = Jobs.of(submit_s=[0.0], gpus=[1], duration_s=[0.0])
    assert find_lower_bound(TraceModels(), jobs, nodes).jct_mean_s == 0.0


def test_no_cap_makes_a_job_of_the_library_faster() -> None:
    """The bound leaves caps out where energy does not count."""
    from wattline.measurement.settings import Settings

    for w in library().workloads:
        batch = np.repeat(w.usual_batch if w.usual_batch == w.usual_batch else 1.0, 8)
        caps = np.linspace(60, 400, 8)
        capped = w.extrapolate(Settings.of(batch=batch, cap_w=caps)).samples_s
        assert (capped <= w.extrapolate(Settings.of(batch=batch)).samples_s * (1 + 1e-9)).all(), w.model


def test_shortest_remaining_time_first_is_summed_exactly() -> None:
    submit_s, need_s = np.array([0.0, 1.0, 2.0, 50.0]), np.array([10.0, 2.0, 1.0, 5.0])
    assert sum_shortest_remaining(submit_s, need_s) == pytest.approx(13 + 2 + 2 + 5)
    start_s, end_s, job = schedule_shortest_first(submit_s, need_s)
    assert job.tolist() == [0, 1, 2, 1, 0, 3]
    assert float((end_s - start_s).sum()) == pytest.approx(float(need_s.sum()))

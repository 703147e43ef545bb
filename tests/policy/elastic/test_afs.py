"""Elastic sharing in cases small enough to do by hand."""

import math

import pytest

from support.power_law_models import (
    build_power_law_jobs,
    first_gpus_by_job,
    simulate_power_law,
    snapshot_of_waiting,
    start_sizes,
)
from support.simulations import finish_times, first_start_times
from wattline.backend.sim.simulator import Sim
from wattline.cluster import join_nodes, nodes
from wattline.core.jobs import Jobs
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.errors import ConfigError
from wattline.loop.run import run
from wattline.models import TraceModels
from wattline.policy import Afs, fifo, priority
from wattline.policy.chain import Chain, Stage
from wattline.policy.parser import parse_policy
from wattline.reports import report
from wattline.trace import synth

KNOWN = Afs("known")


@pytest.mark.parametrize("policy", [Afs(), KNOWN])
def test_one_job_that_scales_perfectly_gets_all(policy: Afs) -> None:
    assert first_gpus_by_job(policy, build_power_law_jobs(["1"], [100]), gpus=8) == {"a": 8}


@pytest.mark.parametrize("policy", [Afs(), KNOWN])
def test_gpus_that_make_no_job_faster_stay_idle(policy: Afs) -> None:
    assert first_gpus_by_job(policy, build_power_law_jobs(["0", "-0.5"], [100, 100]), gpus=8) == {
        "a": 1,
        "b": 1,
    }


@pytest.mark.parametrize("policy", [Afs(), KNOWN])
def test_with_as_many_jobs_as_gpus_each_gets_one(policy: Afs) -> None:
    assert set(
        first_gpus_by_job(
            policy, build_power_law_jobs(["0.9"] * 8, [100.0 * n for n in range(1, 9)]), gpus=8
        ).values()
    ) == {1}


@pytest.mark.parametrize("policy", [Afs(), KNOWN])
def test_equal_jobs_get_equal_shares(policy: Afs) -> None:
    assert first_gpus_by_job(policy, build_power_law_jobs(["0.7"] * 4, [100] * 4), gpus=16) == {
        "a": 4,
        "b": 4,
        "c": 4,
        "d": 4,
    }


@pytest.mark.parametrize("policy", [Afs(), KNOWN])
def test_jobs_that_scale_better_get_more(policy: Afs) -> None:
    found = first_gpus_by_job(policy, build_power_law_jobs(["0.2", "0.9"], [100, 100]), gpus=6)
    assert found == {"a": 2, "b": 4}


def test_of_two_jobs_that_scale_alike_the_one_that_ends_first_wins_the_odd_step() -> None:
    # 1 + 1, then √2 − 1 for a against (√2 − 1) / √2 for b: a; then 0.21 against 0.29: b; then a again.
    jobs = build_power_law_jobs(["0.5", "0.5"], [1000, 100])
    assert first_gpus_by_job(KNOWN, jobs, gpus=3) == {"a": 1, "b": 2}
    assert first_gpus_by_job(KNOWN, jobs, gpus=4) == {"a": 2, "b": 2}
    assert first_gpus_by_job(KNOWN, jobs, gpus=6) == {"a": 2, "b": 4}
    assert first_gpus_by_job(KNOWN, jobs, gpus=8) == {"a": 4, "b": 4}


def test_with_more_jobs_than_gpus_the_shortest_run() -> None:
    jobs = build_power_law_jobs(["0.5"] * 4, [400, 100, 300, 200])
    assert first_gpus_by_job(KNOWN, jobs, gpus=2) == {"a": 0, "b": 1, "c": 0, "d": 1}
    log = simulate_power_law(jobs, KNOWN, nodes("v100", gpus=1))
    assert list(finish_times(log)) == ["b", "d", "c", "a"]


def test_a_newcomer_that_is_shorter_takes_over() -> None:
    jobs = build_power_law_jobs(["0.5", "0.5"], [1000, 100], submit_s=[0, 300])
    assert finish_times(simulate_power_law(jobs, KNOWN, nodes("v100", gpus=1))) == {"b": 400, "a": 1100}


@pytest.mark.parametrize("policy", [Afs(), KNOWN])
def test_the_bounds_of_users_hold(policy: Afs) -> None:
    jobs = build_power_law_jobs(
        ["1", "1", "1"], [1e4, 1e4, 1e4], gpus=[4, 2, 3], min_gpus=[4, 0, 2], max_gpus=[4, 2, 0]
    )
    assert first_gpus_by_job(policy, jobs, gpus=16) == {"a": 4, "b": 2, "c": 8}
    assert first_gpus_by_job(policy, jobs, gpus=5)["a"] in (0, 4)
    assert first_gpus_by_job(policy, jobs, gpus=1) == {"a": 0, "b": 1, "c": 0}


def test_sizes_are_powers_of_two_or_the_requested_size() -> None:
    jobs = build_power_law_jobs(["1"], [100], gpus=[3], max_gpus=[3])
    assert first_gpus_by_job(KNOWN, jobs, gpus=8) == {"a": 3}


def test_short_jobs_of_unknown_length_are_not_stuck_behind_long_ones() -> None:
    jobs = build_power_law_jobs(["0.5"] * 3, [10_000, 10_000, 100], submit_s=[0, 0, 1000])
    log = simulate_power_law(jobs, Afs(), nodes("v100", gpus=2))
    assert first_start_times(log)["c"] == 1000
    assert finish_times(log)["c"] == 1100


def test_jobs_of_unknown_length_take_turns() -> None:
    jobs = build_power_law_jobs(["0.5", "0.5"], [5000, 5000])
    log = simulate_power_law(jobs, Afs(quantum_s=100), nodes("v100", gpus=1))
    assert first_start_times(log) == {"a": 0, "b": 100}
    turns = start_sizes(log, "a")
    assert 3 <= len(turns) <= 20  # turns get longer: by a quarter of the service of the waiting job
    assert max(finish_times(log).values()) == 10_000
    assert min(finish_times(log).values()) > 8000


def test_no_further_decision_is_planned_while_all_run() -> None:
    state = snapshot_of_waiting(build_power_law_jobs(["0.5"] * 3, [100] * 3), nodes("v100", gpus=4))
    assert Afs()(state, TraceModels()).next_decision_s == math.inf
    assert KNOWN(state, TraceModels()).next_decision_s == math.inf


@pytest.mark.parametrize(("left_s", "grows"), [(20, False), (200, True)])
def test_a_job_that_will_end_soon_keeps_its_size(left_s: float, grows: bool) -> None:
    jobs = build_power_law_jobs(["0.5", "0.5"], [1000 * math.sqrt(2), (1000 + left_s) * math.sqrt(2)])
    log = simulate_power_law(jobs, KNOWN, nodes("v100", gpus=4), restart_s=30)
    assert start_sizes(log, "b") == [(0, 2), (1000, 4)][: 1 + grows]
    free = simulate_power_law(jobs, Afs("known", rescale_s=0), nodes("v100", gpus=4))
    assert start_sizes(free, "b") == [(0, 2), (1000, 4)]


@pytest.mark.parametrize(("horizon_s", "grows"), [(60, False), (600, True)])
def test_another_size_must_pay_within_the_horizon(horizon_s: float, grows: bool) -> None:
    jobs = build_power_law_jobs(["0.5", "0.5"], [1e4, 1e6])
    log = simulate_power_law(jobs, Afs("known", horizon_s=horizon_s), nodes("v100", gpus=4), restart_s=30)
    assert (len(start_sizes(log, "b")) > 1) == grows


def test_kinds_are_shared_separately_and_waiting_jobs_take_the_emptier() -> None:
    cluster = join_nodes(nodes("v100", gpus=2), nodes("a100", gpus=4))
    jobs = build_power_law_jobs(["0.5"] * 3, [1000] * 3, gpu_kind=["v100", "", "a100"])
    log = simulate_power_law(jobs, KNOWN, cluster)
    assert [start_sizes(log, job)[0][1] for job in "abc"] == [2, 2, 2]


def test_of_an_earlier_plan_only_the_choice_of_jobs_counts() -> None:
    def not_the_first(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        plan = fifo(snapshot, models, plan)
        return Plan(plan.row[1:], plan.gpus[1:], plan.row[1:])

    jobs = build_power_law_jobs(["0.5"] * 3, [1000] * 3)
    stages: tuple[Stage, ...] = (not_the_first, KNOWN)
    assert first_gpus_by_job(Chain(stages), jobs, gpus=4) == {"a": 0, "b": 2, "c": 2}
    assert first_gpus_by_job(Chain((priority, KNOWN)), jobs, gpus=3) == {"a": 1, "b": 1, "c": 1}


def test_batch_sizes_are_left_alone() -> None:
    jobs = build_power_law_jobs(["1"], [100], batch=[32], max_batch=[1024], noise=[1e6])
    state = snapshot_of_waiting(jobs, nodes("v100", gpus=4))
    batch = Afs()(state, TraceModels()).batch
    assert batch is None or not batch.any()


def test_knobs_are_parsed_and_checked() -> None:
    assert parse_policy("afs") == Afs()
    assert parse_policy("afs:lengths=known,horizon=1h,rescale=10") == Afs("known", 10.0, 3600.0)
    for bad in ("lengths=guessed", "rescale=-1", "horizon=0", "quantum=nan", "rescale=inf"):
        with pytest.raises(ConfigError, match=bad.partition("=")[0]):
            parse_policy(f"afs:{bad}")


def test_an_empty_queue_makes_an_empty_plan() -> None:
    state = snapshot_of_waiting(Jobs.of(submit_s=[], gpus=[], duration_s=[]), nodes("v100"), now_s=0.0)
    assert len(Afs()(state, TraceModels())) == len(KNOWN(state, TraceModels())) == 0


@pytest.mark.parametrize("load", [0.7, 1.5])
def test_on_one_node_it_is_faster_than_fifo_and_restarts_few_times(load: float) -> None:
    jobs = synth(count=120, seed=1, gpus_total=8, load=load, deadlines=0.0)
    found = {
        text: report(run(Sim(jobs, nodes("a100", gpus=8)), parse_policy(text))) for text in ("fifo", "afs")
    }
    assert found["afs"].jct_mean_s < found["fifo"].jct_mean_s
    assert found["afs"].restarts < 3 * len(jobs)

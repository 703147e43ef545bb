import numpy as np
import pytest

from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes
from wattline.core.actions import ACTION_GPUS, ACTION_JOB, ACTION_VERB, START
from wattline.core.events import ARRIVED, Event, build_events
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.plan import Placement
from wattline.core.quotas import QuotaRule, Quotas
from wattline.core.reasons import REASONS
from wattline.core.snapshot import Snapshot
from wattline.loop.reconcile import reconcile
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.loop.state import Decision, advance, build_empty_decision, build_empty_state
from wattline.models.trace_model import TraceModels
from wattline.policy.chain import spell
from wattline.policy.knobs import insert_quota
from wattline.policy.parser import parse_policy
from wattline.testing.laws import check_quotas

HOUR_S = 3600.0


def simulate(jobs: Jobs, policy: str, *rules: QuotaRule, gpus: int = 8) -> Log:
    log = run(Sim(jobs, nodes("v100", gpus=gpus)), insert_quota(parse_policy(policy)), quotas=Quotas(rules))
    check_quotas(log, Quotas(rules))
    return log


def start_s(log: Log) -> dict[int, float]:
    starts = log.actions[:, ACTION_VERB] == START
    found: dict[int, float] = {}
    for job, at_s in zip(
        log.actions[starts, ACTION_JOB].tolist(), log.action_s[starts].tolist(), strict=True
    ):
        found.setdefault(job, at_s)
    return found


def reasons(log: Log, job: int) -> set[str]:
    return {REASONS[code].name for number, code in log.wait_reasons.tolist() if number == job}


def jobs_of(user: list[str], gpus: int = 1, hours: float = 1.0, **columns: object) -> Jobs:
    count = len(user)
    given = {"submit_s": np.zeros(count), "gpus": [gpus] * count, "duration_s": [hours * HOUR_S] * count}
    return Jobs.of(user=user, **{**given, **columns})  # type: ignore[arg-type]


def test_a_team_holds_no_more_gpus_than_its_quota() -> None:
    jobs = jobs_of(["ann", "bob", "eve", "dan"], gpus=2, team=["vision", "vision", "vision", ""])
    log = simulate(jobs, "fifo", QuotaRule("team", "vision", 4))
    assert start_s(log) == {0: 0.0, 1: 0.0, 3: 0.0, 2: HOUR_S}
    assert reasons(log, 2) == {"TEAM_GPU_QUOTA"}


def test_a_user_is_limited_in_all_teams() -> None:
    jobs = jobs_of(["ann", "ann"], team=["vision", "speech"])
    log = simulate(jobs, "fifo", QuotaRule("user", "ann", 1))
    assert start_s(log) == {0: 0.0, 1: HOUR_S}
    assert reasons(log, 1) == {"USER_GPU_QUOTA"}


def test_the_highest_priority_gets_the_quota() -> None:
    jobs = jobs_of(["ann"] * 3, priority=[0.0, 0.0, 9.0])
    log = simulate(jobs, "priority+keep", QuotaRule("user", "ann", 1))
    assert list(start_s(log)) == [2, 0, 1]


def test_a_job_above_its_quota_never_starts_and_blocks_no_other() -> None:
    jobs = jobs_of(["ann", "ann"], gpus=1, duration_s=[10.0, 10.0])
    jobs = Jobs.of(submit_s=[0, 0], gpus=[4, 1], duration_s=[10, 10], user=["ann", "ann"])
    log = simulate(jobs, "fifo", QuotaRule("user", "ann", 2))
    assert list(start_s(log)) == [1]


def test_a_job_that_is_too_big_for_the_cluster_takes_no_part_of_the_quota() -> None:
    jobs = Jobs.of(submit_s=[0, 0], gpus=[16, 1], duration_s=[10, 10], user=["ann", "ann"])
    log = simulate(jobs, "fifo", QuotaRule("user", "ann", 16))
    assert list(start_s(log)) == [1]
    assert reasons(log, 0) == {"TOO_BIG"}


@pytest.mark.parametrize(
    ("policy", "min_gpus"),
    [("gavel", 0), ("gavel", 8), ("afs", 16), ("sia", 16), ("market", 16), ("andreas:method=greedy", 16)],
)
def test_a_job_that_the_policy_can_never_run_keeps_no_other_job_waiting(policy: str, min_gpus: int) -> None:
    jobs = Jobs.of(
        submit_s=[0, 0], gpus=[16, 1], duration_s=[10, 10], user=["ann", "ann"], min_gpus=[min_gpus, 0]
    )
    assert list(start_s(simulate(jobs, policy, QuotaRule("user", "ann", 8)))) == [1]


def test_hours_are_those_of_the_last_seven_days() -> None:
    jobs = jobs_of(["ann"] * 4, gpus=8)
    log = simulate(jobs, "fifo", QuotaRule("user", "ann", gpu_hours_per_week=16.0))
    begins = start_s(log)
    assert begins[0] == 0.0
    assert begins[1] == HOUR_S  # 8 of 16 hours are used
    assert begins[2] == pytest.approx(168 * HOUR_S, abs=HOUR_S)  # the first hour leaves the window
    assert begins[3] > begins[2]
    assert reasons(log, 2) >= {"USER_HOUR_QUOTA"}


def test_a_running_job_runs_on_when_its_hours_are_used_up() -> None:
    jobs = jobs_of(["ann"], gpus=4, hours=10.0)
    log = simulate(jobs, "las", QuotaRule("user", "ann", gpu_hours_per_week=1.0))
    assert np.count_nonzero(log.actions[:, ACTION_VERB] == START) == 1
    assert log.end_s == pytest.approx(10 * HOUR_S)


def _running(held: int, limit: int) -> Snapshot:
    """Return a state in which the first of two jobs holds GPUs, under a quota that was set later."""
    jobs = Jobs.of(submit_s=[0, 0], gpus=[held, 1], duration_s=[1e5, 1e5], user=["ann", "ann"])
    cluster = nodes("v100", gpus=8)
    accepts = cluster.accepted_kinds(jobs.gpu_kind)
    state = build_empty_state(jobs, cluster)
    arrived = build_events(Event(ARRIVED, 0, 0.0), Event(ARRIVED, 1, 0.0))
    state = advance(state, build_empty_decision(state), 0.0, arrived, jobs, accepts)
    leases = Leases.of([0], [0], [0], [held])
    start = Decision(Placement(leases, np.zeros(2, dtype=np.int64), 0), reconcile(state.leases, leases))
    state = advance(state, start, 10.0, build_events(), jobs, accepts)
    import dataclasses

    return dataclasses.replace(state, quotas=Quotas((QuotaRule("user", "ann", limit),)))


def test_a_quota_below_what_is_held_stops_nothing_and_starts_nothing() -> None:
    plan = insert_quota(parse_policy("fifo"))(_running(held=4, limit=2), TraceModels())
    assert (plan.row.tolist(), plan.gpus.tolist()) == ([0], [4])


@pytest.mark.parametrize("policy", ["afs", "pollux", "powerflow", "elasticflow"])
def test_an_elastic_job_grows_to_its_quota_only(policy: str) -> None:
    jobs = jobs_of(["ann", "bob"], min_gpus=[1, 1], max_gpus=[8, 8])
    log = simulate(jobs, policy, QuotaRule("user", "ann", 2))
    starts = log.actions[log.actions[:, ACTION_VERB] == START]
    most = {job: int(starts[starts[:, ACTION_JOB] == job, ACTION_GPUS].max()) for job in (0, 1)}
    assert most[0] <= 2
    assert most[1] >= 4


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("fifo", "fifo+quota"),
        ("priority+fairshare+keep+cap", "priority+fairshare+quota+keep+cap"),
        ("fairshare+powerflow+fuse", "fairshare+quota:least=1+powerflow+quota+fuse"),
        ("fairshare+gavel+cap", "fairshare+quota+gavel+quota+cap"),
        ("las+quota+keep", "las+quota+keep"),
    ],
)
def test_the_stage_is_inserted_where_it_belongs(policy: str, expected: str) -> None:
    assert spell(insert_quota(parse_policy(policy))) == expected


@pytest.mark.parametrize(
    "policy", ["fifo", "afs", "pollux", "powerflow", "elasticflow", "andreas:method=greedy"]
)
def test_a_job_without_hours_starts_when_they_leave_the_window(policy: str) -> None:
    # The third job asks for a kind that no node has, and must not keep the second waiting.
    jobs = Jobs.of(
        submit_s=[0.0, 10.0, 20.0],
        gpus=[1, 1, 1],
        duration_s=[3600.0] * 3,
        user=["ann", "ann", "bob"],
        gpu_kind=["v100", "v100", "a100"],
    )
    log = simulate(jobs, policy, QuotaRule("user", "ann", 1, gpu_hours_per_week=0.5))
    starts = log.actions[log.actions[:, ACTION_VERB] == START, ACTION_JOB]
    assert starts.tolist() == [0, 1]
    assert len(log.now_s) < 200  # not every minute of the week


def test_without_quotas_the_stage_changes_nothing() -> None:
    jobs = jobs_of(["ann", "bob"] * 10, gpus=4)
    with_it, without = (
        run(Sim(jobs, nodes("v100", gpus=8)), parse_policy(p)) for p in ("fifo+quota", "fifo")
    )
    assert np.array_equal(with_it.actions, without.actions)

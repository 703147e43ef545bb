from typing import Any

import pytest

from support.ruled_simulations import RuledRun, simulate_ruled
from wattline.core.reasons import Reason
from wattline.errors import ConfigError
from wattline.policy.ordering import Las
from wattline.rules.rule_set import PartitionRule, PriorityRule, QosRule, RuleSet, UseLimits

NEVER = float("inf")
HALVES = RuleSet(
    partitions=(PartitionRule("left", "v100-[0-1]"), PartitionRule("right", "v100-[2-3]", priority_tier=5))
)


def simulate(rules: RuleSet, count: int, **more: Any) -> RuledRun:
    """Simulate jobs of 100 s on 8 GPUs each, submitted every second, on four nodes of 8 GPUs."""
    jobs: dict[str, Any] = {
        "submit_s": list(range(count)),
        "gpus": [8] * count,
        "duration_s": [100.0] * count,
    }
    names = ("partition", "qos", "time_limit_s", "nodes")
    recorded = {name: more.pop(name) for name in names if name in more}
    options = {name: more.pop(name) for name in ("policy", "backfill") if name in more}
    return simulate_ruled(rules, "4xv100:8", jobs | more, **options, **recorded)


def test_jobs_run_on_the_nodes_of_their_partition() -> None:
    run = simulate(HALVES, 5, partition=["left"] * 4 + ["right"])
    assert run.start_s == [0.0, 1.0, 100.0, 101.0, 4.0]
    assert run.nodes[:2] == [[0], [1]]
    assert run.nodes[4] == [2]
    assert run.reasons[3] == [Reason.OUTRANKED, Reason.NO_ROOM]


def test_a_job_larger_than_its_partition_never_starts() -> None:
    run = simulate(HALVES, 2, gpus=[24, 16], partition=["left", "left"])
    assert run.start_s == [NEVER, 1.0]
    assert run.reasons[0] == [Reason.PARTITION_LIMIT]


def test_partitions_may_overlap() -> None:
    rules = RuleSet(
        partitions=(PartitionRule("all", "ALL", default=True), PartitionRule("debug", "v100-0", max_gpus=8))
    )
    run = simulate(rules, 3, gpus=[32, 8, 16], partition=["all", "debug", "debug"], duration_s=[100, 10, 10])
    assert run.start_s == [0.0, 100.0, NEVER]
    assert run.nodes[0] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("partition", "more"),
    [
        (PartitionRule("p", max_time_s=3600.0), {"time_limit_s": [7200.0]}),
        (PartitionRule("p", max_gpus=4), {}),
        (PartitionRule("p", min_gpus=16), {}),
        (PartitionRule("p", max_nodes=1), {"nodes": ["2"]}),
        (PartitionRule("p", min_nodes=4), {"nodes": ["2"]}),
        (PartitionRule("p", state="DOWN"), {}),
        (PartitionRule("p", allow_accounts=("nlp",)), {"team": ["vision"]}),
        (PartitionRule("p", deny_accounts=("vision",)), {"team": ["vision"]}),
        (PartitionRule("p", allow_qos=("high",)), {"qos": ["low"]}),
    ],
)
def test_a_job_outside_the_limits_of_its_partition_never_starts(
    partition: PartitionRule, more: dict[str, Any]
) -> None:
    rules = RuleSet(partitions=(partition,), qos=(QosRule("low"), QosRule("high")))
    run = simulate(rules, 1, partition=["p"], **more)
    assert run.start_s == [NEVER]
    assert run.reasons[0] == [Reason.PARTITION_LIMIT]


def test_max_nodes_keeps_a_job_together() -> None:
    rules = RuleSet(partitions=(PartitionRule("p", max_nodes=1),))
    run = simulate(rules, 5, gpus=[4, 4, 4, 4, 6], partition=["p"] * 5, duration_s=[100.0] * 5)
    free = simulate(RuleSet(qos=(QosRule("q"),)), 5, gpus=[5, 5, 5, 5, 12], duration_s=[100.0] * 5)
    alone = simulate(rules, 5, gpus=[5, 5, 5, 5, 8], partition=["p"] * 5, duration_s=[100.0] * 5)
    assert len(run.nodes[4]) == 1
    assert len(free.nodes[4]) > 1
    assert alone.start_s[4] == 100.0  # it spans no nodes, though 12 GPUs are free


def test_the_larger_tier_goes_first_and_running_jobs_stay() -> None:
    rules = RuleSet(
        partitions=(PartitionRule("low", "ALL"), PartitionRule("high", "ALL", priority_tier=5)),
        priority=PriorityRule(preempt=""),
    )
    run = simulate(rules, 4, gpus=[32] * 4, partition=["low", "low", "high", "high"])
    assert run.start_s == [0.0, 300.0, 100.0, 200.0]


def test_the_priority_of_qos_orders_jobs_unless_its_weight_is_0() -> None:
    qos = (QosRule("low", priority=1), QosRule("high", priority=9))
    order = {"gpus": [32] * 3, "qos": ["low", "low", "high"]}
    assert simulate(RuleSet(qos=qos), 3, **order).start_s == [0.0, 200.0, 100.0]
    basic = RuleSet(qos=qos, priority=PriorityRule(weight_qos=0.0))
    assert simulate(basic, 3, **order).start_s == [0.0, 100.0, 200.0]


def test_limits_of_a_user_count_running_jobs_only() -> None:
    rules = RuleSet(qos=(QosRule("q", limits=UseLimits(user_jobs=1)),))
    run = simulate(rules, 4, qos=["q"] * 4, user=["ann", "ann", "ann", "bob"])
    assert run.start_s == [0.0, 100.0, 200.0, 3.0]
    assert run.reasons[1] == [Reason.USER_LIMIT]
    wide = simulate(rules, 3, gpus=[32, 32, 8], qos=["q"] * 3, user=["bob", "ann", "ann"], backfill="greedy")
    assert wide.start_s[2] == 200.0  # the second job of ann waits for room, then takes the limit


def test_a_job_that_waits_for_room_does_not_use_the_limit_of_its_user() -> None:
    rules = RuleSet(qos=(QosRule("q", limits=UseLimits(user_jobs=1)),))
    run = simulate(
        rules,
        3,
        gpus=[8, 32, 8],
        duration_s=[100, 100, 50],
        qos=["q"] * 3,
        user=["bob", "ann", "ann"],
        time_limit_s=[100, 100, 50],
    )
    assert run.start_s == [0.0, 100.0, 2.0]


@pytest.mark.parametrize(
    ("limits", "starts", "reason"),
    [
        (UseLimits(user_gpus=16), [0.0, 1.0, 100.0, 3.0], Reason.USER_LIMIT),
        (UseLimits(account_gpus=16), [0.0, 1.0, 100.0, 101.0], Reason.ACCOUNT_LIMIT),
        (UseLimits(group_gpus=16), [0.0, 1.0, 100.0, 101.0], Reason.GROUP_LIMIT),
        (UseLimits(group_jobs=1), [0.0, 100.0, 200.0, 300.0], Reason.GROUP_LIMIT),
    ],
)
def test_limits_of_use_hold(limits: UseLimits, starts: list[float], reason: Reason) -> None:
    rules = RuleSet(partitions=(PartitionRule("p", limits=limits),))
    run = simulate(rules, 4, partition=["p"] * 4, user=["ann", "ann", "ann", "bob"], team=["vision"] * 4)
    assert run.start_s == starts
    assert reason in run.reasons[2]


def test_a_borrower_takes_what_others_leave() -> None:
    limits = UseLimits(user_gpus=8, borrow=True)
    rules = RuleSet(partitions=(PartitionRule("p", limits=limits),))
    users = ["ann", "ann", "ann", "bob"]
    run = simulate(rules, 4, partition=["p"] * 4, user=users, submit_s=[0, 0, 0, 0])
    assert run.start_s == [0.0, 0.0, 0.0, 0.0]
    full = simulate(rules, 5, partition=["p"] * 5, user=["ann", "ann", "ann", "bob", "bob"], submit_s=[0] * 5)
    assert full.start_s == [0.0, 0.0, 0.0, 0.0, 100.0]
    others = simulate(rules, 4, gpus=[8, 8, 8, 24], partition=["p"] * 4, user=users, submit_s=[0] * 4)
    assert others.reasons[3] == [Reason.USER_LIMIT]  # a request beyond the limit borrows, too
    hard = RuleSet(partitions=(PartitionRule("p", limits=UseLimits(user_gpus=8)),))
    assert simulate(hard, 4, partition=["p"] * 4, user=users).start_s == [0.0, 100.0, 200.0, 3.0]


def test_the_qos_of_a_partition_goes_before_that_of_a_job_unless_that_overrides_it() -> None:
    part, job = (
        QosRule("part", limits=UseLimits(group_jobs=1)),
        QosRule("job", limits=UseLimits(group_jobs=2)),
    )
    partition = PartitionRule("p", qos="part")
    starts = simulate(
        RuleSet(partitions=(partition,), qos=(part, job)), 3, partition=["p"] * 3, qos=["job"] * 3
    ).start_s
    assert starts == [0.0, 100.0, 200.0]
    over = QosRule("job", limits=UseLimits(group_jobs=2), over_partition=True)
    starts = simulate(
        RuleSet(partitions=(partition,), qos=(part, over)), 3, partition=["p"] * 3, qos=["job"] * 3
    ).start_s
    assert starts == [0.0, 1.0, 100.0]


def test_a_qos_limits_the_gpus_and_the_time_of_a_job() -> None:
    rules = RuleSet(qos=(QosRule("q", max_gpus=8, max_wall_s=200.0),))
    run = simulate(rules, 3, gpus=[16, 8, 8], qos=["q"] * 3, time_limit_s=[100.0, 300.0, 200.0])
    assert run.start_s == [NEVER, NEVER, 2.0]
    assert run.reasons[0] == [Reason.QOS_LIMIT]


def test_a_preempting_qos_stops_as_many_jobs_as_it_needs() -> None:
    rules = RuleSet(qos=(QosRule("low"), QosRule("high", priority=9, preempts=("low",))))
    run = simulate(rules, 5, qos=["low"] * 4 + ["high"])
    assert run.start_s[4] == 4.0
    assert run.end_s == [100.0, 101.0, 102.0, 199.0, 104.0]  # the last of low ran 1 s, then from 100 s on
    assert run.reasons == [[], [], [], [Reason.PREEMPTED], []]


def test_a_larger_tier_preempts_where_slurm_is_set_so() -> None:
    rules = RuleSet(
        partitions=(PartitionRule("low", "ALL"), PartitionRule("high", "ALL", priority_tier=5)),
        priority=PriorityRule(preempt="partition"),
    )
    run = simulate(rules, 2, gpus=[32, 32], partition=["low", "high"])
    assert run.start_s == [0.0, 1.0]
    assert run.end_s == [200.0, 101.0]


def test_a_job_is_not_preempted_before_its_exempt_time_is_over() -> None:
    rules = RuleSet(qos=(QosRule("low", exempt_s=50.0), QosRule("high", preempts=("low",))))
    run = simulate(rules, 2, gpus=[32, 32], qos=["low", "high"])
    assert run.start_s == [0.0, 50.0]


def test_preemptive_policies_keep_partitions() -> None:
    run = simulate(HALVES, 4, gpus=[16] * 4, partition=["left"] * 3 + ["right"], policy=Las(10.0))
    assert run.start_s[3] == 3.0
    assert all(node in (0, 1) for nodes in run.nodes[:3] for node in nodes)


def test_rules_for_other_partitions_are_an_error() -> None:
    with pytest.raises(ConfigError, match="no job is in a partition that they state"):
        simulate(HALVES, 1, partition=["elsewhere"])


def test_partitions_without_rules_are_announced() -> None:
    run = simulate(HALVES, 2, partition=["left", "elsewhere"])
    assert run.bound is not None
    assert any("1 job of the partition elsewhere, without rules" in note for note in run.bound.notes)

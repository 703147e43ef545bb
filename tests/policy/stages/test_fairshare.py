import numpy as np
import pytest

from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes
from wattline.core.actions import ACTION_JOB, ACTION_VERB, START
from wattline.core.jobs import Jobs
from wattline.core.quotas import QuotaRule, Quotas
from wattline.errors import ConfigError
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.policy.chain import spell
from wattline.policy.parser import parse_policy

AUTO = "priority+fairshare+keep"


def build(user: list[str], **columns: object) -> Jobs:
    count = len(user)
    given = {
        "submit_s": np.arange(count) * 1e-3,
        "gpus": [1] * count,
        "duration_s": [100.0] * count,
        **columns,
    }
    return Jobs.of(user=user, **given)  # type: ignore[arg-type]


def simulate(jobs: Jobs, policy: str, quotas: Quotas | None = None, gpus: int = 1) -> Log:
    return run(Sim(jobs, nodes("v100", gpus=gpus)), parse_policy(policy), quotas=quotas)


def start_order(log: Log) -> list[int]:
    starts = log.actions[log.actions[:, ACTION_VERB] == START, ACTION_JOB].tolist()
    return list(dict.fromkeys(starts))


def test_users_take_turns_whatever_they_have_submitted() -> None:
    jobs = build(["ann"] * 6 + ["bob"] * 2)
    assert start_order(simulate(jobs, "priority+keep")) == list(range(8))
    assert start_order(simulate(jobs, AUTO)) == [0, 6, 1, 7, 2, 3, 4, 5]


def test_priority_comes_before_fair_share() -> None:
    jobs = build(["ann", "ann", "bob"], priority=[0.0, 1.0, 0.0])
    assert start_order(simulate(jobs, AUTO))[:2] == [0, 1]


def test_teams_share_first_and_users_inside_them() -> None:
    team = ["big", "big", "big", "big", "small", "small"]
    jobs = build(["ann", "bob", "ann", "bob", "eve", "eve"], team=team)
    assert start_order(simulate(jobs, AUTO)) == [0, 4, 1, 5, 2, 3]


def test_a_share_of_two_gets_twice_as_much() -> None:
    jobs = build(["ann"] * 9 + ["bob"] * 9)
    log = simulate(jobs, AUTO, Quotas((QuotaRule("user", "bob", share=2.0),)))
    first = start_order(log)[:9]
    assert sum(job >= 9 for job in first) == 6


def test_use_of_long_ago_counts_less() -> None:
    # ann has used 1,000 s, 20 half-lives ago; then bob has used 100 s.
    jobs = Jobs.of(
        submit_s=[0.0, 11_000.0, 11_010.0, 11_020.0],
        gpus=[1] * 4,
        duration_s=[1000.0, 100.0, 100.0, 100.0],
        user=["ann", "bob", "bob", "ann"],
    )
    assert start_order(simulate(jobs, "priority+fairshare:half_life=500s+keep")) == [0, 1, 3, 2]
    assert start_order(simulate(jobs, "priority+fairshare:half_life=30d+keep")) == [0, 1, 2, 3]


def test_a_user_that_has_waited_for_long_gets_one_job() -> None:
    # A share of a millionth would let bob wait for all jobs of ann.
    jobs = build(["bob"] * 3 + ["ann"] * 30, duration_s=[1800.0] * 33)
    tiny = Quotas((QuotaRule("user", "bob", share=1e-6),))
    never = start_order(simulate(jobs, "priority+fairshare+keep", tiny))
    aged = start_order(simulate(jobs, "priority+fairshare:age=2h+keep", tiny))
    assert never.index(1) == 31
    assert aged.index(1) <= 7


@pytest.mark.parametrize(
    "policy",
    ["priority+{}keep", "las+{}keep", "srtf+{}preempt", "{}powerflow", "{}afs", "{}pollux+fuse"],
)
def test_with_one_user_and_one_team_nothing_changes(policy: str) -> None:
    rng = np.random.default_rng(3)
    jobs = build(
        ["ann"] * 40,
        team=["vision"] * 40,
        submit_s=rng.uniform(0, 2000, 40),
        duration_s=rng.exponential(900, 40),
        gpus=rng.choice((1, 2, 4), 40),
        priority=rng.choice((0.0, 1.0), 40),
    )
    with_it, without = (simulate(jobs, policy.format(text), gpus=4) for text in ("fairshare+", ""))
    assert np.array_equal(with_it.actions, without.actions)
    assert np.array_equal(with_it.events, without.events)


@pytest.mark.parametrize("policy", ["fairshare+powerflow", "fairshare+afs", "fairshare+pollux"])
def test_before_an_elastic_policy_it_decides_which_jobs_share_the_gpus(policy: str) -> None:
    jobs = build(["ann"] * 40 + ["bob"] * 4, submit_s=[0.0] * 44, duration_s=[100.0] * 40 + [150.0] * 4)
    order = start_order(simulate(jobs, policy, gpus=4))
    assert max(order.index(job) for job in range(40, 44)) < 12


def test_usage_of_long_ago_counts_as_none() -> None:
    # After hundreds of half-lives the decayed seconds are too small for their own reciprocal.
    jobs = build(["ann", "bob", "ann"], submit_s=[0.0, 1.0, 700_000.0], duration_s=[60.0] * 3)
    log = simulate(jobs, "priority+fairshare:half_life=600s+keep")
    assert start_order(log) == [0, 1, 2]


def test_its_text_has_the_half_life() -> None:
    assert spell(parse_policy("fairshare:half_life=2d")) == "fairshare:half_life=172800s"
    with pytest.raises(ConfigError, match="half_life_s must be at least 1"):
        parse_policy("fairshare:half_life=0s")

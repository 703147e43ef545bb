"""Arrays of jobs that would otherwise wait."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.simulations import NO_OVERHEADS, finish_times
from wattline import policy as p
from wattline.backend.sim.simulator import Sim
from wattline.cluster import join_nodes, nodes
from wattline.core.actions import START, STOP
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.plan import Plan
from wattline.core.protocols import Models, Policy
from wattline.core.queue import QUEUE_ACCEPTED_KINDS
from wattline.core.snapshot import Snapshot
from wattline.errors import ConfigError
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.models.array_speed import ArrayModel
from wattline.models.trace_model import TraceModels
from wattline.placement import Buddy, Pack, Power, Tune
from wattline.policy.parser import parse_policy
from wattline.reports import report
from wattline.testing import PolicyContract, Scenario, scenarios
from wattline.testing.laws import check_energy_totals, check_no_oversubscription, check_steps_counted_once
from wattline.trace import synth

CHEAP = TraceModels(
    array=ArrayModel(serial=0.1)
)  # of an array of eight each member has 0.59 of its speed alone


@pytest.mark.slow
class TestFuse(PolicyContract):
    policy = p.Fuse()
    models = CHEAP


@pytest.mark.slow
class TestFuseAfterFifo(PolicyContract):
    policy = p.chain(p.fifo, p.Fuse(limit=3))
    models = CHEAP


@pytest.mark.slow
class TestFuseBetweenLasAndCap(PolicyContract):
    policy = p.chain(p.Las(60.0), p.Fuse(limit=8), p.Cap(slowdown=1.1))
    models = CHEAP


@pytest.mark.slow
class TestFuseBetweenDemandAndCap(PolicyContract):
    policy = p.chain(p.Tiresias((100.0, 1000.0)), p.Demand(), p.Fuse(), p.Cap())
    models = CHEAP


@pytest.mark.slow
class TestFuseBeforeLas(PolicyContract):
    policy = p.chain(p.Fuse(), p.Las(60.0))
    models = CHEAP


@pytest.mark.slow
class TestFuseAfterAfs(PolicyContract):
    policy = p.chain(p.Afs(), p.Fuse())
    models = CHEAP


class TestFuseBeforeAfs(PolicyContract):
    policy = p.chain(p.Fuse(), p.Afs())
    models = CHEAP


class TestFuseBeforeGandiva(PolicyContract):
    policy = p.chain(p.Fuse(), p.Gandiva(60.0))
    models = CHEAP


@pytest.mark.slow
class TestFuseOnBuddies(PolicyContract):
    policy = p.chain(p.Las(60.0), p.Fuse())
    place = Buddy()
    models = CHEAP


@pytest.mark.slow
class TestFuseWithPower(PolicyContract):
    policy = p.chain(p.fifo, p.Fuse())
    place = Power(Pack("none"))
    models = CHEAP


@pytest.mark.slow
class TestFuseTuned(PolicyContract):
    policy = p.chain(p.fifo, p.Fuse())
    place = Tune()
    models = CHEAP


def sweep(*duration_s: float, **more: Any) -> Jobs:
    """Jobs of one GPU and one fusion key, all at once."""
    count = len(duration_s)
    columns = {"submit_s": [0.0] * count, "gpus": [1] * count, "fuse": ["a"] * count, **more}
    return Jobs.of(id=list("abcdefghijklmnopqrst"[:count]), duration_s=duration_s, **columns)


def play(jobs: Jobs, policy: Policy, models: Models = CHEAP, gpus: int = 1, **sim: Any) -> Log:
    """Run *jobs* on one node, where what is believed is true."""
    cluster = sim.pop("nodes", None) or nodes("v100", gpus=gpus)
    return run(Sim(jobs, cluster, truth=models, **{"overheads": NO_OVERHEADS, **sim}), policy, models)


FIFO = p.chain(p.fifo, p.Fuse())


def groups(log: Log) -> list[list[str]]:
    """Return the jobs that were started together, in order of starting."""
    found: dict[tuple[float, int], list[str]] = {}
    for row in np.flatnonzero(log.actions[:, 0] == START).tolist():
        job, group = log.actions[row, 1:3].tolist()
        found.setdefault((float(log.action_s[row]), group), []).append(str(log.jobs.id[job]))
    return list(found.values())


# -- fused jobs


def test_waiting_jobs_are_fused_with_starting_jobs() -> None:
    log = play(sweep(*[100.0] * 4), FIFO)
    assert groups(log) == [["a", "b", "c", "d"]]
    assert finish_times(log) == pytest.approx(dict.fromkeys("abcd", 130.0))


def test_where_there_are_gpus_for_all_every_job_runs_alone() -> None:
    assert groups(play(sweep(*[100.0] * 4), FIFO, gpus=4)) == [["a"], ["b"], ["c"], ["d"]]


def test_starting_jobs_share_the_waiting_jobs() -> None:
    assert groups(play(sweep(*[100.0] * 6), FIFO, gpus=2)) == [["a", "c", "e"], ["b", "d", "f"]]


def test_no_array_is_wider_than_its_limit() -> None:
    log = play(sweep(*[100.0] * 5), p.chain(p.fifo, p.Fuse(limit=2)))
    assert groups(log) == [["a", "b"], ["c", "d"], ["e"]]


@pytest.mark.parametrize(
    ("other", "together"),
    [
        ({"fuse": ["a", "b", "a", "b"]}, [["a", "c"], ["b", "d"]]),
        ({"fuse": ["a", "", "a", ""]}, [["a", "c"], ["b"], ["d"]]),
        ({"gpus": [2, 1, 2, 1]}, [["a", "c"], ["b"], ["d"]]),
    ],
)
def test_only_jobs_of_one_key_and_size_are_fused(other: dict[str, Any], together: list[list[str]]) -> None:
    assert groups(play(sweep(*[100.0] * 4, **other), FIFO, gpus=2)) == together


def test_only_jobs_that_accept_the_same_kinds_are_fused() -> None:
    both = join_nodes(nodes("v100", gpus=1), nodes("a100", gpus=1))
    jobs = sweep(*[100.0] * 4, gpu_kind=["v100", "a100", "v100", "a100"])
    assert groups(play(jobs, FIFO, nodes=both)) == [["a", "c"], ["b", "d"]]


@dataclass(frozen=True)
class FixedColumns:
    """A stage that gives every other job another cap or batch."""

    what: str

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        plan = p.fifo(snapshot, models, plan)
        every_other = np.where(snapshot.queue.job[plan.row] % 2, 0, 150)
        return replace(plan, **{self.what: every_other})


@pytest.mark.parametrize("what", ["cap_w", "batch"])
def test_jobs_for_which_the_plan_has_another_cap_or_batch_are_not_fused(what: str) -> None:
    jobs = sweep(*[100.0] * 4, batch=[64] * 4)
    assert groups(play(jobs, p.chain(FixedColumns(what), p.Fuse()))) == [["a", "c"], ["b", "d"]]


def test_a_cap_behind_it_holds_for_the_whole_array() -> None:
    log = play(sweep(*[100.0] * 3), p.chain(p.fifo, p.Fuse(), p.Cap(eta=1.0, slowdown=1.1)))
    assert groups(log) == [["a", "b", "c"]]
    assert len(set(log.actions[:, 5].tolist())) == 1
    assert log.actions[0, 5] > 0


# -- when it pays


@pytest.mark.parametrize("serial", [1.0, 1.3])
def test_what_does_no_more_work_together_is_not_fused(serial: float) -> None:
    log = play(sweep(*[100.0] * 4), FIFO, TraceModels(array=ArrayModel(serial)))
    assert [len(group) for group in groups(log)] == [1, 1, 1, 1]


def test_two_jobs_of_a_sweep_are_not_fused_if_no_other_job_gains() -> None:
    # Together they would end at 165 s, one after the other at 100 s and 200 s: 150 s on average.
    assert groups(play(sweep(100.0, 100.0), FIFO, TraceModels())) == [["a"], ["b"]]


def test_a_requested_array_is_formed_whatever_the_forecast() -> None:
    wanted = sweep(100.0, 100.0, fuse=["a", "a"], always_fuse=[True, True])
    assert groups(play(wanted, FIFO, TraceModels())) == [["a", "b"]]
    assert groups(play(wanted, FIFO, TraceModels(), gpus=2)) == [["a"], ["b"]]


def test_they_are_fused_where_many_wait_behind_them() -> None:
    jobs = sweep(*[100.0] * 7, fuse=["a", "a", "", "", "", "", ""])
    log = play(jobs, FIFO, TraceModels())
    assert groups(log)[0] == ["a", "b"]
    assert np.mean(list(finish_times(log).values())) < np.mean(
        list(finish_times(play(jobs, p.fifo)).values())
    )


def test_a_job_from_the_back_does_not_delay_many_short_jobs_before_it() -> None:
    jobs = sweep(100.0, *[10.0] * 5, 100.0, fuse=["a", "", "", "", "", "", "a"])
    assert all(len(group) == 1 for group in groups(play(jobs, FIFO, TraceModels(array=ArrayModel(0.5)))))


def test_a_job_with_a_short_wait_runs_alone() -> None:
    soon = sweep(10.0, 1000.0, 1000.0, fuse=["", "a", "a"])
    assert all(len(group) == 1 for group in groups(play(soon, FIFO, TraceModels(), gpus=2)))


@dataclass(frozen=True)
class Roomy:
    """Arrays of two fit into memory."""

    of: TraceModels = CHEAP

    def speed(self, jobs: Jobs, grants: Grants) -> Any:
        return self.of.speed(jobs, grants)

    def watts(self, jobs: Jobs, grants: Grants) -> Any:
        return self.of.watts(jobs, grants)

    def widest(self, jobs: Jobs, grants: Grants) -> Any:
        return np.full(len(grants), 2.0)

    def observe(self, *_: object) -> Roomy:
        return self


def test_no_array_is_wider_than_memory_allows() -> None:
    assert [len(group) for group in groups(play(sweep(*[100.0] * 4), FIFO, Roomy()))] == [2, 2]


# -- running jobs


def test_running_jobs_are_neither_stopped_nor_joined() -> None:
    jobs = sweep(*[100.0] * 4, submit_s=[0.0, 1.0, 2.0, 3.0])
    log = play(jobs, FIFO)
    assert groups(log) == [["a"], ["b", "c", "d"]]
    assert not (log.actions[:, 0] == STOP).any()


def test_when_a_member_ends_the_rest_goes_on_faster_also_without_its_leader() -> None:
    log = play(sweep(100.0, 200.0, 300.0), FIFO)
    assert groups(log) == [["a", "b", "c"]]
    assert not (log.actions[:, 0] == STOP).any()
    # 100 s of work at 1/1.2, then 100 s at 1/1.1, then 100 s alone.
    assert finish_times(log) == pytest.approx({"a": 120.0, "b": 230.0, "c": 330.0})


def test_an_array_that_has_to_make_way_comes_back() -> None:
    jobs = sweep(*[1000.0] * 3, 50.0, submit_s=[0.0, 0.0, 0.0, 500.0], fuse=["a", "a", "a", ""])
    log = play(jobs, p.chain(p.srtf, p.Fuse()))
    assert groups(log) == [["a", "b", "c"], ["d"], ["a", "b", "c"]]
    assert finish_times(log) == pytest.approx({"d": 550.0, **dict.fromkeys("abc", 1250.0)})


def test_gandiva_packs_no_job_onto_an_array() -> None:
    jobs = sweep(*[100.0] * 4, 1000.0, fuse=["a", "a", "a", "a", ""])
    log = play(jobs, p.chain(p.fifo, p.Fuse(), p.Gandiva(50.0)))
    assert ["a", "b", "c", "d"] in groups(log)
    assert all("e" not in group or len(group) <= 2 for group in groups(log))


# -- messages and reports


@pytest.mark.parametrize("limit", [1, 0, -3])
def test_an_array_has_at_least_two_members(limit: int) -> None:
    with pytest.raises(ConfigError, match=f"limit must be at least 2, got {limit}"):
        p.Fuse(limit)


def test_it_is_typed_like_other_stages() -> None:
    assert parse_policy("las+fuse:limit=4") == p.chain(p.Las(), p.Fuse(limit=4))
    with pytest.raises(ConfigError, match=r"fuse's limit must be at least 2, got 1"):
        parse_policy("fifo+fuse:limit=1")


def test_a_report_counts_fused_jobs() -> None:
    found = report(play(sweep(*[100.0] * 5), p.chain(p.fifo, p.Fuse(limit=3))))
    assert (found.fused_jobs, found.array_width_mean) == (5, 2.5)
    assert "5 jobs, in arrays of 2.5 on average" in str(found)
    plain = report(play(sweep(100.0, 100.0), p.fifo))
    assert (plain.fused_jobs, plain.as_dict()["array_width_mean"]) == (0, None)
    assert "fused" not in str(plain)


# -- whatever happens


class _Watched:
    """A policy that checks its arrays."""

    def __init__(self, policy: Policy, limit: int) -> None:
        self.policy, self.limit = policy, limit

    def __call__(self, snapshot: Snapshot, models: Models) -> Plan:
        plan = self.policy(snapshot, models)
        jobs, job, accepts = snapshot.jobs, snapshot.queue.job, snapshot.queue.block[QUEUE_ACCEPTED_KINDS]
        for leader in np.unique(plan.group[plan.group != plan.row]).tolist():
            at = np.flatnonzero(plan.group == leader)
            members = job[plan.row[at]]
            assert len(at) <= self.limit
            assert jobs.fuse.word(int(members[0])) != ""
            for column in (jobs.fuse.codes[members], plan.gpus[at], accepts[plan.row[at]]):
                assert len(set(column.tolist())) == 1
            width = np.full(len(at), len(at))
            together = models.speed(jobs, Grants.of(members, plan.gpus[at], members=width, fused=width > 1))
            alone = models.speed(jobs, Grants.of(members, plan.gpus[at]))
            assert (together * width >= alone * (1 - 1e-9)).all(), "slower than one after the other"
        return plan


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    scenario=scenarios(),
    limit=st.integers(2, 5),
    order=st.sampled_from((p.fifo, p.srtf, p.Las(60.0))),
    serial=st.sampled_from((0.0, 0.1, 0.65, 1.0)),
)
def test_arrays_are_alike_narrow_enough_and_worth_it(
    scenario: Scenario, limit: int, order: Any, serial: float
) -> None:
    models = TraceModels(array=ArrayModel(serial))
    log = run(scenario.sim(), _Watched(p.chain(order, p.Fuse(limit)), limit), models)
    for law in (check_no_oversubscription, check_steps_counted_once, check_energy_totals):
        law(log)


@pytest.mark.slow
def test_leases_and_idle_gpus_use_all_the_energy_of_a_run_with_sweeps() -> None:
    jobs = synth(count=60, seed=1, sweeps=0.8, gpus_total=8, load=2.0)
    log = play(jobs, p.chain(p.Las(), p.Fuse(), p.Cap()), gpus=8)
    check_energy_totals(log)
    found = report(log)
    assert found.fused_jobs > 10
    parts = (found.energy_lease_j, found.energy_idle_gpu_j, found.energy_base_j)
    assert sum(parts) == pytest.approx(found.energy_j)
    assert found.gpu_utilisation <= 1


@pytest.mark.parametrize("seed", range(3))
def test_a_crowded_cluster_of_sweeps_is_done_sooner_with_less_energy(seed: int) -> None:
    jobs = synth(count=150, seed=seed, sweeps=1.0, gpus_total=16, load=2.0)
    plain, fused = (report(play(jobs, policy, gpus=16)) for policy in (p.fifo, FIFO))
    assert fused.jct_mean_s < plain.jct_mean_s
    assert fused.energy_j < plain.energy_j
    assert fused.fused_jobs > 0

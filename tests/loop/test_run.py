from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from support.simulations import finish_times, simulate
from wattline import policy as p
from wattline.backend.replay import Replay
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes
from wattline.core.actions import ACTION_VERB, POWER_OFF
from wattline.core.events import build_events
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.errors import GrantedTwice, Oversubscribed, PlanError
from wattline.loop.log_reader import read_log
from wattline.loop.log_writer import write_log
from wattline.loop.run import iterate, run
from wattline.loop.state import Decision, advance
from wattline.models.trace_model import TraceModels
from wattline.placement import Pack
from wattline.trace import synth

JOBS = Jobs.of(submit_s=[0, 1, 2], gpus=[1, 1, 1], duration_s=[10, 10, 10])


class Counting:
    """A policy that counts its calls."""

    def __init__(self, stable: bool) -> None:
        self.calls = 0
        self.stable = stable

    def __call__(self, snapshot: Snapshot, models: Models) -> Plan:
        self.calls += 1
        plan = p.plan_as_requested(snapshot)
        return Plan(plan.row, plan.gpus, plan.group, stable=self.stable)


def test_a_stable_plan_is_not_computed_again_when_jobs_end() -> None:
    stable, unstable = Counting(True), Counting(False)
    assert finish_times(simulate(JOBS, stable, gpus=4)) == finish_times(simulate(JOBS, unstable, gpus=4))
    assert stable.calls == 4  # three arrivals, and the end
    assert unstable.calls == 6


def test_a_policy_is_called_again_at_its_next_decision_time_only() -> None:
    times: list[float] = []

    def ticking(snapshot: Snapshot, models: Models) -> Plan:
        times.append(snapshot.now_s)
        plan = p.plan_as_requested(snapshot)
        return Plan(plan.row, plan.gpus, plan.group, next_decision_s=snapshot.now_s + 4, stable=True)

    simulate(Jobs.of(submit_s=[0], gpus=[1], duration_s=[10]), ticking)
    assert times == [0, 4, 8, 10]


def test_a_placer_that_oversubscribes_a_node_raises() -> None:
    def generous(plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        job = snapshot.queue.job
        leases = Leases.of(job, job, np.zeros(len(job)), np.full(len(job), 3))  # type: ignore[arg-type]
        return Placement(leases, np.zeros(len(job), dtype=np.int64), 0)

    with pytest.raises(Oversubscribed, match="oversubscribed by 2 GPUs"):
        simulate(JOBS, p.fifo, place=generous)


def test_a_policy_that_starts_no_job_ends_the_run() -> None:
    def start_none(snapshot: Snapshot, models: Models) -> Plan:
        none = np.empty(0, dtype=np.int64)
        return Plan(none, none, none)

    log = simulate(JOBS, start_none)
    assert finish_times(log) == {}
    assert set(log.wait_reasons[:, 0].tolist()) == {0, 1, 2}


def test_nodes_that_are_switched_without_jobs_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wattline.loop.run._MAX_IDLE_ROUNDS", 50)

    def start_none(snapshot: Snapshot, models: Models) -> Plan:
        none = np.empty(0, dtype=np.int64)
        return Plan(none, none, none, next_decision_s=snapshot.now_s + 60.0)

    def flapping(plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        reason = np.full(len(snapshot.queue), REASONS.index(Reason.OVER_BUDGET), dtype=np.int64)
        return Placement(snapshot.leases, reason, len(reason), powered_on=~snapshot.up)

    log = simulate(JOBS, start_none, place=flapping)
    assert finish_times(log) == {}
    assert 5 <= np.count_nonzero(log.actions[:, ACTION_VERB] == POWER_OFF) <= 60


@pytest.mark.slow
def test_a_run_reports_its_progress() -> None:
    from wattline.backend.sim.simulator import Sim
    from wattline.cluster import nodes
    from wattline.loop.run import run
    from wattline.trace import synth

    seen: list[float] = []
    run(
        Sim(synth(count=600, seed=0), nodes("v100", count=4)),
        p.srtf,
        progress=lambda now_s, _: seen.append(now_s),
    )
    assert seen
    assert seen == sorted(seen)


def test_granting_a_job_twice_is_refused() -> None:
    def twice(plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        job = int(snapshot.queue.job[0])
        leases = Leases.of([job, job], [job, job], [0, 0], [1, 1])
        return Placement(leases, np.zeros(len(snapshot.queue), dtype=np.int64), 0)

    with pytest.raises(GrantedTwice):
        simulate(JOBS, p.fifo, gpus=4, place=twice)


def test_a_placement_without_reasons_raises() -> None:
    def forgetful(plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        return Placement(snapshot.leases, np.zeros(0, dtype=np.int64), 0)

    with pytest.raises(PlanError, match="0 entries, expected one for each of the 1 jobs"):
        simulate(JOBS, p.fifo, place=forgetful)


# -- Runs that start from a state of another run


@pytest.mark.slow
@given(seed=st.integers(0, 10_000), cut=st.integers(1, 12))
def test_a_run_resumed_in_the_middle_ends_like_the_whole_run(seed: int, cut: int) -> None:
    jobs = synth(count=12, seed=seed, load=1.5, gpus_total=4)
    jobs, cluster = replace(jobs, gpus=np.minimum(jobs.gpus, 4)), nodes("v100", gpus=4)
    free = Overheads(restart_s=0.0)
    policy, models = p.chain(p.fifo), TraceModels()
    whole = run(Sim(jobs, cluster, overheads=free), policy)
    first = list(islice(iterate(Sim(jobs, cluster, overheads=free), policy, models, Pack()), cut))[-1]
    state = first.state
    middle = advance(
        state,
        Decision(first.placement, first.actions),
        state.now_s,
        build_events(),
        jobs,
        cluster.accepted_kinds(jobs.gpu_kind),
    )
    assume(np.array_equal(middle.queue.job, np.arange(len(middle.queue))))  # no job has ended yet
    rest = run(Sim(jobs, cluster, overheads=free, initial_state=middle), policy, initial_state=middle)
    late = finish_times(rest)
    assert late == pytest.approx({job: end_s for job, end_s in finish_times(whole).items() if job in late})
    assert len(late) >= len(middle.queue)
    again = Replay(rest)
    assert len(run(again, policy, initial_state=again.initial_state)) == len(rest)


def test_a_log_of_a_resumed_run_is_written_and_read(tmp_path: Path) -> None:
    cluster = nodes("v100", gpus=1)
    first = list(islice(iterate(Sim(JOBS, cluster), p.fifo, TraceModels(), Pack()), 2))[-1]
    rest = run(Sim(JOBS, cluster, initial_state=first.state), p.fifo, initial_state=first.state)
    write_log(rest, tmp_path / "run.jsonl")
    again = Replay(read_log(tmp_path / "run.jsonl"))
    assert again.initial_state is not None
    assert np.array_equal(again.initial_state.queue.block, first.state.queue.block, equal_nan=True)
    run(again, p.fifo, initial_state=again.initial_state)


def test_the_initial_state_of_a_log_of_version_0_1_0_is_read(tmp_path: Path) -> None:
    cluster = nodes("v100", gpus=1)
    first = list(islice(iterate(Sim(JOBS, cluster), p.fifo, TraceModels(), Pack()), 2))[-1]
    rest = run(Sim(JOBS, cluster, initial_state=first.state), p.fifo, initial_state=first.state)
    write_log(rest, tmp_path / "run.jsonl")
    text = (tmp_path / "run.jsonl").read_text()
    assert text.count('"initial_state"') == 1
    (tmp_path / "old.jsonl").write_text(text.replace('"initial_state"', '"begins"'))
    old = Replay(read_log(tmp_path / "old.jsonl")).initial_state
    assert old is not None
    assert np.array_equal(old.queue.block, first.state.queue.block, equal_nan=True)

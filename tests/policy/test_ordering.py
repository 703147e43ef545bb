"""Orderings in cases small enough to do by hand."""

import math

import numpy as np
import pytest

from support.simulations import finish_times, first_start_times, simulate, started_jobs
from wattline import policy as p
from wattline.cluster import join_nodes, nodes
from wattline.core.actions import STOP
from wattline.core.jobs import PREEMPTIBLE_NEVER, Jobs
from wattline.core.plan import Plan
from wattline.core.protocols import Models, Policy
from wattline.core.snapshot import Snapshot
from wattline.errors import ConfigError
from wattline.models import Misjudged, TraceModels
from wattline.placement import Pack
from wattline.policy.chain import decide_again
from wattline.policy.parser import parse_policy


def three(**more: list[float]) -> Jobs:
    """Long, short, middle: submitted at 0, 10, 20."""
    return Jobs.of(id=["l", "s", "m"], submit_s=[0, 10, 20], gpus=[1, 1, 1], duration_s=[100, 10, 50], **more)  # type: ignore[arg-type]


def test_fifo_serves_in_order_of_submission() -> None:
    assert finish_times(simulate(three(), p.fifo)) == {"l": 100, "s": 110, "m": 160}


def test_sjf_takes_the_shortest_when_a_job_ends() -> None:
    jobs = Jobs.of(id=["l", "m", "s"], submit_s=[0, 10, 20], gpus=[1, 1, 1], duration_s=[100, 50, 10])
    assert finish_times(simulate(jobs, p.sjf)) == {"l": 100, "s": 110, "m": 160}


def test_srtf_stops_the_job_with_more_time_remaining() -> None:
    log = simulate(three(), p.srtf)
    assert finish_times(log) == {"s": 20, "m": 70, "l": 160}
    assert (log.actions[:, 0] == STOP).sum() == 1


def test_srsf_counts_gpus_too() -> None:
    jobs = Jobs.of(id=["wide", "thin"], submit_s=[0, 0], gpus=[4, 1], duration_s=[10, 30])
    assert started_jobs(simulate(jobs, p.srtf, gpus=4)) == ["wide", "thin"]
    assert started_jobs(simulate(jobs, p.srsf, gpus=4)) == ["thin", "wide"]


def test_edf_serves_the_earliest_deadline_first_and_jobs_without_one_last() -> None:
    log = simulate(three(deadline_s=[math.inf, 500, 300]), p.edf)
    assert finish_times(log) == {"s": 20, "m": 70, "l": 160}
    log = simulate(three(deadline_s=[math.inf, 500, 25]), p.edf)
    assert list(finish_times(log)) == ["s", "m", "l"]


def test_priority_serves_the_highest_first() -> None:
    assert finish_times(simulate(three(priority=[0, 1, 2]), p.priority)) == {"s": 20, "m": 70, "l": 160}


@pytest.mark.parametrize("policy", ["afs", "powerflow", "market"])
def test_before_an_elastic_policy_the_highest_priority_goes_first(policy: str) -> None:
    """Jobs of one GPU that come while another runs, the longest with the highest priority."""
    jobs = Jobs.of(
        submit_s=[0, 10, 20, 30],
        gpus=[1] * 4,
        duration_s=[1000, 100, 300, 900],
        priority=[0, 1, 2, 3],
        preemptible=[PREEMPTIBLE_NEVER] * 4,
    )
    assert started_jobs(simulate(jobs, parse_policy(f"priority+{policy}"))) == ["0", "3", "2", "1"]


def test_keep_lets_running_jobs_finish_and_preempt_does_not() -> None:
    assert finish_times(simulate(three(), p.chain(p.srtf, p.keep))) == {"l": 100, "s": 110, "m": 160}
    urgent = three(priority=[0, 1, 2])
    assert finish_times(simulate(urgent, p.chain(p.priority, p.keep, p.preempt))) == finish_times(
        simulate(urgent, p.priority)
    )


def test_las_serves_new_jobs_and_then_shares_the_rest() -> None:
    jobs = Jobs.of(id=["a", "b"], submit_s=[0, 100], gpus=[1, 1], duration_s=[1000, 1000])
    log = simulate(jobs, p.Las(quantum_s=100))
    assert first_start_times(log) == {"a": 0, "b": 100}
    assert finish_times(log) == {"a": 1900, "b": 2000}  # by turns of 100 s


def test_las_does_not_decide_again_before_a_waiting_job_is_passed() -> None:
    jobs = Jobs.of(id=["a", "b"], submit_s=[0, 500], gpus=[1, 1], duration_s=[5000, 400])
    log = simulate(jobs, p.Las(quantum_s=10))
    assert finish_times(log)["b"] == 900  # b has less service than a all the time
    assert len(log.actions) == 4


def test_tiresias_demotes_past_its_threshold_and_lets_queues_wait() -> None:
    jobs = Jobs.of(id=["a", "b"], submit_s=[0, 10], gpus=[1, 1], duration_s=[300, 50])
    log = simulate(jobs, p.Tiresias(thresholds_gpu_s=(100.0,), promote=0.0, quantum_s=1))
    assert first_start_times(log) == {"a": 0, "b": 100}
    assert finish_times(log) == {"b": 150, "a": 350}


def test_tiresias_promotes_jobs_that_have_waited_many_times_their_running_time() -> None:
    jobs = Jobs.of(
        id=["old", *(f"n{i}" for i in range(20))],
        submit_s=[0, *(90 + 90 * i for i in range(20))],
        gpus=[1] * 21,
        duration_s=[300, *([90] * 20)],
    )
    starved = simulate(jobs, p.Tiresias(thresholds_gpu_s=(90.0,), promote=0.0, quantum_s=1))
    promoted = simulate(jobs, p.Tiresias(thresholds_gpu_s=(90.0,), promote=2.0, quantum_s=1))
    assert finish_times(promoted)["old"] < finish_times(starved)["old"]


def test_ftf_serves_the_worst_treated_job() -> None:
    jobs = Jobs.of(id=["long", "short"], submit_s=[0, 0], gpus=[1, 1], duration_s=[1000, 100])
    assert finish_times(simulate(jobs, p.Ftf(quantum_s=10)))["short"] <= 220


@pytest.mark.parametrize("policy", [p.Las(100), p.Ftf(100), p.Tiresias((100.0, 1000.0)), p.Gandiva(100)])
def test_gpus_of_another_kind_do_not_change_the_order(policy: Policy) -> None:
    jobs = Jobs.of(submit_s=[0, 10], gpus=[1, 1], duration_s=[3000, 2500], gpu_kind=["v100", "v100"])
    alone = simulate(jobs, policy, nodes=nodes("v100", gpus=1))
    beside = simulate(jobs, policy, nodes=join_nodes(nodes("v100", gpus=1), nodes("a100", gpus=8)))
    assert finish_times(beside) == pytest.approx(finish_times(alone), rel=0.15)


@pytest.mark.slow
def test_tiresias_takes_back_a_promotion_in_time() -> None:
    jobs = Jobs.of(id=["a", "b"], submit_s=[0, 4000], gpus=[1, 1], duration_s=[60000, 200000])
    policy = p.Tiresias(within="submission")

    def asked_every_quantum(snapshot: Snapshot, models: Models) -> Plan:
        return decide_again(policy(snapshot, models), snapshot.now_s + policy.quantum_s)

    assert finish_times(simulate(jobs, policy)) == pytest.approx(
        finish_times(simulate(jobs, asked_every_quantum)), rel=2e-2
    )


def test_gandiva_takes_turns() -> None:
    jobs = Jobs.of(id=["a", "b"], submit_s=[0, 0], gpus=[1, 1], duration_s=[200, 200])
    log = simulate(jobs, p.Gandiva(slice_s=50), truth=TraceModels(packed=0.5))
    assert finish_times(log)["a"] - finish_times(log)["b"] <= 50


def test_gandiva_packs_only_when_a_pair_does_more_together() -> None:
    jobs = Jobs.of(id=["a", "b"], submit_s=[0, 0], gpus=[1, 1], duration_s=[120, 120])
    packed = simulate(jobs, p.Gandiva(slice_s=50))
    assert finish_times(packed) == {"a": 200, "b": 200}  # each at 0.6
    assert packed.actions[:, 2].tolist() == [0, 0]  # one group


def test_gandiva_keeps_a_pair_until_one_of_it_ends() -> None:
    jobs = Jobs.of(id=["a", "b", "c"], submit_s=[0, 0, 90], gpus=[1, 1, 1], duration_s=[120, 600, 60])
    log = simulate(jobs, p.Gandiva(slice_s=1000), gpus=2)
    assert len(log.actions) == 3  # a and b alone, c beside one of them; no job is ever stopped


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: p.Las(quantum_s=0), "quantum_s must be at least 1, got 0"),
        (lambda: p.Las(quantum_s=math.nan), "quantum_s must be at least 1"),
        (lambda: p.Tiresias(thresholds_gpu_s=(5.0, 3.0)), "must rise"),
        (lambda: p.Tiresias(promote=-1.0), "promote must be at least 0"),
        (lambda: p.Tiresias(within="start"), "within must be one of running, submission, got 'start'"),
        (lambda: p.Gandiva(slice_s=0.1), "slice_s must be at least 1"),
        (lambda: p.chain(), "chain got no stages, expected at least one"),
        (lambda: Pack("sometimes"), "backfill must be one of none, easy, greedy"),  # type: ignore[arg-type]
        (lambda: TraceModels(span_penalty=0.5), "span_penalty must be at least 1"),
    ],
)
def test_knobs_that_make_no_sense_are_refused(make: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()  # type: ignore[operator]


def test_policies_print_as_they_are_typed() -> None:
    assert p.spell(p.fifo) == "fifo"
    assert str(p.chain(p.Las(60.0), p.keep)) == "las:quantum=60s+keep"


def test_a_policy_that_misjudges_durations_orders_wrongly_but_the_truth_decides_the_ends() -> None:
    from wattline.backend.sim.faults import Overheads
    from wattline.backend.sim.simulator import Sim
    from wattline.cluster import nodes
    from wattline.loop.run import run

    jobs = Jobs.of(
        submit_s=np.zeros(40), gpus=np.ones(40, dtype=np.int64), duration_s=np.arange(1, 41) * 10.0
    )
    cluster = nodes("v100", gpus=1)

    def mean_end(models: TraceModels | Misjudged) -> float:
        log = run(Sim(jobs, cluster, overheads=Overheads(restart_s=0)), p.srtf, models)
        done = finish_times(log)
        assert max(done.values()) == pytest.approx(jobs.duration_s.sum())
        return float(np.mean(list(done.values())))

    assert mean_end(Misjudged(error=1.0)) > 1.02 * mean_end(TraceModels())

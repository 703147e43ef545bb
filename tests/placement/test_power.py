"""Nodes that go off and on, in cases small enough to check by hand, and against an offline optimum."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.simulations import finish_times, first_start_times, simulate
from wattline import policy as p
from wattline.backend.sim.faults import Faults
from wattline.backend.sim.simulator import Sim
from wattline.cluster import join_nodes, nodes
from wattline.core.actions import ACTION_NODE, ACTION_VERB, POWER_OFF, POWER_ON, START, STOP
from wattline.core.events import EVENT_AT_S, EVENT_ENERGY_J, EVENT_VERB, FINISHED
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.reasons import REASONS
from wattline.core.snapshot import Snapshot
from wattline.errors import ConfigError
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.placement import Buddy, Pack, Power
from wattline.testing.laws import check_energy_totals, check_no_oversubscription
from wattline.trace import synth


def build_nodes(count: int = 1, gpus: int = 1, **more: Any) -> Nodes:
    """Return nodes that idle at 100 W, draw 20 W off, boot in 40 s at 100 W, and break even after 50 s."""
    idle_w = 10.0 / gpus
    watts = {"base_w": 90.0, "idle_w": idle_w, "busy_w": 250.0, "off_w": 20.0, "boot_s": 40.0}
    return nodes("v100", count=count, gpus=gpus, **{**watts, **more})


def list_switches(log: Log, verb: int) -> list[tuple[float, int]]:
    """Return the times and nodes of the power actions of this *verb*."""
    rows = np.flatnonzero(log.actions[:, ACTION_VERB] == verb)
    return list(zip(log.action_s[rows].tolist(), log.actions[rows, ACTION_NODE].tolist(), strict=True))


def build_two_jobs(gap_s: float) -> Jobs:
    """Return one job of 100 s, and another that arrives *gap_s* after its end."""
    return Jobs.of(id=["a", "b"], submit_s=[0, 100 + gap_s], gpus=[1, 1], duration_s=[100, 100])


# -- one node


def test_energy_of_a_long_gap() -> None:
    plain = simulate(build_two_jobs(900), p.fifo, nodes=build_nodes())
    #              100 s of 90 + 250 W, 900 s idle, 100 s of 90 + 250 W
    assert plain.events[-1, EVENT_ENERGY_J] == pytest.approx(34_000 + 90_000 + 34_000)
    frugal = simulate(build_two_jobs(900), p.fifo, nodes=build_nodes(), place=Power())
    #                                            50 s idle, 850 s off, 40 s to boot
    assert frugal.events[-1, EVENT_ENERGY_J] == pytest.approx(34_000 + 5_000 + 17_000 + 4_000 + 34_000)
    check_energy_totals(frugal)
    assert finish_times(frugal) == {"a": 100.0, "b": 1140.0}


def test_a_job_waits_only_as_long_as_the_node_boots() -> None:
    log = simulate(build_two_jobs(900), p.fifo, nodes=build_nodes(), place=Power())
    assert first_start_times(log) == {"a": 0.0, "b": 1040.0}
    assert list_switches(log, POWER_OFF) == [(150.0, 0)]
    assert list_switches(log, POWER_ON) == [(1000.0, 0)]
    assert [(job, REASONS[reason].name) for job, reason in log.wait_reasons.tolist()] == [(1, "BOOTING")]


@pytest.mark.parametrize("gap_s", [0.0, 49.0, 50.0])
def test_a_node_is_not_switched_off_before_it_breaks_even(gap_s: float) -> None:
    log = simulate(build_two_jobs(gap_s), p.fifo, nodes=build_nodes(), place=Power())
    assert not list_switches(log, POWER_OFF)
    assert first_start_times(log)["b"] == 100 + gap_s


def test_a_node_that_saves_nothing_by_being_off_stays_on() -> None:
    log = simulate(build_two_jobs(5000), p.fifo, nodes=build_nodes(off_w=100.0), place=Power())
    assert not list_switches(log, POWER_OFF)


def test_a_node_that_boots_at_once_is_off_whenever_it_is_idle() -> None:
    log = simulate(build_two_jobs(10), p.fifo, nodes=build_nodes(boot_s=0.0), place=Power())
    assert list_switches(log, POWER_OFF)[0] == (100.0, 0)
    assert first_start_times(log) == {"a": 0.0, "b": 110.0}


def test_nodes_are_switched_in_rounds_too() -> None:
    log = simulate(build_two_jobs(900), p.fifo, nodes=build_nodes(), place=Power(), quantum_s=60.0)
    assert list_switches(log, POWER_OFF) == [(180.0, 0)]
    assert first_start_times(log) == {"a": 0.0, "b": 1080.0}


# -- several nodes


def test_spare_gpus_stay_on() -> None:
    jobs = Jobs.of(submit_s=[0, 5000], gpus=[1, 1], duration_s=[10, 10])
    for spare, stay in ((0, 0), (1, 1), (2, 1), (3, 2), (8, 4), (99, 4)):
        log = simulate(jobs, p.fifo, nodes=build_nodes(4, gpus=2), place=Power(spare=spare))
        off = {node for _, node in list_switches(log, POWER_OFF)}
        assert len(off) == 4 - stay
        assert off == set(range(stay, 4))  # placers use these last


def test_no_more_nodes_are_switched_on_than_are_needed() -> None:
    jobs = Jobs.of(
        submit_s=[0, 1000, 1010, 1020],
        gpus=[1, 6, 2, 3],  # two nodes; the rest of the second; one more
        duration_s=[10, 100, 100, 100],
    )
    for place in (Pack(), Buddy()):
        log = simulate(jobs, p.fifo, nodes=build_nodes(4, gpus=4), place=Power(place))
        assert [at_s for at_s, _ in list_switches(log, POWER_ON)] == [1000.0, 1000.0, 1020.0]
        assert first_start_times(log) == {"0": 0.0, "1": 1040.0, "2": 1040.0, "3": 1060.0}


def test_nodes_that_are_up_are_used_before_others_boot() -> None:
    # A job keeps node 1 on; a job of two nodes needs one more, with any number.
    jobs = Jobs.of(submit_s=[0, 0, 1000], gpus=[2, 2, 4], duration_s=[10, 970, 100])
    for place in (Pack(), Buddy()):
        log = simulate(jobs, p.fifo, nodes=build_nodes(4, gpus=2), place=Power(place))
        assert len(list_switches(log, POWER_ON)) == 1
        assert first_start_times(log)["2"] == 1040.0


def test_a_node_that_is_up_waits_for_those_that_boot_for_the_same_job() -> None:
    # Node 0 is idle from 70 s on, when a job arrives that needs both nodes.
    jobs = Jobs.of(submit_s=[0, 0, 70], gpus=[1, 1, 2], duration_s=[70, 10, 100])
    log = simulate(jobs, p.fifo, nodes=build_nodes(2, boot_s=400.0, boot_w=10.0), place=Power())
    assert list_switches(log, POWER_OFF)[0] == (60.0, 1)
    assert first_start_times(log)["2"] == 470.0  # long after node 0, idle since 70 s, would have gone off
    assert len(list_switches(log, POWER_OFF)) == 1


def test_a_node_that_booted_for_a_job_that_went_elsewhere_goes_off_again() -> None:
    # c makes node 1 boot at 1000 s, but takes node 0, which a leaves at 1010 s.
    jobs = Jobs.of(
        id=list("abcd"), submit_s=[0, 0, 1000, 3000], gpus=[1, 1, 1, 1], duration_s=[1010, 10, 100, 10]
    )
    log = simulate(jobs, p.fifo, nodes=build_nodes(2), place=Power())
    assert first_start_times(log)["c"] == 1010.0
    assert list_switches(log, POWER_ON)[0] == (1000.0, 1)
    assert (1090.0, 1) in list_switches(log, POWER_OFF)  # 50 s after it has booted
    assert len(list_switches(log, POWER_ON)) == 2


def test_a_running_job_is_not_stopped_for_nodes_that_still_boot() -> None:
    # The first in line takes both nodes once the second has booted, and not before.
    jobs = Jobs.of(
        id=["low", "high"], submit_s=[0, 1000], gpus=[1, 2], duration_s=[2000, 100], priority=[0, 5]
    )
    log = simulate(jobs, p.priority, nodes=build_nodes(2), place=Power())
    assert first_start_times(log)["high"] == 1040.0
    assert finish_times(log) == {"high": 1140.0, "low": 2100.0}


def test_a_node_boots_for_a_job_that_moves_to_make_room() -> None:
    # The last job needs the large node; the job there fits on the small one, which is off.
    cluster = join_nodes(build_nodes(1, gpus=8), build_nodes(1, gpus=4))
    jobs = Jobs.of(
        id=["gone", "moves", "large"], submit_s=[0, 1, 1000], gpus=[4, 4, 8], duration_s=[10, 5000, 100]
    )
    log = simulate(jobs, p.fifo, nodes=cluster, place=Power(Buddy()))
    assert list_switches(log, POWER_ON) == [(1000.0, 1)]
    assert first_start_times(log)["large"] == 1040.0
    assert [REASONS[reason].name for job, reason in log.wait_reasons.tolist() if job == 2] == ["BOOTING"]


def test_a_large_job_is_not_overtaken_forever_because_nodes_are_off() -> None:
    # Singles keep one of two nodes busy; the other goes off. The pair must still start.
    singles = 40
    jobs = Jobs.of(
        id=["pair", *(f"single-{n}" for n in range(singles))],
        submit_s=[5.0, *(90.0 * n for n in range(singles))],
        gpus=[2, *([1] * singles)],
        duration_s=[10.0, *([100.0] * singles)],
    )
    log = simulate(jobs, p.fifo, nodes=build_nodes(2), place=Power())
    assert first_start_times(log)["pair"] < 400.0


@pytest.mark.slow
def test_failed_nodes_are_neither_booted_nor_waited_for() -> None:
    jobs = synth(count=60, seed=4, gpus_total=8, load=0.3)
    for seed in range(5):
        log = simulate(
            jobs,
            p.fifo,
            nodes=build_nodes(4, gpus=2),
            place=Power(Buddy()),
            faults=Faults(node_mtbf_s=20_000.0, node_repair_s=3000.0),
            seed=seed,
        )
        check_no_oversubscription(log)
        check_energy_totals(log)
        assert np.count_nonzero(log.events[:, EVENT_VERB] == FINISHED) == len(jobs)


@pytest.mark.parametrize("policy", [p.fifo, p.Las(60.0), p.Gandiva(60.0)])
@pytest.mark.parametrize("place", [Pack(), Buddy()])
def test_a_lightly_loaded_cluster_uses_less_energy(place: Any, policy: Any) -> None:
    jobs = synth(count=150, seed=3, gpus_total=32, load=0.2)
    cluster = build_nodes(8, gpus=4)
    plain = simulate(jobs, policy, nodes=cluster, place=place)
    frugal = simulate(jobs, policy, nodes=cluster, place=Power(place))
    assert len(finish_times(frugal)) == len(jobs)
    assert frugal.events[-1, EVENT_ENERGY_J] < plain.events[-1, EVENT_ENERGY_J]


def test_a_negative_spare_is_refused() -> None:
    with pytest.raises(ConfigError, match="spare must be at least 0, got -1"):
        Power(spare=-1)


# -- against an offline optimum


@given(
    gaps_s=st.lists(st.floats(0.0, 400.0), min_size=1, max_size=12),
    off_w=st.floats(0.0, 99.0),
    boot_s=st.floats(1.0, 100.0),
    boot_w=st.floats(1.0, 500.0),
)
def test_idle_energy_is_at_most_twice_that_of_an_offline_optimum(
    gaps_s: list[float], off_w: float, boot_s: float, boot_w: float
) -> None:
    submit_s = np.cumsum([0.0, *(gap_s + 10.0 for gap_s in gaps_s)])
    jobs = Jobs.of(submit_s=submit_s, gpus=np.ones(len(submit_s)), duration_s=np.full(len(submit_s), 10.0))
    cluster = build_nodes(off_w=off_w, boot_s=boot_s, boot_w=boot_w)
    log = simulate(jobs, p.fifo, nodes=cluster, place=Power())
    done_s = log.events[log.events[:, EVENT_VERB] == FINISHED, EVENT_AT_S]
    idle_s = np.maximum(0.0, submit_s[1:] - done_s[:-1])
    best_j = np.minimum(100.0 * idle_s, off_w * idle_s + boot_s * boot_w).sum()
    busy_j = len(jobs) * 10.0 * (90.0 + 250.0)
    assert log.events[-1, EVENT_ENERGY_J] - busy_j <= 2 * best_j * (1 + 1e-9) + 1e-6
    assert len(done_s) == len(jobs)
    assert math.isfinite(best_j)


@given(
    submit_s=st.lists(st.floats(0.0, 3000.0), min_size=1, max_size=20),
    gpus=st.lists(st.sampled_from((1, 2, 3, 4, 8, 12)), min_size=20, max_size=20),
    duration_s=st.lists(st.floats(0.0, 600.0), min_size=20, max_size=20),
    spare=st.sampled_from((0, 0, 3)),
    boot_s=st.sampled_from((0.0, 40.0, 300.0)),
)
def test_every_job_finishes_and_nodes_do_not_flap(
    submit_s: list[float], gpus: list[int], duration_s: list[float], spare: int, boot_s: float
) -> None:
    count = len(submit_s)
    jobs = Jobs.of(submit_s=submit_s, gpus=gpus[:count], duration_s=duration_s[:count])
    for policy in (p.fifo, p.Las(60.0)):
        for place in (Pack(), Buddy(), Buddy("none")):
            log = simulate(
                jobs, policy, nodes=build_nodes(3, gpus=4, boot_s=boot_s), place=Power(place, spare)
            )
            assert len(finish_times(log)) == count
            starts = np.count_nonzero(log.actions[:, ACTION_VERB] == START)
            assert len(list_switches(log, POWER_ON)) <= starts


def test_a_job_that_grows_into_nodes_that_are_off_keeps_its_lease_until_they_are_up() -> None:
    cluster = nodes("a100", count=2, gpus=8, boot_s=200.0)

    def plan_growth(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        rows = np.arange(len(snapshot.queue), dtype=np.int64)
        gpus = np.full(len(rows), 16 if snapshot.now_s >= 5000 else 8, dtype=np.int64)
        return Plan(rows, gpus, rows, next_decision_s=5000.0 if snapshot.now_s < 5000 else math.inf)

    one = Jobs.of(submit_s=[0], gpus=[8], duration_s=[20_000])
    log = run(Sim(one, cluster), plan_growth, place=Power(Pack()))
    stops = log.action_s[log.actions[:, ACTION_VERB] == STOP]
    ons = log.action_s[log.actions[:, ACTION_VERB] == POWER_ON]
    assert ons.tolist() == [5000.0]
    assert stops.tolist() == [5200.0]

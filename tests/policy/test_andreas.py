"""Energy and lateness in money."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import wattline as wl
from support.simulations import finish_times, first_start_times, simulate
from wattline import policy as p
from wattline.core.actions import RETUNE, START, STOP
from wattline.core.jobs import Jobs
from wattline.core.reasons import REASONS, Reason
from wattline.energy.time_series import TimeSeries
from wattline.errors import ConfigError
from wattline.optimize import METHODS
from wattline.placement import Pack, Power
from wattline.testing import PolicyContract
from wattline.testing.scenarios import Scenario, scenarios


class TestAndreas(PolicyContract):
    policy = p.Andreas(tries=10)
    place = Pack()

    @pytest.mark.slow
    @settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(scenario=scenarios(max_jobs=10))  # each decision is a program of integers
    def test_a_run_obeys_every_law(self, scenario: Scenario) -> None:
        self.check_scenario(scenario)


class TestAndreasBySearch(PolicyContract):
    policy = p.Andreas("search", "to_the_end", tries=10, off=0)
    place = Pack()


class TestFirstPrinciple(PolicyContract):
    policy = p.FirstPrinciple("edf")
    place = Pack()


@pytest.mark.slow
class TestFirstPrincipleAlone(PolicyContract):
    policy = p.FirstPrinciple("priority", exclusive=1)
    place = Pack()


MIXED = wl.join_nodes(wl.nodes("v100", count=1, gpus=4), wl.nodes("t4", count=1, gpus=4))


def job(hours: float = 1.0, due_h: float = np.inf, **more: object) -> Jobs:
    return Jobs.of(
        id=["a"], submit_s=[0.0], gpus=[1], duration_s=[3600 * hours], deadline_s=[3600 * due_h], **more
    )


def test_jobs_with_time_run_frugally_and_urgent_jobs_run_fast() -> None:
    relaxed = simulate(
        job(1, 20.0, late_per_h=[50.0], max_gpus=[4]),
        p.Andreas(),
        nodes=wl.nodes("v100", gpus=4),
        place=Power(),
    )
    pressed = simulate(
        job(1, 0.35, late_per_h=[50.0], max_gpus=[4]),
        p.Andreas(),
        nodes=wl.nodes("v100", gpus=4),
        place=Power(),
    )
    assert finish_times(pressed)["a"] <= 0.35 * 3600
    assert finish_times(relaxed)["a"] > finish_times(pressed)["a"]
    assert wl.report(relaxed).energy_lease_j < wl.report(pressed).energy_lease_j
    assert relaxed.actions[0, 5] > 0  # under a power cap


@pytest.mark.slow
def test_work_waits_for_cheap_hours_if_there_is_time() -> None:
    night = wl.Price(TimeSeries((0.0, 36_000.0), (0.5, 0.1), every_s=86_400.0))
    policy, one = p.Andreas(price=night), wl.nodes("v100", gpus=1)
    patient = simulate(job(1, 20.0), policy, nodes=one, place=Power())
    assert first_start_times(patient)["a"] == 36_000.0 + one.boot_s[0]
    assert REASONS[int(patient.wait_reasons[0, 1])] == Reason.CHEAPER_LATER
    hurried = simulate(job(1, 9.0), policy, nodes=one, place=Power())
    assert first_start_times(hurried)["a"] == 0.0
    nameless = simulate(job(1), policy, nodes=one, place=Power())  # it has no deadline, so it may not wait
    assert first_start_times(nameless)["a"] == 0.0


@pytest.mark.slow
def test_cheap_hours_that_come_too_late_are_not_waited_for() -> None:
    # Two hours of work, due half an hour after energy gets cheaper.
    price = wl.Price(TimeSeries((0.0, 36_000.0), (0.5, 0.1)))
    jobs = job(2, 38_000 / 3600, late_per_h=[20.0], max_gpus=[1])
    found = wl.report(wl.run(wl.Sim(jobs, wl.nodes("v100", gpus=1)), p.Andreas(price=price), price=price))
    assert found.deadline_misses == 0


@pytest.mark.slow
def test_no_job_waits_long_for_a_decision_that_is_no_longer_valid() -> None:
    # One is late by now and takes ten days; two come that are due in four.
    jobs = Jobs.of(
        submit_s=[0, 10, 10],
        gpus=[1, 1, 1],
        max_gpus=[1, 1, 1],
        duration_s=[10 * 86_400, 3600, 3600],
        deadline_s=[100, 90 * 3600, 90 * 3600],
        late_per_h=[50, 1000, 1000],
    )
    log = simulate(jobs, p.Andreas(), nodes=wl.nodes("v100", gpus=1))
    assert (np.array([finish_times(log)["1"], finish_times(log)["2"]]) <= 90 * 3600).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "price", [wl.Price.flat(0.0), wl.Price(TimeSeries((0.0, 36_000.0), (0.5, 0.0), 86_400.0))]
)
def test_energy_that_costs_nothing_keeps_no_job_waiting(price: wl.Price) -> None:
    jobs = wl.synth(count=10, seed=1, gpus_total=8, deadlines=0.5)
    found = wl.report(simulate(jobs, p.Andreas(price=price), nodes=wl.nodes("v100", gpus=8), place=Power()))
    assert found.finished == 10


def test_small_changes_of_the_price_stop_no_job() -> None:
    price = wl.Price(TimeSeries((0.0, 300.0), (0.20, 0.19), every_s=600.0))
    log = simulate(
        job(2, 80_000 / 3600, late_per_h=[1.0], max_gpus=[1]),
        p.Andreas(price=price),
        nodes=wl.nodes("v100", gpus=1),
        overheads=wl.Overheads(restart_s=30.0),
    )
    assert not (log.actions[:, 0] == STOP).any()


def test_a_stop_that_gains_nothing_is_not_made() -> None:
    # Equal jobs, one after the other on one GPU, all due much later.
    jobs = Jobs.of(
        submit_s=3600.0 * np.arange(10), gpus=[1] * 10, max_gpus=[1] * 10, duration_s=[36_000.0] * 10,
        deadline_s=[2000 * 3600.0] * 10, late_per_h=[1.0] * 10,
    )  # fmt: skip
    log = simulate(
        jobs,
        p.Andreas(restart_s=3000.0),
        nodes=wl.nodes("v100", gpus=1),
        overheads=wl.Overheads(restart_s=3000.0),
    )
    assert not (log.actions[:, 0] == STOP).any()


def test_a_job_that_does_not_fit_has_no_price_as_its_reason() -> None:
    price = wl.Price(TimeSeries((0.0, 36_000.0), (0.5, 0.1)))
    jobs = Jobs.of(
        submit_s=[0, 0], gpus=[1, 1], max_gpus=[1, 1], duration_s=[3600.0] * 2, deadline_s=[9000.0, 60_000.0]
    )
    log = simulate(jobs, p.Andreas(objective="to_the_end", price=price), gpus=1)
    assert Reason.CHEAPER_LATER not in {REASONS[code] for code in log.wait_reasons[:, 1].tolist()}


def test_a_job_that_fits_on_no_node_has_that_reason_and_others_run() -> None:
    jobs = Jobs.of(submit_s=[0, 0], gpus=[16, 1], min_gpus=[16, 1], duration_s=[10, 10], id=["a", "b"])
    log = simulate(jobs, p.Andreas(), nodes=MIXED)
    assert "b" in finish_times(log)
    assert REASONS[int(log.wait_reasons[-1, 1])] == Reason.NO_NODE


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_finishes_all_jobs_and_reports_its_gap(method: str) -> None:
    jobs = wl.synth(count=25, seed=1, gpus_total=8, deadlines=1.0)
    log = simulate(jobs, p.Andreas(method, tries=20), nodes=MIXED, place=Power())
    found = wl.report(log)
    assert found.finished + found.unfinished == 25
    assert (
        found.unfinished == log.wait_reasons[log.wait_reasons[:, 1] == REASONS.index(Reason.NO_NODE)].shape[0]
    )
    if method == "exact":
        assert found.gap_max <= 1e-3
        assert found.gap_unknown == 0
        assert "from the best decision" in str(found)
    else:
        assert found.gap_unknown > 0


@pytest.mark.slow
def test_restarts_that_cost_much_are_few() -> None:
    jobs = wl.synth(count=40, seed=2, gpus_total=8, deadlines=1.0, load=0.7)
    stops = {}
    for restart_s in (0.0, 3000.0):
        log = simulate(
            jobs,
            p.Andreas(restart_s=restart_s),
            nodes=MIXED,
            place=Power(),
            overheads=wl.Overheads(restart_s=restart_s),
        )
        stops[restart_s] = int((log.actions[:, 0] == STOP).sum())
    assert stops[3000.0] < 0.8 * stops[0.0]


@pytest.mark.slow
def test_a_run_can_be_replayed() -> None:
    jobs = wl.synth(count=15, seed=1, gpus_total=8, deadlines=1.0)
    policy = p.Andreas()
    log = simulate(jobs, policy, nodes=MIXED, place=Power())
    again = wl.run(wl.Replay(log), policy, place=Power())
    assert np.array_equal(again.actions, log.actions)


@pytest.mark.slow
def test_it_composes_with_stages_before_and_behind() -> None:
    jobs = wl.synth(count=15, seed=1, gpus_total=8, deadlines=1.0)
    log = simulate(jobs, p.chain(p.edf, p.Andreas("search"), p.Cap(eta=1.0)), nodes=MIXED, place=Power())
    alone = simulate(jobs, p.Andreas("search"), nodes=MIXED, place=Power())
    assert wl.report(log).finished == wl.report(alone).finished

    def mean_cap(run: wl.Log) -> float:
        return float(run.actions[run.actions[:, 0] == START, 5].mean())

    assert mean_cap(log) < mean_cap(alone)  # the tighter of two caps holds


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"method": "magic"}, "method must be one of exact"),
        ({"objective": "profit"}, "objective must be one of rolling"),
        ({"tries": 0}, "tries must be at least 1"),
        ({"patience": 0.5}, "patience must be at least 1"),
        ({"off": 2}, "off must be 0 or 1"),
        ({"node_limit": 0}, "node_limit must be at least 1"),
        ({"gap": float("nan")}, "gap must be at least 0"),
    ],
)
def test_wrong_knobs_are_named(knobs: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        p.Andreas(**knobs)  # type: ignore[arg-type]


def test_the_baselines_serve_in_order_and_keep_assignments() -> None:
    jobs = Jobs.of(
        id=["a", "b", "c"],
        submit_s=[0, 1, 2],
        gpus=[1, 1, 1],
        duration_s=[100, 100, 100],
        deadline_s=[5000, 900, 400],
        late_per_h=[1, 2, 9],
        max_gpus=[1, 1, 1],
    )
    for order, first in (("fifo", "b"), ("edf", "c"), ("priority", "c")):
        log = simulate(jobs, p.FirstPrinciple(order), gpus=1)
        assert sorted(finish_times(log), key=finish_times(log).get)[1] == first  # type: ignore[arg-type]
        assert not (log.actions[:, 0] == STOP).any()


def test_alone_means_a_node_for_each() -> None:
    jobs = Jobs.of(id=["a", "b"], submit_s=[0, 0], gpus=[1, 1], max_gpus=[1, 1], duration_s=[100, 100])
    assert finish_times(simulate(jobs, p.FirstPrinciple("fifo", exclusive=1), gpus=2)) == {
        "a": 100.0,
        "b": 200.0,
    }
    assert finish_times(simulate(jobs, p.FirstPrinciple("fifo"), gpus=2)) == {"a": 100.0, "b": 100.0}


@pytest.mark.slow
def test_jobs_without_deadlines_run_too() -> None:
    jobs = wl.synth(count=60, seed=4, gpus_total=8, deadlines=0.0, load=1.2)
    found = wl.report(simulate(jobs, p.Andreas("search", tries=20), nodes=MIXED, place=Power()))
    fifo = wl.report(simulate(jobs, p.fifo, nodes=MIXED))
    assert found.finished == 60
    assert found.ftf_max < fifo.ftf_max


@pytest.mark.slow
def test_caps_are_changed_without_a_stop() -> None:
    jobs = wl.synth(count=30, seed=0, gpus_total=24, deadlines=1.0)
    nodes = wl.join_nodes(wl.nodes("v100", count=2, gpus=8), wl.nodes("a100", count=2, gpus=4))
    log = simulate(jobs, p.Andreas(), nodes=nodes, place=Power())
    assert (log.actions[:, 0] == RETUNE).any()


def test_a_kind_that_a_job_does_not_accept_is_not_given() -> None:
    picky = job(1, 20.0, gpu_kind=["v100"])
    log = simulate(picky, p.Andreas(), nodes=MIXED, place=Power())
    assert log.nodes.kind.word(int(log.actions[log.actions[:, 1] == 0][0, 3])) == "v100"

"""Nodes are down when their outages were recorded, and failures never stop all progress."""

from __future__ import annotations

import math

import pytest

from wattline.backend.sim.faults import Faults
from wattline.backend.sim.simulator import Sim
from wattline.cluster import parse_cluster
from wattline.core.events import EVENT_VERB, NODE_BACK, NODE_LOST
from wattline.core.jobs import Jobs
from wattline.errors import ConfigError
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.policy.parser import parse_policy
from wattline.reports import report


def simulate(faults: Faults, jobs: Jobs, cluster: str = "1xv100:1", quantum_s: float | None = None) -> Log:
    sim = Sim(jobs, parse_cluster(cluster), faults=faults, quantum_s=quantum_s)
    return run(sim, parse_policy("fifo"))


def one_job(duration_s: float = 100.0) -> Jobs:
    return Jobs.of(submit_s=[0.0], gpus=[1], duration_s=[duration_s])


def node_events(log: Log) -> list[tuple[bool, float]]:
    verbs = log.events[:, EVENT_VERB]
    rows = log.events[(verbs == NODE_LOST) | (verbs == NODE_BACK)]
    return [(verb == NODE_BACK, time_s) for verb, _, time_s, *_ in rows.tolist()]


def test_a_job_waits_for_the_end_of_an_outage_and_starts_again() -> None:
    log = simulate(Faults(outages=((0, 40.0, 200.0),)), one_job())
    assert node_events(log) == [(False, 40.0), (True, 200.0)]
    assert report(log).jct_mean_s == pytest.approx(200.0 + 30.0 + 100.0)  # restart and all of its work


def test_outages_that_touch_are_one_and_those_before_the_first_job_are_cut() -> None:
    outages = ((0, 30.0, 60.0), (0, -500.0, 20.0), (0, 20.0, 30.0), (0, -9.0, -1.0))
    log = simulate(Faults(outages=outages), one_job())
    assert node_events(log) == [(False, 0.0), (True, 60.0)]
    assert report(log).jct_mean_s == pytest.approx(160.0)


def test_a_node_that_stays_down_leaves_its_jobs_unfinished() -> None:
    result = report(simulate(Faults(outages=((0, 40.0, math.inf),)), one_job()))
    assert result.finished == 0


def test_other_nodes_go_on() -> None:
    log = simulate(Faults(outages=((0, 40.0, math.inf),)), one_job(), "2xv100:1")
    assert report(log).jct_mean_s == pytest.approx(40.0 + 30.0 + 100.0)


def test_an_outage_shorter_than_a_round_happens_or_does_not_but_ends() -> None:
    log = simulate(Faults(outages=((0, 10.0, 20.0),)), one_job(), quantum_s=60.0)
    assert node_events(log) == []
    assert report(log).finished == 1


def test_failures_and_outages_together_leave_every_node_up_or_under_repair() -> None:
    outages = tuple((node, 500.0 * n, 500.0 * n + 300.0) for node in range(2) for n in range(1, 9))
    faults = Faults(node_mtbf_s=700.0, node_repair_s=200.0, checkpoint_s=100.0, outages=outages)
    jobs = Jobs.of(submit_s=[0.0, 10.0, 20.0], gpus=[1, 1, 1], duration_s=[900.0, 800.0, 700.0])
    log = simulate(faults, jobs, "2xv100:1")
    assert report(log).finished == 3
    state = [True, True]
    for verb, node, *_ in log.events.tolist():
        if verb in (NODE_LOST, NODE_BACK):
            assert state[int(node)] == (verb == NODE_LOST), "a node is lost when up, and back when down"
            state[int(node)] = verb == NODE_BACK


def test_nodes_that_fail_before_any_checkpoint_are_refused() -> None:
    with pytest.raises(ConfigError, match="nodes fail every 3 s on average, so job 0 never ends") as caught:
        simulate(Faults(node_mtbf_s=3.0), one_job(3600.0))
    assert "at least 196 s" in caught.value.hint
    assert report(simulate(Faults(node_mtbf_s=50.0), one_job(100.0))).finished == 1


def test_an_outage_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected an end not before"):
        Faults(outages=((0, 5.0, 4.0),))

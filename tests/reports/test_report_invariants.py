import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wattline as wl
from support.random_decisions import random_logs
from wattline import policy
from wattline.core.actions import ACTION_VERB, POWER_OFF, POWER_ON, RETUNE, START, STOP
from wattline.core.events import (
    ARRIVED,
    EVENT_AT_S,
    EVENT_ENERGY_J,
    EVENT_VERB,
    FAILED,
    FINISHED,
    LEASE_END_EVENTS,
    LOST,
    NODE_BACK,
    NODE_LOST,
    RAN,
    STOPPED,
)
from wattline.reports import build_plot_data, build_plot_series, report
from wattline.reports.summary import build_run_tables

pytestmark = pytest.mark.slow

POLICIES = (
    policy.fifo,
    policy.srtf,
    policy.Las(),
    policy.Gandiva(slice_s=200.0),
    policy.Gandiva(slice_s=37.0),
)
CLUSTERS = ("1xv100:2", "2xv100:4", "2xv100:2+1xa100:4,base_w=77")


@st.composite
def sensible_logs(draw):
    count = draw(st.integers(1, 14))

    def column(values):
        return draw(st.lists(values, min_size=count, max_size=count))

    jobs = wl.Jobs.of(
        submit_s=column(st.integers(0, 800)),
        gpus=column(st.sampled_from((1, 1, 2, 4))),
        duration_s=column(st.one_of(st.integers(0, 900), st.floats(0.5, 500.0))),
        deadline_s=column(st.one_of(st.just(float("inf")), st.integers(1, 2000))),
    )
    faults = wl.Faults(
        node_mtbf_s=draw(st.sampled_from((float("inf"), 400.0, 2000.0))),
        node_repair_s=100.0,
        job_failure=draw(st.sampled_from((0.0, 0.3))),
        retries=1,
        checkpoint_s=50.0,
    )
    sim = wl.Sim(
        jobs,
        wl.parse_cluster(draw(st.sampled_from(CLUSTERS))),
        quantum_s=draw(st.sampled_from((None, 60.0, 7.5))),
        faults=faults,
        seed=draw(st.integers(0, 5)),
    )
    return wl.run(sim, draw(st.sampled_from(POLICIES)))


def logs():
    """Runs of known policies, and runs in which caps, batch sizes and switches change at random."""
    return st.one_of(sensible_logs(), random_logs(max_jobs=6))


@settings(max_examples=60, deadline=None)
@given(logs())
def test_leases_idle_gpus_nodes_boots_and_nodes_off_use_all_the_energy_and_no_more(log):
    found = report(log)
    node_j = found.energy_base_j + found.energy_boot_j + found.energy_off_j
    parts_j = found.energy_lease_j + found.energy_idle_gpu_j + node_j
    assert parts_j == pytest.approx(found.energy_j, rel=1e-9, abs=1e-3)


@settings(max_examples=60, deadline=None)
@given(logs())
def test_leases_report_the_energy_that_a_report_gives_them(log):
    reported_j = log.events[np.isin(log.events[:, EVENT_VERB], LEASE_END_EVENTS), EVENT_ENERGY_J].sum()
    assert report(log).energy_lease_j == pytest.approx(reported_j, rel=1e-9, abs=1e-3)


@settings(max_examples=40, deadline=None)
@given(logs())
def test_the_power_curve_integrates_to_the_energy(log):
    line = build_run_tables(log).timeline
    arrived_s = log.events[log.events[:, EVENT_VERB] == ARRIVED, EVENT_AT_S].min()
    until_s = log.events[-1, EVENT_AT_S]
    at_s = np.clip(np.append(line.at_s, until_s), arrived_s, until_s)
    assert line.power_w @ np.diff(at_s) == pytest.approx(report(log).energy_j, rel=1e-9, abs=1e-3)


@settings(max_examples=40, deadline=None)
@given(logs())
def test_a_walk_in_plain_python_finds_the_same_gpu_seconds_and_service(log):
    gpu_s, service_s = walk_log(log)
    tables = build_run_tables(log)
    assert report(log).gpu_hours * 3600 == pytest.approx(gpu_s, rel=1e-9, abs=1e-6)
    expected = [service_s.get(job, 0.0) for job in tables.outcomes.job.tolist()]
    assert tables.outcomes.service_s.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-6)


def walk_log(log):
    """Return GPU-seconds and service per job, one event after the other."""
    holds, gpu_s, service_s, last_s = {}, 0.0, {}, 0.0  # job → (group, GPUs, since)

    def pass_time(now_s):
        nonlocal gpu_s, last_s
        gpu_s += (now_s - last_s) * sum({group: gpus for group, gpus, _ in holds.values()}.values())
        last_s = now_s

    def end(job, now_s):
        group, _, since_s = holds.pop(job)
        service_s[job] = service_s.get(job, 0.0) + now_s - since_s
        rest = sorted(other for other, hold in holds.items() if hold[0] == group)
        if group == job:
            holds.update({other: (rest[0], *holds[other][1:]) for other in rest})

    for now_s, events, actions, *_ in log:
        for event in events:
            if event.verb in (LOST, FINISHED, FAILED) and event.job in holds:
                pass_time(event.at_s)
                end(event.job, event.at_s)
        pass_time(now_s)
        for verb, job, group, _, gpus, *_ in actions.tolist():
            if verb == STOP:
                end(job, now_s)
            elif verb == START:
                before = holds[job][1] if job in holds else 0
                holds[job] = (group, before + gpus, now_s)
    return gpu_s, service_s


@settings(max_examples=40, deadline=None)
@given(logs())
def test_free_gpus_are_those_without_a_lease_on_nodes_that_are_up(log):
    line = build_run_tables(log).timeline
    up, changes = np.ones(len(log.nodes), dtype=bool), []
    for now_s, events, actions, *_ in log:
        for event in events:
            if event.verb in (NODE_LOST, NODE_BACK):
                up[event.job] = event.verb == NODE_BACK
                changes.append((event.at_s, log.nodes.gpus @ up))
        for verb, _, _, node, *_ in actions.tolist():
            if verb == POWER_OFF:
                up[node] = False
                changes.append((now_s, log.nodes.gpus @ up))
    at_s, gpus = np.array([(-np.inf, log.nodes.gpus.sum()), *changes]).T
    gpus_up = gpus[np.searchsorted(at_s, line.at_s, side="right") - 1]
    assert (line.free + line.held == gpus_up).all()
    assert (line.partly_free >= 0).all()
    assert (line.partly_free <= line.free).all()


@settings(max_examples=40, deadline=None)
@given(logs())
def test_switches_are_counted_and_their_joules_are_possible(log):
    found = report(log)
    verbs = log.actions[:, ACTION_VERB].tolist()
    assert (found.retunes, found.boots) == (verbs.count(RETUNE), verbs.count(POWER_ON))
    assert found.boots <= verbs.count(POWER_OFF)
    span_s = float(np.ptp(log.events[log.events[:, EVENT_VERB] != RAN, EVENT_AT_S]))
    assert 0 <= found.energy_off_j <= span_s * log.nodes.off_w.sum() * (1 + 1e-9)
    assert 0 <= found.energy_boot_j <= span_s * log.nodes.boot_w.sum() * (1 + 1e-9)
    if POWER_OFF not in verbs:
        assert found.energy_off_j == found.energy_boot_j == 0


@settings(max_examples=40, deadline=None)
@given(logs())
def test_figures_are_possible(log):
    found = report(log)
    assert found.jobs == found.finished + found.failed + found.unfinished
    assert 0 <= found.gpu_utilisation <= 1 + 1e-9
    assert 0 <= found.fragmentation <= 1
    assert found.restarts <= found.preemptions + found.losses
    assert found.preemptions == (log.events[:, EVENT_VERB] == STOPPED).sum()
    if found.finished:
        assert found.jct_p50_s <= found.jct_p90_s <= found.jct_p99_s <= found.jct_max_s
        assert 0 <= found.wait_mean_s <= found.jct_mean_s
    json.dumps(found.as_dict(), allow_nan=False)


@settings(max_examples=40, deadline=None)
@given(logs())
def test_no_gpu_is_held_and_only_unfinished_jobs_wait_at_the_end(log):
    found, curves = report(log), build_plot_series(log)
    assert curves.waiting.value[-1] == found.unfinished
    assert curves.utilisation.value[-1] == 0
    assert (curves.waiting.value >= 0).all()
    assert curves.utilisation.value.max() <= 1


@settings(max_examples=10, deadline=None)
@given(log=logs())
def test_a_log_read_from_disk_has_the_same_report(log, tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "run.jsonl"
    wl.write_log(log, path)
    assert report(wl.read_log(path)).as_dict() == report(log).as_dict()


@settings(max_examples=10, deadline=None)
@given(logs())
def test_plot_data_survives_pickling(log):
    sent = build_plot_data(log)
    received = pickle.loads(pickle.dumps(sent))
    assert received.report.as_dict() == sent.report.as_dict() == report(log).as_dict()
    assert np.array_equal(received.jct_s, sent.jct_s)

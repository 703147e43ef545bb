import math

import numpy as np
import pytest

import wattline as wl
from wattline import policy
from wattline.core.actions import ACTION_COLUMNS, POWER_OFF, POWER_ON, RETUNE, START, STOP
from wattline.core.events import (
    ARRIVED,
    FAILED,
    FINISHED,
    LOST,
    METERED,
    NODE_BACK,
    NODE_LOST,
    RAN,
    Event,
    build_events,
)
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.loop.runlog import Log
from wattline.reports import build_plot_series, report
from wattline.reports.data.energy import MODELLED
from wattline.reports.data.lease_intervals import collect_lease_intervals
from wattline.reports.summary import build_run_tables

NO_HELD = np.empty((0, 2), dtype=np.int64)


def cluster(count: int = 1, gpus: int = 1) -> Nodes:
    return wl.nodes("v100", count=count, gpus=gpus, base_w=100.0, idle_w=10.0, busy_w=60.0)


def log_of(jobs: Jobs, nodes: Nodes, *rounds: tuple[float, list[Event], list[tuple[int, ...]]]) -> Log:
    """A log of rounds (time, events, actions)."""
    log = Log({"policy": "by hand", "place": "by hand", "seed": 0, "backend": "sim"}, jobs, nodes)
    for now_s, events, actions in rounds:
        table = np.zeros((len(actions), ACTION_COLUMNS), dtype=np.int64)
        for row, action in enumerate(actions):
            table[row, : len(action)] = action
        log.append(now_s, build_events(*events), table, NO_HELD)
    return log


def arrived(job: int, at_s: float = 0.0) -> Event:
    return Event(ARRIVED, job, at_s)


def finished(job: int, at_s: float, energy_j: float = 0.0) -> Event:
    return Event(FINISHED, job, at_s, energy_j=energy_j)


def metered(at_s: float, energy_j: float = 1.0) -> Event:
    return Event(METERED, -1, at_s, energy_j=energy_j)


def start(job: int, node: int = 0, gpus: int = 1, group: int | None = None) -> tuple[int, ...]:
    return (START, job, job if group is None else group, node, gpus, 0, 0)


def ran(job: int, at_s: float, watts: float) -> Event:
    return Event(RAN, job, at_s, rate=1.0, energy_j=watts)


def switch(verb: int, node: int) -> tuple[int, ...]:
    return (verb, -1, -1, node, 0, 0, 0)


def power(log: Log) -> list[tuple[float, float]]:
    """Return the times at which the power changed, and the new power."""
    line = build_run_tables(log).timeline
    new = np.diff(line.power_w, prepend=np.nan) != 0
    return list(zip(line.at_s[new].tolist(), line.power_w[new].tolist(), strict=True))


def two_jobs(**more):
    return wl.Jobs.of(submit_s=[0, 10], gpus=[1, 1], duration_s=[100, 50], **more)


@pytest.fixture
def queued():
    """One GPU: the second job waits 90 s for the first."""
    jobs = two_jobs(deadline_s=[math.inf, 120])
    return report(wl.run(wl.Sim(jobs, cluster()), policy.fifo))


def test_completion_times_of_two_jobs_on_one_gpu(queued):
    assert queued.jct_mean_s == 120
    assert queued.jct_p50_s == 120
    assert queued.jct_p90_s == pytest.approx(136)
    assert queued.jct_max_s == 140
    assert queued.makespan_s == 150


def test_waiting_of_two_jobs_on_one_gpu(queued):
    assert queued.wait_mean_s == 45
    assert queued.wait_p99_s == pytest.approx(89.1)
    assert queued.start_delay_mean_s == 45


def test_counts_of_two_jobs_on_one_gpu(queued):
    counts = (queued.jobs, queued.finished, queued.failed, queued.unfinished, queued.never_started)
    assert counts == (2, 2, 0, 0, 0)
    assert (queued.preemptions, queued.restarts, queued.losses) == (0, 0, 0)


def test_load_and_use_of_one_gpu(queued):
    assert queued.offered_load == 15  # 150 GPU-seconds asked for within 10 s
    assert queued.gpu_utilisation == 1
    assert queued.gpu_hours == 150 / 3600
    assert queued.fragmentation == 0


def test_energy_of_one_gpu_that_is_never_idle(queued):
    assert queued.energy_lease_j == 150 * 60
    assert queued.energy_idle_gpu_j == 0
    assert queued.energy_base_j == 150 * 100
    assert queued.energy_j == 150 * 160
    assert queued.energy_kwh == 150 * 160 / 3.6e6
    assert queued.energy_method == MODELLED


def test_lateness_and_fairness_of_two_jobs(queued):
    assert (queued.deadline_jobs, queued.deadline_misses) == (1, 1)
    assert queued.tardiness_mean_s == queued.tardiness_total_s == 30
    assert queued.ftf_mean == pytest.approx((1 + 2.8) / 2)
    assert queued.ftf_max == pytest.approx(2.8)


def test_a_preempted_job_waits_also_after_its_first_start():
    jobs = wl.Jobs.of(submit_s=[0, 10], gpus=[1, 1], duration_s=[100, 20])
    sim = wl.Sim(jobs, cluster(), overheads=wl.Overheads(restart_s=0.0))
    result = report(wl.run(sim, policy.srtf))
    assert (result.preemptions, result.restarts) == (1, 1)
    assert result.jct_mean_s == (120 + 20) / 2
    assert result.wait_mean_s == (20 + 0) / 2
    assert result.start_delay_mean_s == 0


def test_gpus_of_a_packed_pair_are_counted_once_also_when_its_leader_ends_first():
    pair = log_of(
        two_jobs(),
        cluster(),
        (0, [arrived(0), arrived(1)], [start(0), start(1, group=0)]),
        (30, [finished(0, 30, 30 * 30)], []),
        (100, [finished(1, 100, 30 * 30 + 70 * 60), metered(100)], []),
    )
    held = collect_lease_intervals(pair)
    assert held.job.tolist() == [0, 1, 1]
    assert held.group.tolist() == [0, 0, 1]
    assert held.start_s.tolist() == [0, 0, 30]
    assert held.end_s.tolist() == [30, 30, 100]
    assert report(pair).energy_lease_j == 100 * 60
    assert report(pair).gpu_utilisation == 1


def test_of_three_packed_jobs_the_smallest_number_left_leads():
    jobs = wl.Jobs.of(submit_s=[0, 0, 0], gpus=[1] * 3, duration_s=[9] * 3)
    trio = log_of(
        jobs,
        cluster(),
        (0, [arrived(0), arrived(1), arrived(2)], [start(0), start(2, group=0), start(1, group=0)]),
        (10, [finished(0, 10)], []),
        (20, [finished(1, 20)], []),
        (30, [finished(2, 30), metered(30)], []),
    )
    held = collect_lease_intervals(trio)
    leads = held.take(held.is_leader)
    assert list(zip(leads.job.tolist(), leads.start_s.tolist(), leads.end_s.tolist(), strict=True)) == [
        (0, 0, 10),
        (1, 10, 20),
        (2, 20, 30),
    ]
    assert report(trio).wait_mean_s == 0


def test_a_pair_that_parts_on_one_node_holds_twice_the_gpus_from_then_on():
    pair = log_of(
        two_jobs(),
        cluster(gpus=2),
        (0, [arrived(0), arrived(1)], [start(0), start(1, group=0)]),
        (40, [], [(STOP, 1, 0, -1, 0, 0, 0), start(1)]),
        (100, [finished(0, 100), finished(1, 100), metered(100)], []),
    )
    assert report(pair).gpu_hours * 3600 == 40 + 2 * 60


def test_seconds_of_a_job_that_spans_nodes_are_counted_once():
    jobs = wl.Jobs.of(submit_s=[0], gpus=[3], duration_s=[50])
    wide = log_of(
        jobs,
        cluster(count=2, gpus=2),
        (0, [arrived(0)], []),
        (10, [], [start(0, 0, 2), start(0, 1, 1)]),
        (60, [finished(0, 60), metered(60)], []),
    )
    result = report(wide)
    assert result.wait_mean_s == 10
    assert result.restarts == 0
    assert result.gpu_hours * 3600 == 150
    assert result.energy_idle_gpu_j == (4 * 60 - 150) * 10


def test_a_job_that_finishes_after_its_stop_action_holds_no_gpus_in_between():
    raced = log_of(
        two_jobs(),
        cluster(),
        (0, [arrived(0)], [start(0)]),
        (50, [], [(STOP, 0, 0, -1, 0, 0, 0)]),
        (52, [finished(0, 52), metered(52)], []),
    )
    assert collect_lease_intervals(raced).end_s.tolist() == [50]
    assert report(raced).jobs == 1


def test_a_job_that_ends_as_it_starts_is_over():
    jobs = wl.Jobs.of(submit_s=[0], gpus=[1], duration_s=[0])
    brief = log_of(jobs, cluster(), (0, [arrived(0)], [start(0)]), (0, [finished(0, 0), metered(0)], []))
    result = report(brief)
    assert (result.finished, result.makespan_s, result.gpu_utilisation) == (1, 0, 0)
    assert collect_lease_intervals(brief).end_s.tolist() == [0]


def test_free_gpus_scattered_over_partly_used_nodes_are_fragments_while_a_job_waits():
    jobs = wl.Jobs.of(submit_s=[0, 0, 0], gpus=[1, 1, 2], duration_s=[40, 100, 20])
    scattered = log_of(
        jobs,
        cluster(count=2, gpus=2),
        (0, [arrived(0), arrived(1), arrived(2)], [start(0, 0), start(1, 1)]),  # 2 free, both on used nodes
        (40, [finished(0, 40)], []),  # 3 free, and only one node is used in part
        (60, [], [start(2, 0, 2)]),  # no job waits
        (100, [finished(1, 100), finished(2, 100), metered(100)], []),
    )
    assert report(scattered).fragmentation == pytest.approx(40 / 60)


def test_a_node_that_is_down_draws_nothing():
    broken = log_of(
        two_jobs(),
        cluster(),
        (0, [arrived(0)], [start(0)]),
        (20, [Event(LOST, 0, 20, energy_j=20 * 60), Event(NODE_LOST, 0, 20)], []),
        (50, [Event(NODE_BACK, 0, 50)], [start(0)]),
        (130, [finished(0, 130, 80 * 60), metered(130)], []),
    )
    result = report(broken)
    assert result.energy_base_j == 100 * 100
    assert result.energy_lease_j == 100 * 60
    assert result.energy_idle_gpu_j == 0
    assert (result.losses, result.restarts, result.preemptions) == (1, 1, 0)


@pytest.fixture
def switched():
    """Two nodes of two GPUs; the second is off from 10 s to 60 s, boots, and is back at 90 s."""
    nodes = wl.nodes(
        "v100", count=2, gpus=2, base_w=100.0, idle_w=10.0, busy_w=60.0, off_w=5.0, boot_s=30.0, boot_w=200.0
    )
    return log_of(
        two_jobs(),
        nodes,
        (0, [arrived(0)], [start(0)]),
        (10, [ran(0, 0, 45.0), arrived(1, 10)], [switch(POWER_OFF, 1), (RETUNE, 0, 0, -1, 0, 150, 0)]),
        (20, [ran(0, 10, 30.0)], []),
        (60, [], [switch(POWER_ON, 1)]),
        (90, [Event(NODE_BACK, 1, 90)], [start(1, 1, 2)]),
        (100, [ran(1, 95, 77.0), finished(0, 100, 10 * 45 + 90 * 30), metered(100)], []),
        (140, [finished(1, 140, 50 * 77), Event(METERED, 0, 140, energy_j=1.0), metered(140, 1e6)], []),
    )


def test_nodes_that_are_off_or_boot_have_joules_of_their_own(switched):
    result = report(switched)
    assert result.energy_off_j == 50 * 5
    assert result.energy_boot_j == 30 * 200
    assert result.energy_base_j == 140 * 100 + (10 + 50) * 100
    assert result.energy_idle_gpu_j == 10 * (100 * 1 + 40 * 2 + 10 * 2)
    assert result.energy_lease_j == 10 * 45 + 90 * 30 + 50 * 77
    assert result.energy_j == 1e6  # the cluster's last reading, not a team's
    assert (result.boots, result.retunes) == (1, 1)


def test_power_is_the_reported_power_of_jobs_and_that_of_nodes(switched):
    assert power(switched) == [
        (0, 110 + 45 + 120),
        (10, 110 + 30 + 5),
        (60, 110 + 30 + 200),
        (90, 110 + 30 + 100 + 77),  # from the start of the lease, though the job had started up at 95 s
        (100, 120 + 100 + 77),
        (140, 120 + 120),
    ]


def test_gpus_of_nodes_that_are_off_or_boot_are_not_free(switched):
    line = build_run_tables(switched).timeline
    assert line.free[np.isin(line.at_s, (0, 10, 60, 90, 100, 140))].tolist() == [3, 1, 1, 1, 2, 4]
    assert report(switched).fragmentation == 0  # a job waits from 10 s on, and the free GPU is the only one
    assert report(switched).gpu_utilisation == pytest.approx((100 + 2 * 50) / (4 * 140))
    assert build_plot_series(switched).power.value.max() == 110 + 30 + 200


def test_boots_and_cap_changes_are_shown_only_where_there_were_any(switched, queued):
    text = " ".join(str(report(switched)).split())
    assert "1 caps changed, 1 nodes switched on" in text
    assert "boots 0.6 %" in text
    assert "nodes off 0.0 %" in text
    assert "switched" not in str(queued)
    assert "off" not in str(queued).replace("offered", "")


def test_a_node_that_breaks_while_it_boots_draws_nothing_more():
    nodes = wl.nodes("v100", count=2, gpus=1, base_w=0.0, idle_w=0.0, off_w=1.0, boot_s=50.0, boot_w=9.0)
    log = log_of(
        two_jobs(),
        nodes,
        (0, [arrived(0)], [switch(POWER_OFF, 1)]),
        (10, [], [switch(POWER_ON, 1)]),
        (30, [Event(NODE_LOST, 1, 30)], []),
        (80, [Event(NODE_BACK, 1, 80), metered(80)], []),
    )
    result = report(log)
    assert (result.energy_off_j, result.energy_boot_j) == (10 * 1, 20 * 9)
    assert power(log) == [(0, 1), (10, 9), (30, 0)]


def test_a_node_that_still_boots_when_the_log_ends_has_booted_until_then():
    log = log_of(
        two_jobs(),
        wl.nodes("v100", count=1, gpus=1, off_w=1.0, boot_s=500.0, boot_w=9.0),
        (0, [arrived(0)], [switch(POWER_OFF, 0)]),
        (10, [], [switch(POWER_ON, 0)]),
        (30, [metered(30)], []),
    )
    assert (report(log).energy_off_j, report(log).energy_boot_j) == (10 * 1, 20 * 9)


def test_packed_jobs_draw_their_shares_and_the_remaining_job_draws_all():
    pair = log_of(
        two_jobs(),
        cluster(),
        (0, [arrived(0), arrived(1)], [start(0), start(1, group=0)]),
        (30, [ran(0, 0, 25.0), ran(1, 0, 35.0), finished(0, 30), ran(1, 30, 50.0)], []),
        (100, [finished(1, 100), metered(100)], []),
    )
    assert power(pair) == [(0, 160), (30, 150), (100, 110)]


def test_a_late_power_report_on_an_ended_lease_draws_nothing():
    late = log_of(
        two_jobs(),
        cluster(),
        (0, [arrived(0)], [start(0)]),
        (40, [ran(0, 0, 25.0), finished(0, 40), ran(0, 40, 33.0)], []),
        (50, [metered(50)], []),
    )
    assert power(late) == [(0, 125), (40, 110)]


def test_jobs_without_reported_watts_draw_the_busy_watts_of_the_nodes_table():
    unreported = log_of(
        two_jobs(),
        cluster(gpus=2),
        (0, [arrived(0)], [start(0, gpus=2)]),
        (40, [ran(0, 0, 0.0), finished(0, 40), metered(40)], []),
    )
    assert power(unreported) == [(0, 220), (40, 120)]


def test_failed_and_never_started_jobs_are_counted_but_have_no_completion_time():
    log = log_of(
        two_jobs(deadline_s=[1000, 1000]),
        cluster(),
        (0, [arrived(0)], [start(0)]),
        (10, [arrived(1, 10)], []),
        (30, [Event(FAILED, 0, 30), metered(30)], []),
    )
    result = report(log)
    assert (result.finished, result.failed, result.unfinished, result.never_started) == (0, 1, 1, 1)
    assert math.isnan(result.jct_mean_s)
    assert result.as_dict()["jct_mean_s"] is None
    assert result.deadline_misses == 1  # the deadline of the other job is still ahead


def test_without_a_meter_energy_is_unmetered_and_not_zero():
    log = log_of(two_jobs(), cluster(), (0, [arrived(0)], [start(0)]), (30, [finished(0, 30)], []))
    result = report(log)
    assert result.energy_method == "unmetered"
    assert result.as_dict()["energy_j"] is None
    assert "unmetered" in str(result)


def test_energy_of_real_machines_is_reported_as_it_was_read():
    log = log_of(
        two_jobs(),
        cluster(),
        (0, [arrived(0)], [start(0)]),
        (30, [finished(0, 30)._replace(energy_j=5.0), metered(30, 7.0)], []),
    )
    log.header["backend"] = "slurm"
    result = report(log)
    assert (result.energy_j, result.energy_lease_j) == (7, 5)
    assert math.isnan(result.energy_base_j)
    assert result.energy_method == "read by the slurm backend"


def test_an_empty_log_has_a_report():
    none = wl.Jobs.of(submit_s=[], gpus=[], duration_s=[])
    result = report(log_of(none, cluster()))
    assert result.jobs == 0
    assert "0 arrived" in str(result)
    assert np.isfinite([v for v in result.as_dict().values() if isinstance(v, float)]).all()

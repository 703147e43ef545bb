import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wattline as wl
from support.random_decisions import RandomSwitching, RandomTuning
from wattline import policy
from wattline.placement.pack import Pack
from wattline.reports import report
from wattline.reports.data.downsample import downsample, sample_quantiles
from wattline.reports.data.node_states import BOOTING, OFF
from wattline.reports.figures.gantt import BINS, GanttBars, NodeHeatmap, bars_to_heatmap, build_gantt
from wattline.reports.figures.nodes import build_node_figures
from wattline.reports.summary import build_run_tables


@given(st.lists(st.integers(0, 100), min_size=1, max_size=300), st.integers(8, 100))
def test_a_downsampled_curve_keeps_both_ends_and_both_extremes(values, points):
    value = np.array(values, dtype=float)
    at_s = np.arange(len(value)) ** 1.5
    rows = downsample(at_s, value, points)
    assert len(rows) <= points
    assert rows[0] == 0
    assert rows[-1] == len(value) - 1
    assert value[rows].min() == value.min()
    assert value[rows].max() == value.max()
    assert (np.diff(rows) > 0).all()


@given(st.lists(st.floats(0, 1e6), max_size=200), st.integers(2, 50))
def test_sampled_quantiles_are_some_of_the_values_with_both_ends(values, points):
    result = sample_quantiles(np.array(values), points)
    assert len(result) == min(points, len(values))
    assert set(result.tolist()) <= set(values)
    if values:
        assert (result[0], result[-1]) == (min(values), max(values))


def run(count, cluster, seed=0):
    jobs = wl.synth(count=count, seed=seed, gpus_total=32, load=1.5)
    return wl.run(wl.Sim(jobs, wl.parse_cluster(cluster)), policy.fifo)


def test_few_leases_are_bars_and_many_nodes_are_a_heatmap():
    few, many = run(20, "4xv100:8"), run(20, "65xv100:8")
    assert isinstance(build_gantt(build_run_tables(few), few.nodes, few.jobs), GanttBars)
    assert isinstance(build_gantt(build_run_tables(many), many.nodes, many.jobs), NodeHeatmap)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
def test_bars_never_cover_each_other_and_stay_within_their_node(seed):
    log = run(40, "4xv100:8", seed)
    bars = build_gantt(build_run_tables(log), log.nodes, log.jobs)
    assert (bars.lane + bars.gpus <= 8).all()
    for i in range(len(bars.node)):
        same = np.flatnonzero(
            (bars.node == bars.node[i])
            & (bars.lane < bars.lane[i] + bars.gpus[i])
            & (bars.lane + bars.gpus > bars.lane[i])
            & (bars.start_s < bars.end_s[i])
            & (bars.end_s > bars.start_s[i])
        )
        assert same.tolist() == [i]


def test_a_heatmap_has_the_share_of_leased_gpu_time():
    log = run(40, "4xv100:8")
    bars = build_gantt(build_run_tables(log), log.nodes, log.jobs)
    heatmap = bars_to_heatmap(bars)
    assert heatmap.percent.shape == (4, BINS)
    for node, column in ((0, 0), (1, 57), (2, 200), (3, BINS - 1)):
        low_s, high_s = heatmap.edges_s[column : column + 2]
        overlap_s = np.minimum(bars.end_s, high_s) - np.maximum(bars.start_s, low_s)
        held = (bars.gpus * np.maximum(overlap_s, 0))[bars.node == node].sum()
        assert abs(heatmap.percent[node, column] - 100 * held / (8 * (high_s - low_s))) <= 0.51


def test_a_very_large_cluster_shares_rows_between_neighbours():
    log = run(30, "1300xv100:8")
    heatmap = build_gantt(build_run_tables(log), log.nodes, log.jobs)
    assert len(heatmap.name) == len(heatmap.percent) <= 512
    assert heatmap.name[0] == "v100-0 … v100-2"
    assert heatmap.name[-1] == "v100-1299"


def switched_run(cluster):
    jobs = wl.Jobs.of(submit_s=[0, 900, 2000], gpus=[2] * 3, duration_s=[400] * 3)
    log = wl.run(
        wl.Sim(jobs, wl.parse_cluster(cluster)), RandomTuning(policy.fifo), place=RandomSwitching(Pack())
    )
    return log, build_run_tables(log)


def test_bars_have_the_times_when_nodes_were_off_or_booting():
    log, tables = switched_run("3xv100:4,boot_s=100")
    bars = build_gantt(tables, log.nodes, log.jobs)
    lasts_s = bars.unavailable.end_s - bars.unavailable.start_s
    assert lasts_s[bars.unavailable.state == OFF].sum() == pytest.approx(report(log).energy_off_j / 20)
    assert set(bars.unavailable.state.tolist()) == {OFF, BOOTING}
    for node, start_s, end_s in zip(bars.node, bars.start_s, bars.end_s, strict=True):
        same = bars.unavailable.node == node
        assert ((bars.unavailable.end_s <= start_s) | (bars.unavailable.start_s >= end_s))[same].all()


def test_a_heatmap_has_the_share_of_time_when_nodes_were_not_up():
    log, tables = switched_run("70xv100:4,boot_s=100")
    heatmap = build_gantt(tables, log.nodes, log.jobs)
    result = report(log)
    away_s = (result.energy_off_j / 20) + result.energy_boot_j / (500 + 4 * 40)
    shown_s = (heatmap.unavailable / 100 * np.diff(heatmap.edges_s)).sum()
    assert shown_s == pytest.approx(away_s, rel=0.02)
    assert ((heatmap.unavailable.astype(int) + heatmap.percent) <= 101).all()
    (_, pale) = build_node_figures([heatmap])[0]["data"]
    assert pale["type"] == "heatmap"


def test_nothing_is_pale_or_hatched_where_all_nodes_were_up():
    log = run(20, "65xv100:8")
    heatmap = build_gantt(build_run_tables(log), log.nodes, log.jobs)
    assert heatmap.unavailable is None
    assert len(build_node_figures([heatmap])[0]["data"]) == 1
    few = run(20, "4xv100:8")
    bars = build_gantt(build_run_tables(few), few.nodes, few.jobs)
    assert len(bars.unavailable) == 0
    assert len(build_node_figures([bars])[0]["data"]) == 1

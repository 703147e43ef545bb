import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wattline as wl
from support.random_decisions import RandomSwitching, RandomTuning
from wattline import policy
from wattline.placement.pack import Pack
from wattline.reports import report
from wattline.reports.data.downsample import quantiles, thin
from wattline.reports.data.node_states import BOOTING, OFF
from wattline.reports.figures.gantt import BINS, Bars, Shades, gantt, shaded
from wattline.reports.figures.nodes import nodes_figures
from wattline.reports.summary import course


@given(st.lists(st.integers(0, 100), min_size=1, max_size=300), st.integers(8, 100))
def test_a_thinned_curve_keeps_both_ends_and_both_extremes(values, points):
    value = np.array(values, dtype=float)
    at_s = np.arange(len(value)) ** 1.5
    rows = thin(at_s, value, points)
    assert len(rows) <= points
    assert rows[0] == 0
    assert rows[-1] == len(value) - 1
    assert value[rows].min() == value.min()
    assert value[rows].max() == value.max()
    assert (np.diff(rows) > 0).all()


@given(st.lists(st.floats(0, 1e6), max_size=200), st.integers(2, 50))
def test_quantiles_are_some_of_the_values_with_both_ends(values, points):
    found = quantiles(np.array(values), points)
    assert len(found) == min(points, len(values))
    assert set(found.tolist()) <= set(values)
    if values:
        assert (found[0], found[-1]) == (min(values), max(values))


def run(count, cluster, seed=0):
    jobs = wl.synth(count=count, seed=seed, gpus_total=32, load=1.5)
    return wl.run(wl.Sim(jobs, wl.parse_cluster(cluster)), policy.fifo)


def test_few_leases_are_bars_and_many_nodes_are_shades():
    few, many = run(20, "4xv100:8"), run(20, "65xv100:8")
    assert isinstance(gantt(course(few), few.nodes, few.jobs), Bars)
    assert isinstance(gantt(course(many), many.nodes, many.jobs), Shades)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
def test_bars_never_cover_each_other_and_stay_within_their_node(seed):
    log = run(40, "4xv100:8", seed)
    bars = gantt(course(log), log.nodes, log.jobs)
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


def test_shades_are_the_share_of_gpu_time_held():
    log = run(40, "4xv100:8")
    bars = gantt(course(log), log.nodes, log.jobs)
    shades = shaded(bars)
    assert shades.percent.shape == (4, BINS)
    for node, column in ((0, 0), (1, 57), (2, 200), (3, BINS - 1)):
        low_s, high_s = shades.edges_s[column : column + 2]
        overlap_s = np.minimum(bars.end_s, high_s) - np.maximum(bars.start_s, low_s)
        held = (bars.gpus * np.maximum(overlap_s, 0))[bars.node == node].sum()
        assert abs(shades.percent[node, column] - 100 * held / (8 * (high_s - low_s))) <= 0.51


def test_a_very_large_cluster_shares_rows_between_neighbours():
    log = run(30, "1300xv100:8")
    shades = gantt(course(log), log.nodes, log.jobs)
    assert len(shades.name) == len(shades.percent) <= 512
    assert shades.name[0] == "v100-0 … v100-2"
    assert shades.name[-1] == "v100-1299"


def switched_run(cluster):
    jobs = wl.Jobs.of(submit_s=[0, 900, 2000], gpus=[2] * 3, duration_s=[400] * 3)
    log = wl.run(
        wl.Sim(jobs, wl.parse_cluster(cluster)), RandomTuning(policy.fifo), place=RandomSwitching(Pack())
    )
    return log, course(log)


def test_bars_have_the_times_when_nodes_were_off_or_booting():
    log, went = switched_run("3xv100:4,boot_s=100")
    bars = gantt(went, log.nodes, log.jobs)
    lasts_s = bars.away.end_s - bars.away.start_s
    assert lasts_s[bars.away.state == OFF].sum() == pytest.approx(report(log).energy_off_j / 20)
    assert set(bars.away.state.tolist()) == {OFF, BOOTING}
    for node, start_s, end_s in zip(bars.node, bars.start_s, bars.end_s, strict=True):
        same = bars.away.node == node
        assert ((bars.away.end_s <= start_s) | (bars.away.start_s >= end_s))[same].all()


def test_shades_have_the_share_of_time_when_nodes_were_not_up():
    log, went = switched_run("70xv100:4,boot_s=100")
    shades = gantt(went, log.nodes, log.jobs)
    found = report(log)
    away_s = (found.energy_off_j / 20) + found.energy_boot_j / (500 + 4 * 40)
    shown_s = (shades.away / 100 * np.diff(shades.edges_s)).sum()
    assert shown_s == pytest.approx(away_s, rel=0.02)
    assert ((shades.away.astype(int) + shades.percent) <= 101).all()
    (_, pale) = nodes_figures([shades])[0]["data"]
    assert pale["type"] == "heatmap"


def test_nothing_is_pale_or_hatched_where_all_nodes_were_up():
    log = run(20, "65xv100:8")
    shades = gantt(course(log), log.nodes, log.jobs)
    assert shades.away is None
    assert len(nodes_figures([shades])[0]["data"]) == 1
    few = run(20, "4xv100:8")
    bars = gantt(course(few), few.nodes, few.jobs)
    assert len(bars.away) == 0
    assert len(nodes_figures([bars])[0]["data"]) == 1

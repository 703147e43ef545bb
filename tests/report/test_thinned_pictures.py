import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import wattline as wl
from wattline import policy
from wattline.report.gantt import BINS, Bars, Shades, gantt, shaded
from wattline.report.metrics import course
from wattline.report.thin import quantiles, thin


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

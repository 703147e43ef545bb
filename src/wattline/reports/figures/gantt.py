"""Use of each node over time: a Gantt chart of bars, or a heatmap where there are too many bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.table import Floats, Ints
from wattline.reports.data.lease_intervals import LeaseIntervals
from wattline.reports.data.node_states import UP, NodeStateIntervals, build_state_intervals
from wattline.reports.summary import RunTables

MAX_NODES = 64
MAX_BARS = 2000
BINS = 400
MAX_ROWS = 512


@dataclass(frozen=True, eq=False)
class NodeHeatmap:
    """Share of leased GPU time per row of nodes and time bin, in percent."""

    name: tuple[str, ...]  # of each row: a node, or neighbouring nodes where there are more than `MAX_ROWS`
    edges_s: Floats  # of the time bins
    percent: NDArray[np.uint8]
    unavailable: NDArray[np.uint8] | None  # share on nodes that were off, booting or down; None = never


@dataclass(frozen=True, eq=False)
class GanttBars:
    """One row per contiguous part of a lease: *gpus* lanes of a *node*, from *lane* on."""

    name: tuple[str, ...]  # of each node
    lanes: tuple[int, ...]  # GPUs of each node
    job: tuple[str, ...]  # ids
    node: Ints
    lane: Ints
    gpus: Ints
    start_s: Floats
    end_s: Floats
    unavailable: NodeStateIntervals  # nodes that were off, booting or down


def build_gantt(tables: RunTables, nodes: Nodes, jobs: Jobs) -> GanttBars | NodeHeatmap:
    """Return bars for up to `MAX_NODES` nodes and `MAX_BARS` leases, else a heatmap."""
    leases = tables.lease_intervals
    leases = leases.take(leases.is_leader & (leases.end_s > leases.start_s))
    since_s = float(tables.outcomes.submit_s.min()) if len(tables.outcomes) else 0.0
    unavailable = _find_unavailable(tables, len(nodes), since_s)
    if len(nodes) <= MAX_NODES and len(leases) + len(unavailable) <= MAX_BARS:
        return _build_bars(leases, unavailable, nodes, jobs, since_s)
    names = [str(name) for name in nodes.name.tolist()]
    used = (leases.node, leases.gpus, leases.start_s - since_s, leases.end_s - since_s)
    return _build_heatmap(used, unavailable, names, nodes.gpus)


def _find_unavailable(tables: RunTables, nodes: int, since_s: float) -> NodeStateIntervals:
    """Return the intervals in which nodes were not up, with times relative to *since_s*."""
    spent = build_state_intervals(tables.node_changes, nodes, since_s, max(since_s, tables.end_s))
    spent = spent.take((spent.state != UP) & (spent.end_s > spent.start_s))
    return NodeStateIntervals(spent.node, spent.state, spent.start_s - since_s, spent.end_s - since_s)


def _build_bars(
    leases: LeaseIntervals, unavailable: NodeStateIntervals, nodes: Nodes, jobs: Jobs, since_s: float
) -> GanttBars:
    """Assign lanes, lowest free first, because a log counts GPUs and does not number them."""
    lane_end_s = [np.full(count, -np.inf) for count in nodes.gpus.tolist()]
    rows: list[tuple[int, int, int, int]] = []  # row of leases, node, lane, gpus
    for row in range(len(leases)):
        node, need = int(leases.node[row]), int(leases.gpus[row])
        free = np.flatnonzero(lane_end_s[node] <= leases.start_s[row])[:need]
        lane_end_s[node][free] = leases.end_s[row]
        cuts = np.flatnonzero(np.diff(free) > 1) + 1
        rows += [(row, node, int(part[0]), len(part)) for part in np.split(free, cuts) if len(part)]
    lease, node_of, lane, gpus = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return GanttBars(
        name=tuple(map(str, nodes.name.tolist())),
        lanes=tuple(nodes.gpus.tolist()),
        job=tuple(map(str, jobs.id[leases.job[lease]].tolist())),
        node=node_of,
        lane=lane,
        gpus=gpus,
        start_s=leases.start_s[lease] - since_s,
        end_s=leases.end_s[lease] - since_s,
        unavailable=unavailable,
    )


def bars_to_heatmap(bars: GanttBars) -> NodeHeatmap:
    """Return the heatmap of the same leases."""
    used = (bars.node, bars.gpus, bars.start_s, bars.end_s)
    return _build_heatmap(used, bars.unavailable, bars.name, np.array(bars.lanes, dtype=np.int64))


_Intervals = tuple[Ints, Ints, Floats, Floats]  # node, GPUs, start, end


def _build_heatmap(
    used: _Intervals, unavailable: NodeStateIntervals, names: Sequence[str], lanes: Ints
) -> NodeHeatmap:
    last_s = float(used[3].max(initial=0.0))
    edges_s = np.linspace(0.0, max(1.0, last_s), BINS + 1)
    nodes_per_row = -(-len(lanes) // MAX_ROWS)
    firsts = np.arange(0, len(lanes), nodes_per_row)
    row_gpus = np.maximum(np.add.reduceat(lanes, firsts), 1)
    lost = (unavailable.node, lanes[unavailable.node], unavailable.start_s, unavailable.end_s)
    return NodeHeatmap(
        name=tuple(_join_names(names[first : first + nodes_per_row]) for first in firsts.tolist()),
        edges_s=edges_s,
        percent=_compute_percent(used, edges_s, nodes_per_row, row_gpus),
        unavailable=(_compute_percent(lost, edges_s, nodes_per_row, row_gpus) if len(unavailable) else None),
    )


def _compute_percent(
    intervals: _Intervals, edges_s: Floats, nodes_per_row: int, row_gpus: Ints
) -> NDArray[np.uint8]:
    """Return the share of the GPU time of each row and time bin that *intervals* take, in percent."""
    node, gpus, start_s, end_s = intervals
    row, rows = node // nodes_per_row, len(row_gpus)
    # GPU-seconds before each edge: an interval adds a ramp at its start and removes one at its end.
    before = _sum_ramps(row, gpus, start_s, edges_s, rows) - _sum_ramps(row, gpus, end_s, edges_s, rows)
    share = np.diff(before, axis=1) / (np.diff(edges_s) * row_gpus[:, None])
    return np.round(100 * np.clip(share, 0, 1)).astype(np.uint8)


def _join_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def _sum_ramps(row: Ints, gpus: Ints, at_s: Floats, edges_s: Floats, rows: int) -> Floats:
    """Return for each row and edge the sum of gpus x (edge - at) over the intervals with at <= edge."""
    width = len(edges_s)
    at_s = np.minimum(at_s, edges_s[-1])
    cell = row * width + np.minimum(np.searchsorted(edges_s, at_s), width - 1)
    count = np.bincount(cell, gpus.astype(np.float64), rows * width).reshape(rows, width)
    gpu_s = np.bincount(cell, gpus * at_s, rows * width).reshape(rows, width)
    return np.asarray(np.cumsum(count, axis=1) * edges_s - np.cumsum(gpu_s, axis=1))

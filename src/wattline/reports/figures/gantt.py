"""What each node did over time: bars where they can be told apart, shades where not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.table import Floats, Ints
from wattline.reports.data.lease_intervals import Spans
from wattline.reports.data.node_states import UP, Stretches, stretches
from wattline.reports.summary import Course

MOST_NODES = 64
MOST_BARS = 2000
BINS = 400
ROWS = 512


@dataclass(frozen=True, eq=False)
class Shades:
    """Share of the GPUs that was held, per row of nodes and equal piece of time, in percent."""

    name: tuple[str, ...]  # of each row: a node, or neighbours where nodes are too many
    edges_s: Floats  # one more than columns
    percent: NDArray[np.uint8]
    away: NDArray[np.uint8] | None  # share on nodes that were off, booting or down; None: none ever was


@dataclass(frozen=True, eq=False)
class Bars:
    """One row per piece of a lease: *gpus* lanes of a *node*, from *lane* on."""

    name: tuple[str, ...]  # of each node
    lanes: tuple[int, ...]  # GPUs of each node
    job: tuple[str, ...]  # ids
    node: Ints
    lane: Ints
    gpus: Ints
    start_s: Floats
    end_s: Floats
    away: Stretches  # when nodes were off, booting or down


def gantt(went: Course, nodes: Nodes, jobs: Jobs) -> Bars | Shades:
    """The picture of the nodes that can be read: bars for few leases, shades for many."""
    held = went.spans.take(went.spans.leads & (went.spans.end_s > went.spans.start_s))
    since_s = float(went.fates.submit_s.min()) if len(went.fates) else 0.0
    away = _away(went, len(nodes), since_s)
    if len(nodes) <= MOST_NODES and len(held) + len(away) <= MOST_BARS:
        return _bars(held, away, nodes, jobs, since_s)
    names = [str(name) for name in nodes.name.tolist()]
    pieces = (held.node, held.gpus, held.start_s - since_s, held.end_s - since_s)
    return _shades(pieces, away, names, nodes.gpus)


def _away(went: Course, nodes: int, since_s: float) -> Stretches:
    """When nodes were not up, counted from *since_s*."""
    spent = stretches(went.turns, nodes, since_s, max(since_s, went.last_s))
    spent = spent.take((spent.state != UP) & (spent.end_s > spent.start_s))
    return Stretches(spent.node, spent.state, spent.start_s - since_s, spent.end_s - since_s)


def _bars(held: Spans, away: Stretches, nodes: Nodes, jobs: Jobs, since_s: float) -> Bars:
    """Lanes are made up, lowest free first: a log counts GPUs and does not number them."""
    lane_end_s = [np.full(count, -np.inf) for count in nodes.gpus.tolist()]
    rows: list[tuple[int, int, int, int]] = []  # row of held, node, lane, gpus
    for row in range(len(held)):
        node, need = int(held.node[row]), int(held.gpus[row])
        free = np.flatnonzero(lane_end_s[node] <= held.start_s[row])[:need]
        lane_end_s[node][free] = held.end_s[row]
        cuts = np.flatnonzero(np.diff(free) > 1) + 1
        rows += [(row, node, int(piece[0]), len(piece)) for piece in np.split(free, cuts) if len(piece)]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    lease = table[:, 0]
    return Bars(
        name=tuple(map(str, nodes.name.tolist())),
        lanes=tuple(nodes.gpus.tolist()),
        job=tuple(map(str, jobs.id[held.job[lease]].tolist())),
        node=table[:, 1],
        lane=table[:, 2],
        gpus=table[:, 3],
        start_s=held.start_s[lease] - since_s,
        end_s=held.end_s[lease] - since_s,
        away=away,
    )


def shaded(bars: Bars) -> Shades:
    """The same picture in shades."""
    pieces = (bars.node, bars.gpus, bars.start_s, bars.end_s)
    return _shades(pieces, bars.away, bars.name, np.array(bars.lanes, dtype=np.int64))


_Pieces = tuple[Ints, Ints, Floats, Floats]  # node, GPUs, start, end


def _shades(held: _Pieces, away: Stretches, name: Sequence[str], lanes: Ints) -> Shades:
    last_s = float(held[3].max(initial=0.0))
    edges_s = np.linspace(0.0, max(1.0, last_s), BINS + 1)
    each = -(-len(lanes) // ROWS)  # nodes to a row
    firsts = np.arange(0, len(lanes), each)
    room = np.maximum(np.add.reduceat(lanes, firsts), 1)
    gone = (away.node, lanes[away.node], away.start_s, away.end_s)
    return Shades(
        name=tuple(_joint(name[first : first + each]) for first in firsts.tolist()),
        edges_s=edges_s,
        percent=_percent(held, edges_s, each, room),
        away=_percent(gone, edges_s, each, room) if len(away) else None,
    )


def _percent(pieces: _Pieces, edges_s: Floats, each: int, room: Ints) -> NDArray[np.uint8]:
    """Share of the GPU time of each row and piece of time that *pieces* take."""
    node, gpus, start_s, end_s = pieces
    row = node // each
    # GPU-seconds before each edge: every piece adds a ramp at its start and takes one off at its end.
    before = _ramps(row, gpus, start_s, edges_s, len(room)) - _ramps(row, gpus, end_s, edges_s, len(room))
    share = np.diff(before, axis=1) / (np.diff(edges_s) * room[:, None])
    return np.round(100 * np.clip(share, 0, 1)).astype(np.uint8)


def _joint(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def _ramps(row: Ints, gpus: Ints, at_s: Floats, edges_s: Floats, rows: int) -> Floats:
    """For each row and edge, the sum of gpus x (edge - at) over the pieces with at <= edge."""
    width = len(edges_s)
    at_s = np.minimum(at_s, edges_s[-1])
    cell = row * width + np.minimum(np.searchsorted(edges_s, at_s), width - 1)
    count = np.bincount(cell, gpus.astype(np.float64), rows * width).reshape(rows, width)
    gpu_s = np.bincount(cell, gpus * at_s, rows * width).reshape(rows, width)
    return np.asarray(np.cumsum(count, axis=1) * edges_s - np.cumsum(gpu_s, axis=1))

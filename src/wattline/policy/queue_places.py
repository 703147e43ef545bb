"""Places within one queue of Tiresias, in the order in which its authors' simulator keeps them."""

from __future__ import annotations

import numpy as np

from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints

_RUNS, _STOPPED, _JOINED = range(3)


def rank_places(
    snapshot: Snapshot, level: Ints, thresholds_gpu_s: Floats, starved_s: Floats, fresh_s: float
) -> Floats:
    """Return a key for each row of the queue: by *level*, then by its place in the queue of that level.

    Running jobs come first, in the order in which they started or came into the queue. Then those that were
    stopped in this queue, the last one first: a stopped job keeps its place before those that wait. Then
    those that joined the queue without running there, in the order of joining: new jobs when they arrive,
    demoted jobs when they pass a threshold, promoted ones at *starved_s* (nan: not promoted). A job joins at
    the end even while it runs, so jobs that wait there go first if its demotion is no older than *fresh_s*.

    Nothing is remembered between decisions: the time of a demotion follows from the attained service.
    """
    queue, now_s = snapshot.queue, snapshot.now_s
    served = snapshot.service_gpu_s
    promoted = ~np.isnan(starved_s)
    demoted: Bools = (level > 0) & ~promoted
    floor = np.where(demoted, thresholds_gpu_s[np.maximum(level - 1, 0)], 0.0)
    passed_for_s = np.maximum(served - floor, 0.0) / queue.requested_gpus  # seconds run since its demotion
    stop_s = np.where(queue.running, now_s, queue.since_s)
    fresh = demoted & (passed_for_s <= fresh_s)  # when it was stopped, or now if it runs
    new = np.isnan(queue.first_start_s)
    came_s = np.maximum(np.where(queue.running, queue.since_s, queue.first_start_s), stop_s - passed_for_s)
    joined = new | fresh | (promoted & ~queue.running)
    joined_s = np.where(fresh, stop_s, np.where(promoted, starved_s, queue.since_s))
    part = np.where(joined, _JOINED, np.where(queue.running, _RUNS, _STOPPED))
    at_s = np.where(joined, joined_s, np.where(queue.running, came_s, -stop_s))
    order = np.lexsort((np.where(new, queue.since_s, came_s), at_s, part, level))
    place = np.empty(len(order))
    # Equal places keep the order of submission: the last sort of a chain is stable, too.
    place[order] = np.arange(len(order))
    return place

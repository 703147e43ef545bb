"""The baseline of speed: a minimal FIFO simulator in plain Python."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush


def simulate_bare_fifo(
    submit_s: list[float], gpus: list[int], duration_s: list[float], total_gpus: int
) -> float:
    """Return the mean JCT of first come, first served without nodes, logs, energy or policies."""
    free, arrived, now_s, jct_s = total_gpus, 0, 0.0, 0.0
    waiting: deque[int] = deque()
    ends: list[tuple[float, int]] = []
    while arrived < len(submit_s) or ends:
        if arrived < len(submit_s) and (not ends or submit_s[arrived] <= ends[0][0]):
            now_s = submit_s[arrived]
            waiting.append(arrived)
            arrived += 1
        else:
            now_s, done = heappop(ends)
            free += gpus[done]
        while waiting and gpus[waiting[0]] <= free:
            job = waiting.popleft()
            free -= gpus[job]
            heappush(ends, (now_s + duration_s[job], job))
            jct_s += now_s + duration_s[job] - submit_s[job]
    return jct_s / len(submit_s)

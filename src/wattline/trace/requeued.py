"""Join the rows of a job that was requeued: one job with several runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.trace.builder import Draft, select_rows
from wattline.trace.read_counts import ReadCounts

REQUEUED = "requeued, with the work of the last run"
LISTED_TWICE = "listed twice"


def join_runs(draft: Draft, line: Ints) -> tuple[Draft, Ints, ReadCounts]:
    """Return *draft* with one row per job, its lines, and counts.

    A job keeps its first submission, and everything else of its last run. Rows with one id but another
    user or name are other jobs, and are left as they are.
    """
    if len(set(draft.id)) == len(draft):
        return draft, line, ReadCounts()
    several = {name for name, count in Counter(draft.id).items() if count > 1}
    groups: dict[tuple[str, str, str], list[int]] = {}
    for row, name in enumerate(draft.id):
        if name in several:
            groups.setdefault((name, _word(draft, "user", row), _word(draft, "name", row)), []).append(row)
    keep = np.ones(len(draft), dtype=np.bool_)
    submit_s = draft.submit_s.copy()
    requeues = np.zeros(len(draft), dtype=np.int64) if draft.requeues is None else draft.requeues.copy()
    requeued = repeated = 0
    for rows in groups.values():
        runs = _order_runs(draft, rows)
        last = runs[-1]
        keep[rows] = False
        keep[last] = True
        submit_s[last] = draft.submit_s[rows].min()
        requeues[last] = max(int(requeues[rows].max()), len(runs) - 1)
        requeued += len(runs) > 1
        repeated += len(rows) > len(runs)
    joined = replace(draft, submit_s=submit_s, requeues=requeues)
    repaired = {what: n for what, n in ((REQUEUED, requeued), (LISTED_TWICE, repeated)) if n}
    counts = ReadCounts(joined=int((~keep).sum()), repaired=repaired)
    return select_rows(joined, keep), line[keep], counts


def _order_runs(draft: Draft, rows: list[int]) -> list[int]:
    """Return the row of each run, the last one last; of a run listed twice the row that knows its end."""
    runs: dict[tuple[float, ...], int] = {}
    for row in rows:
        begin = _moment(draft.start_s, row)
        key = (begin,) if begin >= 0 else (_moment(draft.end_s, row), float(draft.submit_s[row]))
        other = runs.get(key)
        if other is None or _completeness(draft, row) > _completeness(draft, other):
            runs[key] = row
    return sorted(runs.values(), key=lambda row: (_moment(draft.start_s, row), draft.submit_s[row]))


def _completeness(draft: Draft, row: int) -> tuple[bool, float]:
    duration_s = 0.0 if draft.duration_s is None else float(draft.duration_s[row])
    return _moment(draft.end_s, row) >= 0, duration_s


def _moment(column: Floats | None, row: int) -> float:
    """Return a time; -1: unknown."""
    return -1.0 if column is None or np.isnan(column[row]) else float(column[row])


def _word(draft: Draft, name: str, row: int) -> str:
    column = getattr(draft, name)
    return "" if column is None else str(column.word(row))

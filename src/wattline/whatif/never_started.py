"""Jobs that could not run on the cluster at all, in words."""

from __future__ import annotations

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.reasons import Reason
from wattline.core.table import Bools
from wattline.whatif.digest import ScheduleDigest


def describe_never_started(
    jobs: Jobs, counted: Bools, digest: ScheduleDigest, nodes: Nodes
) -> tuple[str, ...]:
    """Return a sentence for each reason for which counted jobs never started in *digest*."""
    left = counted & np.isnan(digest.start_s)
    if not left.any():
        return ()
    kinds = len(nodes.kind.names)
    accepts = (nodes.accepted_kinds(jobs.gpu_kind)[:, None] >> np.arange(kinds)) & 1
    no_kind = left & ~accepts.any(axis=1)
    most = (accepts * np.bincount(nodes.kind.codes, nodes.gpus, kinds)).max(axis=1, initial=0)
    too_big = left & ~no_kind & (jobs.gpus > most)
    groups = (
        (no_kind, Reason.NO_KIND.value),
        (too_big, Reason.TOO_BIG.value),
        (left & ~no_kind & ~too_big, "The policy, its budget or a rule never let it start."),
    )
    return tuple(
        f"{int(rows.sum()):,} of {int(counted.sum()):,} jobs never start in the baseline, as job"
        f" {jobs.id[int(np.argmax(rows))]}: {sentence}{_name_kinds(jobs, rows, sentence)}"
        for rows, sentence in groups
        if rows.any()
    )


def _name_kinds(jobs: Jobs, rows: Bools, sentence: str) -> str:
    if sentence != Reason.NO_KIND.value:
        return ""
    asked = sorted({jobs.gpu_kind.names[code] for code in np.unique(jobs.gpu_kind.codes[rows]).tolist()})
    return f" They ask for {', '.join(asked[:5])}."

"""Attempts about which Slurm and the files disagree: forgotten, started twice, or never claimed."""

from __future__ import annotations

import logging
import math
import time
from typing import Literal

from wattline.backend.engine.slurm.cluster_state import SlurmJob
from wattline.backend.engine.slurm.tracked_attempt import TrackedAttempt

_CLAIM_S = 30.0  # from the start of a job in Slurm to the claim of its batch step

_logger = logging.getLogger(__name__)


def find_failure(job: SlurmJob | None) -> Literal["", "node_lost", "forgotten"]:
    """Return why an attempt vanished, by its job in Slurm; empty: the attempt may be the cause.

    slurmctld that has forgotten the start of a job starts it again; the second batch step finds the claim of
    the first one and succeeds, without an exit file.
    """
    if job is None or job.is_pending or job.state == "COMPLETED":
        return "forgotten"
    return "node_lost" if job.state == "NODE_FAIL" else ""


def stop_orphan(one: TrackedAttempt, job: SlurmJob | None, after_s: float) -> None:
    """Stop an attempt with a session that runs on for *after_s* although Slurm has forgotten it.

    When slurmctld is back, slurmd kills the processes of jobs that it does not know. If the id was given to
    another job that has ended just before, they are spared, and killed at some later time. Meanwhile Slurm
    gives their GPUs to others. Without a session the job could not save, and may finish before.
    """
    attempt, now_s = one.attempt, time.monotonic()
    if attempt.state != "running" or job is not None:
        one.unknown_s = math.inf
    elif one.unknown_s == math.inf:
        one.unknown_s = now_s
    elif 0 <= one.unknown_s < now_s - after_s:
        one.unknown_s = -1.0
        has_session = any(progress.has_session for progress in attempt.progress.values())
        then = "it saves and starts again" if has_session else "it runs on, and Slurm takes its GPUs for free"
        _logger.warning("Slurm has forgotten job %s (%s): %s", one.job_id, one.comment, then)
        if has_session:
            attempt.failure = "forgotten"
            one.folder.request("stop")


def report_missing_claim(one: TrackedAttempt, job: SlurmJob) -> None:
    """Report once that Slurm runs a job with a batch step that does not claim its attempt."""
    now_s = time.monotonic()
    if job.is_pending:
        one.unclaimed_s = math.inf
    elif one.unclaimed_s == math.inf:
        one.unclaimed_s = now_s
    elif 0 <= one.unclaimed_s < now_s - _CLAIM_S:
        one.unclaimed_s = -1.0
        _logger.warning(
            "Slurm started job %s %g s ago, and %s has no claim: the disk is full, or a prolog runs",
            job.id,
            _CLAIM_S,
            one.attempt.folder,
        )

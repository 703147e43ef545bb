"""The states of a job, in Slurm's words."""

from __future__ import annotations

LIVE = ("PENDING", "RUNNING")
OVER = ("SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "DEADLINE")
STATES = (*LIVE, *OVER)

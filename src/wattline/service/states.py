"""Job states, in Slurm's words."""

from __future__ import annotations

LIVE_STATES = ("PENDING", "RUNNING")
OVER = ("SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL")
STATES = (*LIVE_STATES, *OVER)

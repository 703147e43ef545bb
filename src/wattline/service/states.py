"""Job states, in Slurm's words."""

from __future__ import annotations

LIVE_STATES = ("PENDING", "RUNNING")
FINAL_STATES = ("SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL")
STATES = (*LIVE_STATES, *FINAL_STATES)

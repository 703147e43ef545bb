"""Slurm's reasons for refusing a job, or for letting it wait, in words for users."""

from __future__ import annotations

import re
from typing import Literal

_LIMIT = re.compile(r"violates accounting/QOS policy", re.IGNORECASE)
_FINAL = re.compile(
    r"Invalid account|Invalid qos|account/partition combination|not permitted to use this partition"
    r"|Access/permission denied|Invalid user id|Access denied to requested reservation",
    re.IGNORECASE,
)
_LIMIT_CAUSES = {  # the beginnings of pending reasons
    "QOS": "a limit of its QOS",
    "Assoc": "a limit of its account",
    "Account": "its account",
    "InvalidAccount": "its account",
    "InvalidQOS": "its QOS",
}


def classify_refusal(message: str) -> Literal["", "limit", "final"]:
    """Return whether a refusal of sbatch is by a limit, which may be free later, or final; empty: unknown."""
    if _LIMIT.search(message):
        return "limit"
    return "final" if _FINAL.search(message) else ""


def find_limit(reason: str) -> str:
    """Return the limit that a pending reason of squeue names, such as QOSMaxGRESPerUser; empty: none."""
    return next((cause for word, cause in _LIMIT_CAUSES.items() if reason.startswith(word)), "")


def describe_wait(reason: str) -> str:
    """Return a sentence on a pending reason of squeue; empty: Slurm has not named one yet."""
    if reason in ("", "None"):
        return ""
    limit = find_limit(reason)
    return f"Slurm lets it wait: {limit} ({reason})." if limit else f"It waits in Slurm's queue ({reason})."

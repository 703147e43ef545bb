"""Why a job holds no GPUs."""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """Why a job holds no GPUs now: the value is the sentence its owner reads."""

    NONE = "It is running, or nobody has looked at it yet."
    NO_ROOM = "It is next in line; the GPUs that are free are fewer than it needs."
    OUTRANKED = "The GPUs went to jobs that go first, or are kept for the one that is next in line."
    TOO_BIG = "It asks for more GPUs than the cluster has of the kinds it accepts."
    HELD = "The policy holds it back."
    OVER_BUDGET = "The energy budget leaves nothing for it now."
    NEVER_IN_BUDGET = "The energy budget will never allow it, not even alone and in its most frugal way."
    BOOTING = "Nodes are being switched on for it."
    NO_HOST = "GPUs are free, but not the cores, memory or storage that it needs beside them."
    NO_NODE = "No single node has the GPUs that it needs, and the policy spreads no job over several."
    CHEAPER_LATER = "Energy will be cheaper before its deadline, and there is time enough."


REASONS: tuple[Reason, ...] = tuple(Reason)
"""Reasons by the number that tables and logs store."""

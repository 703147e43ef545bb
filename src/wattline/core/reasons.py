"""Reasons for which a job waits."""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """Reason for which a job holds no GPUs; the value is the sentence that users read."""

    NONE = "Running, or not yet scheduled."
    NO_ROOM = "First in the queue; fewer GPUs are free than it requests."
    OUTRANKED = "Jobs with precedence hold the GPUs, or the GPUs are reserved for the first job in the queue."
    TOO_BIG = "It requests more GPUs than the cluster has of the kinds it accepts."
    HELD = "Held back by the policy."
    OVER_BUDGET = "The energy budget is used up for now."
    NEVER_IN_BUDGET = "The energy budget never allows it, not even alone and at its lowest power."
    BOOTING = "Nodes are booting for it."
    NO_HOST = "GPUs are free, but not the CPU cores, memory or storage bandwidth that it needs."
    NO_NODE = "No single node has enough GPUs, and the policy does not span nodes."
    CHEAPER_LATER = "Waits for cheaper energy; it still meets its deadline."
    TEAM_GPU_QUOTA = "Its team runs on as many GPUs as its quota allows."
    USER_GPU_QUOTA = "Its user runs on as many GPUs as the user's quota allows."
    TEAM_HOUR_QUOTA = "Its team has used the GPU hours that its quota allows in seven days."
    USER_HOUR_QUOTA = "Its user has used the GPU hours that the user's quota allows in seven days."
    HELD_BY_OTHERS = "GPUs that it needs are held by jobs that Wattline did not start."
    NO_KIND = "The cluster has no GPU of the kinds that it accepts."


REASONS: tuple[Reason, ...] = tuple(Reason)
"""Reasons by the index that tables and logs store."""

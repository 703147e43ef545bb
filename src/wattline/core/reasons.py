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
    DEPENDENCY = "A job that it depends on has not ended, or not started, as it requires."
    DEPENDENCY_NEVER = "A job that it depends on never starts, or ended otherwise than it requires."
    PARTITION_LIMIT = "Its partition never allows it: the GPUs, nodes, time, account or QOS that it has."
    QOS_LIMIT = "Its QOS never allows it: the GPUs or the time that it requests."
    USER_LIMIT = "Its user runs as many jobs or GPUs as the partition or QOS allows."
    ACCOUNT_LIMIT = "Its account runs as many jobs or GPUs as the partition or QOS allows."
    GROUP_LIMIT = "As many jobs or GPUs run in its partition or QOS as are allowed in sum."
    MAINTENANCE = "It would not end, by its time limit, before maintenance of the nodes begins."
    RESERVED = "Free nodes are reserved for others, or will be before it ends by its time limit."
    RESERVATION = "Its reservation has not begun."
    RESERVATION_OVER = "Its reservation is over or does not admit it, so it never starts."
    WINDOW_LIMIT = "Its time limit is longer than the time between reservations, so it never starts."
    TOPOLOGY = "GPUs are free, but not within one rack or pod."
    PREEMPTED = "Stopped for a job that may preempt it."


REASONS: tuple[Reason, ...] = tuple(Reason)
"""Reasons by the index that tables and logs store."""

NEVER_BY_RULES = (
    Reason.DEPENDENCY_NEVER,
    Reason.PARTITION_LIMIT,
    Reason.QOS_LIMIT,
    Reason.RESERVATION_OVER,
    Reason.WINDOW_LIMIT,
)
"""Reasons of operators' rules for which a job never starts."""

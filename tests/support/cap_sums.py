"""Sum of the power caps that a run log has set, after each of its rounds."""

from __future__ import annotations

from wattline.core.actions import (
    ACTION_CAP_W,
    ACTION_GPUS,
    ACTION_GROUP,
    ACTION_JOB,
    ACTION_NODE,
    ACTION_VERB,
    RETUNE,
    START,
    STOP,
)
from wattline.core.events import EVENT_JOB, EVENT_VERB, FAILED, FINISHED, LOST
from wattline.loop.runlog import Log
from wattline.measurement.devices import find_max_cap_w


def sum_caps(log: Log, team: str | None = None) -> list[float]:
    """Return the watts of caps of GPUs in use, and of the others' idle draw, after each round.

    An unset cap counts as the largest that can be set. With *team* only its jobs count, without idle draw.
    """
    leases: dict[int, dict[int, tuple[int, int, int]]] = {}  # job → node → group, GPUs, cap
    sums = []
    for number in range(len(log)):
        for event in log.events[log.event_round == number]:
            if int(event[EVENT_VERB]) in (FINISHED, FAILED, LOST):
                leases.pop(int(event[EVENT_JOB]), None)
        actions = log.actions[log.action_round == number]
        for action in sorted(actions.tolist(), key=lambda row: row[ACTION_VERB] != STOP):
            job, node, cap_w = action[ACTION_JOB], action[ACTION_NODE], action[ACTION_CAP_W]
            if action[ACTION_VERB] == STOP:
                leases.pop(job, None)
            elif action[ACTION_VERB] == START:
                leases.setdefault(job, {})[node] = (action[ACTION_GROUP], action[ACTION_GPUS], cap_w)
            elif action[ACTION_VERB] == RETUNE:
                leases[job] = {n: (group, gpus, cap_w) for n, (group, gpus, _) in leases[job].items()}
        sums.append(_sum_now(log, leases, team))
    return sums


def _sum_now(log: Log, leases: dict[int, dict[int, tuple[int, int, int]]], team: str | None) -> float:
    nodes = log.nodes
    total_w = 0.0 if team is not None else float(nodes.idle_node_w.sum())
    groups: dict[tuple[int, int], tuple[int, int]] = {}  # group and node → GPUs and cap
    for job, places in leases.items():
        if team is not None and log.jobs.team.word(job) != team:
            continue
        for node, (group, gpus, cap_w) in places.items():
            groups[group, node] = gpus, cap_w
    for (_, node), (gpus, cap_w) in groups.items():
        idle_w = 0.0 if team is not None else float(nodes.idle_w[node])
        total_w += gpus * ((cap_w or find_max_cap_w(nodes.kind.word(node))) - idle_w)
    return total_w

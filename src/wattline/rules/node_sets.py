"""Nodes of partitions and their racks and pods, as columns by node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattline.core.nodes import Nodes
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError
from wattline.rules.hostlist import find_nodes, match_lists
from wattline.rules.rule_set import PartitionRule, RackRule, RuleSet

WITHIN = ("", "rack", "pod")


@dataclass(frozen=True, eq=False)
class NodeSets:
    """Partitions, racks and pods of each node."""

    bits: Ints  # bit 0: every node, bit p + 1: partition p
    gpus: Ints  # by partition
    rack: Ints
    pod: Ints
    within: int  # number in `WITHIN`
    penalty: Floats  # slowdown of a job in one rack, in several of one pod, in several pods
    notes: tuple[str, ...]
    rows: dict[str, int]  # of named nodes


def bind_nodes(rules: RuleSet, nodes: Nodes) -> NodeSets:
    """Return the sets of *nodes* that *rules* name."""
    lists = [partition.nodes for partition in rules.partitions]
    lists += [reservation.nodes for reservation in rules.reservations]
    lists += [rack.nodes for rack in rules.racks]
    rows, how = match_lists(lists, nodes)
    bits = np.ones(len(nodes), dtype=np.int64)
    gpus = []
    for number, partition in enumerate(rules.partitions):
        mask = _find_partition(partition, nodes, rows)
        bits |= mask.astype(np.int64) << (number + 1)
        gpus.append(int(nodes.gpus[mask].sum()))
    uses_topology = bool(rules.topology or rules.racks)
    rack, pod, notes = _bind_racks(rules.racks, nodes, rows, uses_topology)
    topology = rules.topology
    penalty = (1.0, 1.0, 1.0) if topology is None else (1.0, topology.rack_penalty, topology.pod_penalty)
    return NodeSets(
        bits=bits,
        gpus=np.array(gpus, dtype=np.int64),
        rack=rack,
        pod=pod,
        within=0 if topology is None else WITHIN.index(topology.within),
        penalty=np.array(penalty),
        notes=(*((how,) if how else ()), *notes),
        rows=rows,
    )


def _find_partition(partition: PartitionRule, nodes: Nodes, rows: dict[str, int]) -> Bools:
    try:
        return find_nodes(partition.nodes, nodes, rows)
    except ConfigError as error:
        raise ConfigError(f"partition {partition.name}: {error.message}", error.hint) from None


def _bind_racks(
    racks: Sequence[RackRule], nodes: Nodes, rows: dict[str, int], uses_topology: bool
) -> tuple[Ints, Ints, list[str]]:
    """Return rack and pod of each node; without rules of racks those of the cluster, in one pod."""
    none = np.zeros(len(nodes), dtype=np.int64)
    if not racks:
        return (nodes.rack.astype(np.int64), none, []) if uses_topology else (none, none, [])
    rack, pod = np.full(len(nodes), -1, dtype=np.int64), none.copy()
    pods: dict[str, int] = {"": 0}
    for number, rule in enumerate(racks):
        mask = find_nodes(rule.nodes, nodes, rows)
        if (taken := np.flatnonzero(mask & (rack >= 0))).size:
            raise ConfigError(f"rack {rule.name}: node {nodes.name[taken[0]]} is in another rack already")
        rack[mask] = number
        pod[mask] = pods.setdefault(rule.pod, len(pods))
    notes = []
    if (rack < 0).any():
        notes.append(f"{int((rack < 0).sum())} nodes are in no rack of the rules, and count as one more rack")
        rack[rack < 0] = len(racks)
    return rack, pod, notes

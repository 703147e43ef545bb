"""GPUs, cores and memory of nodes that jobs of others leave to the policy."""

from __future__ import annotations

import math

import numpy as np

from wattline.backend.engine.attempt_table import AttemptTable
from wattline.backend.engine.job_queue import JobQueue
from wattline.backend.engine.protocol import Engine, HeldByOthers
from wattline.core.events import CAPACITY, Event
from wattline.core.leases import LEASE_HOST, Leases
from wattline.core.nodes import Nodes

Capacity = tuple[int, float, float]
"""GPUs, cores and GiB of memory."""


class NodeCapacity:
    """Reports each change of a node's capacity as an event.

    A node has at least what the leases there hold: an attempt may wait in the engine's own queue for GPUs
    that others were given first.
    """

    def __init__(self, engine: Engine, queue: JobQueue, attempts: AttemptTable) -> None:
        self._engine, self._queue, self._attempts = engine, queue, attempts
        self._reported: dict[int, Capacity] = {}  # of nodes on which others hold something, or did

    def update(self) -> None:
        """Append an event for each node of which others leave more or less than before."""
        held = self._engine.held_by_others()
        if not held and not self._reported:
            return
        nodes, leases = self._engine.nodes, self._attempts.build_leases(self._queue.records)
        for node in sorted({*held, *self._reported}):
            capacity = compute_capacity(nodes, leases, node, held.get(node, HeldByOthers()))
            if capacity != self._reported.get(node, _full(nodes, node)):
                self._report(node, capacity)
            self._reported[node] = capacity
            if node not in held and capacity == _full(nodes, node):
                del self._reported[node]

    def report_all(self) -> None:
        """Append the events that a new loop needs: it starts with all nodes to itself."""
        nodes = self._engine.nodes
        for node, capacity in sorted(self._reported.items()):
            if capacity != _full(nodes, node):
                self._report(node, capacity)

    def _report(self, node: int, capacity: Capacity) -> None:
        self._queue.events.append(Event(CAPACITY, node, self._queue.now_s, *capacity))


def compute_capacity(nodes: Nodes, leases: Leases, node: int, held: HeldByOthers) -> Capacity:
    """Return what *held* leaves of a node, but not less than its *leases* hold, and at least one GPU.

    Leases without a host share of their own count with the proportional share of the new capacity.
    """
    own = leases.block[:, (leases.node == node) & (leases.job == leases.group)]
    own_gpus = Leases(np.ascontiguousarray(own)).gpus
    gpus = max(int(nodes.gpus[node]) - held.gpus, int(own_gpus.sum()), 1)
    host = []
    for row, (full, taken, unit) in enumerate(
        ((float(nodes.cpus[node]), held.cpus, 1000), (float(nodes.mem_gib[node]), held.mem_gib, 1024))
    ):
        per_gpu = own[LEASE_HOST + row]
        fixed = int((per_gpu * own_gpus).sum())
        shares = int(own_gpus[per_gpu == 0].sum())
        # fixed + shares * (host / gpus) <= host must hold.
        least = math.ceil(fixed * gpus / (gpus - shares)) + 1 if fixed else 1
        host.append(max(full - taken, least / unit))
    return gpus, host[0], host[1]


def _full(nodes: Nodes, node: int) -> Capacity:
    return int(nodes.gpus[node]), float(nodes.cpus[node]), float(nodes.mem_gib[node])

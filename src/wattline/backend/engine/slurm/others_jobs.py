"""Resources of the nodes that jobs hold which this service has not submitted, in whatever partition.

Slurm reports what all jobs of a node hold together. What is not held by jobs of the service is held by
others: this needs no rights to see their jobs, and no format of their requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from wattline.backend.engine.protocol import HeldByOthers
from wattline.backend.engine.slurm.cluster_state import NodeUse, SlurmState
from wattline.backend.engine.slurm.node_list import NodeList
from wattline.backend.engine.slurm.submission import NodeShare

_LEAST_MEM_GIB = 0.5  # below, no job can start on a node


class OthersJobs:
    """Tells the resources of others from those of the service's own jobs.

    Jobs and nodes are read one after the other. A job that starts or ends in between must not count as one of
    others, so a change counts when two readings agree.
    """

    def __init__(self, node_list: NodeList, *, counts_memory: bool) -> None:
        self._node_list, self._counts_memory = node_list, counts_memory
        self._own: dict[str, Sequence[NodeShare]] = {}  # by comment, also of attempts that were released
        self._seen_s = -1.0
        self._latest: dict[int, HeldByOthers] | None = None
        self.held: dict[int, HeldByOthers] = {}  # by node; only nodes on which others hold something
        self.share_list = node_list  # with the cores and memory that others leave for each GPU

    def update(self, state: SlurmState, shares: Mapping[str, Sequence[NodeShare]]) -> None:
        """Read a new state of Slurm; *shares* are those of the service's attempts by comment."""
        if state.began_s <= self._seen_s:
            return
        self._seen_s = state.began_s
        self._own = {
            comment: one
            for comment, one in {**self._own, **shares}.items()
            if comment in state.jobs or comment in shares
        }
        before, self._latest = self._latest, self._subtract_own(state)
        rows = {*self._latest, *self.held}
        settled = {row for row in rows if before is None or before.get(row) == self._latest.get(row)}
        held = {row: (self._latest if row in settled else self.held).get(row) for row in rows}
        found = {row: one for row, one in held.items() if one is not None}
        if found != self.held:
            self.held = found
            self.share_list = self._limit_shares()

    def _subtract_own(self, state: SlurmState) -> dict[int, HeldByOthers]:
        own: dict[str, NodeUse] = {}
        for comment, job in state.jobs.items():
            if job.is_pending or job.is_over:
                continue
            for share in self._own.get(comment, ()):
                sum_ = own.get(share.name, NodeUse())
                own[share.name] = NodeUse(
                    sum_.gpus + share.gpus, sum_.cpus + share.cpus, sum_.mem_mib + share.mem_mib
                )
        found = {}
        for row, name in enumerate(self._node_list.names):
            use, mine = state.node_use.get(name, NodeUse()), own.get(name, NodeUse())
            mem_mib = max(use.mem_mib - mine.mem_mib, 0) if self._counts_memory else 0
            one = HeldByOthers(max(use.gpus - mine.gpus, 0), max(use.cpus - mine.cpus, 0), mem_mib / 1024)
            if one != HeldByOthers():
                found[row] = one
        return found

    def hold_all(self, row: int) -> bool:
        """Return whether others leave nothing of a node that a job could use."""
        one = self.held.get(row)
        if one is None:
            return False
        nodes = self._node_list.nodes
        return bool(
            one.gpus >= nodes.gpus[row]
            or one.cpus > nodes.cpus[row] - 1
            or one.mem_gib > nodes.mem_gib[row] - _LEAST_MEM_GIB
        )

    def _limit_shares(self) -> NodeList:
        """Return the nodes with no more cores and memory per GPU than others leave."""
        nodes = self._node_list.nodes
        cpus, mem_gib = nodes.cpus.copy(), nodes.mem_gib.copy()
        for row, one in self.held.items():
            gpus = int(nodes.gpus[row])
            part = gpus / max(gpus - one.gpus, 1)
            cpus[row] = np.clip((cpus[row] - one.cpus) * part, 1.0, cpus[row])
            mem_gib[row] = np.clip((mem_gib[row] - one.mem_gib) * part, _LEAST_MEM_GIB, mem_gib[row])
        return replace(self._node_list, nodes=replace(nodes, cpus=cpus, mem_gib=mem_gib))

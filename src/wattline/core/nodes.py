"""Nodes of a cluster, as read-only columns."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wattline.core.table import Floats, Ints, Labels, Table


@dataclass(frozen=True, eq=False)
class Nodes(Table):
    """Nodes of a cluster, one row each; built by `wattline.nodes` and `wattline.read_cluster`."""

    name: NDArray[np.object_]
    kind: Labels  # of GPU
    gpus: Ints
    cpus: Floats
    mem_gib: Floats
    storage_mib_s: Floats  # storage bandwidth; 0: unlimited
    rack: Ints
    base_w: Floats  # the node without its GPUs
    idle_w: Floats  # one GPU without a job
    busy_w: Floats  # one GPU that trains
    off_w: Floats  # the whole node, switched off
    boot_s: Floats  # from switching on until jobs can start
    boot_w: Floats  # the whole node while booting

    @property
    def idle_node_w(self) -> Floats:
        """Draw of each node that is up without jobs."""
        return np.asarray(self.base_w + self.gpus * self.idle_w)

    @property
    def break_even_s(self) -> Floats:
        """Time off after which the energy saved exceeds that of booting; inf: switching off saves nothing."""
        saves_w = self.idle_node_w - self.off_w
        saves = saves_w > 0
        return np.where(saves, self.boot_s * self.boot_w / np.where(saves, saves_w, 1.0), math.inf)

    @cached_property
    def host(self) -> Ints:
        """Host resources of each node: rows as in `HOST_RESOURCES`, a column per node."""
        return np.array((1000 * self.cpus, 1024 * self.mem_gib, self.storage_mib_s)).astype(np.int64)

    @cached_property
    def host_share(self) -> Ints:
        """Proportional share of one GPU in its host: rows as in `HOST_RESOURCES`, a column per node."""
        return self.host // self.gpus

    def resize(self, rows: Ints, gpus: Ints, cpus: Floats, mem_gib: Floats) -> Nodes:
        """Return the nodes with other GPUs, cores and memory in these *rows*."""
        all_gpus, all_cpus, all_mem_gib = self.gpus.copy(), self.cpus.copy(), self.mem_gib.copy()
        all_gpus[rows], all_cpus[rows], all_mem_gib[rows] = gpus, cpus, mem_gib
        return replace(self, gpus=all_gpus, cpus=all_cpus, mem_gib=all_mem_gib)

    def accepted_kinds(self, gpu_kind: Labels) -> Ints:
        """Return for each row of *gpu_kind* a bit mask of the kinds of this cluster that it accepts."""
        every = (1 << len(self.kind.names)) - 1
        bits = {name.casefold(): 1 << bit for bit, name in enumerate(self.kind.names)}
        wanted = [{word.strip() for word in text.casefold().split("|")} for text in gpu_kind.names]
        masks = [every if words == {""} else sum(bits.get(word, 0) for word in words) for words in wanted]
        return np.array(masks, dtype=np.int64)[gpu_kind.codes] if masks else np.empty(0, dtype=np.int64)


HOST_RESOURCES = ("mcpus", "mem_mib", "read_mib_s")
"""Host resources that leases carry: thousandths of a core, MiB of memory, MiB/s of storage bandwidth.

Always per GPU, so that a job on several nodes has them in proportion to its GPUs on each. 0 is unset: the
proportional share of the node.
"""

"""The machines of a cluster, as read-only columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wattline.core.table import Floats, Ints, Labels, Table


@dataclass(frozen=True, eq=False)
class Nodes(Table):
    """The machines, one row each. Build them with `wattline.nodes` or `wattline.read_cluster`."""

    name: NDArray[np.object_]
    kind: Labels  # of GPU
    gpus: Ints
    cpus: Floats
    mem_gib: Floats
    storage_mib_s: Floats  # what its storage delivers; 0: as much as anybody wants
    rack: Ints
    base_w: Floats  # the node without its GPUs
    idle_w: Floats  # one GPU without a job
    busy_w: Floats  # one GPU that trains
    off_w: Floats  # the whole node when it is switched off
    boot_s: Floats  # from switching it on until jobs may start
    boot_w: Floats  # the whole node meanwhile

    @property
    def rest_w(self) -> Floats:
        """Each node when it is up and nobody trains on it."""
        return np.asarray(self.base_w + self.gpus * self.idle_w)

    @property
    def break_even_s(self) -> Floats:
        """For how long each must be off to save what booting it costs; inf: being off saves nothing."""
        saves_w = self.rest_w - self.off_w
        saves = saves_w > 0
        return np.where(saves, self.boot_s * self.boot_w / np.where(saves, saves_w, 1.0), math.inf)

    @cached_property
    def host(self) -> Ints:
        """What there is to share out of each node's host: rows as in `HOST`, a column per node."""
        return np.array((1000 * self.cpus, 1024 * self.mem_gib, self.storage_mib_s)).astype(np.int64)

    @cached_property
    def share(self) -> Ints:
        """The proportional share: what of the host belongs to one of a node's GPUs, rows as in `HOST`."""
        return self.host // self.gpus

    def accepts(self, gpu_kind: Labels) -> Ints:
        """For each row of *gpu_kind*, a bit mask of this cluster's kinds that it accepts."""
        every = (1 << len(self.kind.names)) - 1
        bits = {name.casefold(): 1 << bit for bit, name in enumerate(self.kind.names)}
        wanted = [{word.strip() for word in text.casefold().split("|")} for text in gpu_kind.names]
        masks = [every if words == {""} else sum(bits.get(word, 0) for word in words) for words in wanted]
        return np.array(masks, dtype=np.int64)[gpu_kind.codes] if masks else np.empty(0, dtype=np.int64)


HOST = ("mcpus", "mem_mib", "read_mib_s")
"""What jobs are given of the host beside GPUs: thousandths of a core, MiB of memory, MiB/s from storage.

Always for each GPU, so that a job which spans nodes has it everywhere in proportion to its GPUs there.
0 is "nobody said": the proportional share of the node.
"""

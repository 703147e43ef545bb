"""Configurations of jobs for which models predict speed and power."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.nodes import HOST_RESOURCES
from wattline.core.table import Bools, Ints, Labels


@dataclass(frozen=True, eq=False, slots=True)
class Grants:
    """Configurations of jobs, one per entry: the input of models."""

    job: Ints  # row in `Jobs`
    gpus: Ints
    nodes: Ints
    members: Ints  # jobs on the same GPUs, itself included
    fused: Bools  # True: trained as one array, False: packed
    cap_w: Ints  # per GPU; 0: no cap
    batch: Ints  # of the whole job; 0: as requested
    host: Ints  # resources per GPU, rows as in `HOST_RESOURCES`; 0: as requested
    kind: Labels  # of GPU; "": unspecified

    @classmethod
    def of(
        cls,
        job: Ints,
        gpus: Ints,
        nodes: Ints | None = None,
        *,
        members: Ints | None = None,
        fused: Bools | None = None,
        cap_w: Ints | None = None,
        batch: Ints | None = None,
        host: Ints | None = None,
        kind: Labels | str = "",
    ) -> Grants:
        """Build entries; default: alone on one node, no cap, the requested batch and host resources."""
        one, none = np.ones(len(job), dtype=np.int64), np.zeros(len(job), dtype=np.int64)
        return cls(
            job=job,
            gpus=gpus,
            nodes=one if nodes is None else nodes,
            members=one if members is None else members,
            fused=np.zeros(len(job), dtype=np.bool_) if fused is None else fused,
            cap_w=none if cap_w is None else cap_w,
            batch=none if batch is None else batch,
            host=np.zeros((len(HOST_RESOURCES), len(job)), dtype=np.int64) if host is None else host,
            kind=Labels.repeat(kind, len(job)) if isinstance(kind, str) else kind,
        )

    def __len__(self) -> int:
        return len(self.job)

    def keys(self, job_class: Ints) -> list[tuple[object, ...]]:
        """Return each entry as a hashable key; *job_class* is the class of each job, by row of `Jobs`."""
        company = (self.members, self.fused)
        numbers = (job_class[self.job], self.gpus, self.nodes, *company, self.cap_w, self.batch, *self.host)
        kinds = [self.kind.names[code] for code in self.kind.codes.tolist()]
        return list(zip(kinds, *(column.tolist() for column in numbers), strict=True))

    def take(self, rows: Ints) -> Grants:
        """Return the entries *rows*, in this order."""
        return Grants(
            self.job[rows],
            self.gpus[rows],
            self.nodes[rows],
            self.members[rows],
            self.fused[rows],
            self.cap_w[rows],
            self.batch[rows],
            self.host[:, rows],
            self.kind[rows],
        )

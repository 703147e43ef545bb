"""Ways to run jobs, as models are asked about them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.nodes import HOST
from wattline.core.table import Bools, Ints, Labels


@dataclass(frozen=True, eq=False, slots=True)
class Grants:
    """Ways to run jobs, one entry each: what models are asked about."""

    job: Ints  # row in `Jobs`
    gpus: Ints
    nodes: Ints
    members: Ints  # jobs on the same GPUs, itself included
    fused: Bools  # whether these are trained as one array, or only packed
    cap_w: Ints  # of each GPU; 0: none
    batch: Ints  # of the whole job; 0: as asked
    host: Ints  # beside each GPU, rows as in `HOST`; 0: as asked
    kind: Labels  # of GPU; "": nobody says

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
        """Ways to run jobs; alone on one node, without a cap, with their own batch and share unless said."""
        one, none = np.ones(len(job), dtype=np.int64), np.zeros(len(job), dtype=np.int64)
        return cls(
            job=job,
            gpus=gpus,
            nodes=one if nodes is None else nodes,
            members=one if members is None else members,
            fused=np.zeros(len(job), dtype=np.bool_) if fused is None else fused,
            cap_w=none if cap_w is None else cap_w,
            batch=none if batch is None else batch,
            host=np.zeros((len(HOST), len(job)), dtype=np.int64) if host is None else host,
            kind=Labels.same(kind, len(job)) if isinstance(kind, str) else kind,
        )

    def __len__(self) -> int:
        return len(self.job)

    def keys(self, sort: Ints) -> list[tuple[object, ...]]:
        """Each entry as one thing to look up, of jobs of these sorts."""
        company = (self.members, self.fused)
        numbers = (sort[self.job], self.gpus, self.nodes, *company, self.cap_w, self.batch, *self.host)
        kinds = [self.kind.names[code] for code in self.kind.codes.tolist()]
        return list(zip(kinds, *(column.tolist() for column in numbers), strict=True))

    def take(self, rows: Ints) -> Grants:
        """These entries, in this order."""
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

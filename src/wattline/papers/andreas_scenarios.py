"""Scenarios of ANDREAS (Filippini et al., arXiv 2105.05080): nodes, run times, jobs and prices.

"servers" has TESLA nodes of 4 GPUs and TURING nodes of 2, "datacenter" K80 and M60 nodes of 8. Jobs are drawn
as the generator of its authors does; due dates are between the fastest and the slowest run after
submission. Load is the work offered on single GPUs over the number of GPUs. Nodes without jobs are off
and boot at once.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from wattline.cluster import join_nodes
from wattline.cluster import nodes as build_nodes
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.table import Floats, Labels
from wattline.energy.prices import Price

Configuration = tuple[str, int]  # a kind of GPU and a number of GPUs
RunTimes = Mapping[str, Mapping[Configuration, float]]
"""Seconds of each job type by configuration."""

SERVICE = (2.5371e-4, 4.4399e-4)
"""Least and most money per second late, of the service's priorities 1 to 5."""
PRICES = {"servers": Price.flat(0.17168313, pue=1.33), "datacenter": Price.flat(1.0)}
FILES = {
    "servers": ("data_server.csv", "GPU-cost_server_4-2.csv"),
    "datacenter": ("data_2d10d_filtered.csv", "GPU-cost_server.csv"),
}
"""Run times and costs of a scenario."""


@dataclass(frozen=True, eq=False)
class TableModels:
    """Models that read run times from the table; a combination that is not in it is not possible.

    Durations of jobs are those on one GPU of the kind *first*; they may be estimates, so speeds do not
    follow from them.
    """

    seconds: dict[tuple[str, str, int], float]
    first: str
    alike: ClassVar[bool] = True

    def speed(self, jobs: Jobs, grants: Grants) -> Floats:
        """See `wattline.core.protocols.Models`."""
        names, kinds = jobs.model.words(), grants.kind.words()
        found = []
        for job, gpus, kind in zip(grants.job.tolist(), grants.gpus.tolist(), kinds, strict=True):
            takes_s = self.seconds.get((names[job], kind, gpus), math.inf)
            found.append(self.seconds[names[job], self.first, 1] / takes_s)
        return np.array(found)

    def watts(self, jobs: Jobs, grants: Grants) -> Floats:
        """Return NaN: the watts of the node count."""
        return np.full(len(grants), np.nan)

    def observe(self, *_: object) -> TableModels:
        """Return these models: they learn nothing."""
        return self


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read a table of the public data."""
    with path.open(encoding="utf-8-sig", newline="") as text:
        return list(csv.DictReader(text))


def read_times(folder: Path, scenario: str) -> RunTimes:
    """Return the run times of each job type by kind, as the table spells it, and number of GPUs."""
    found: defaultdict[str, dict[Configuration, float]] = defaultdict(dict)
    for row in read_rows(folder / FILES[scenario][0]):
        found[row["Jobs"]][row["GpuType"], int(row["GpuNumber"])] = float(row["ExecutionTime"])
    return found


def draw_times(seed: int, types: int = 10) -> RunTimes:
    """Return made-up run times of *types* job types on the "servers" scenario, where there is no data.

    A run takes one to ten hours on a TESLA; a second GPU makes it 1.1 to 1.6 times as fast, a TURING takes
    1.5 to 3 times as long.
    """
    rng = np.random.default_rng([seed, 3])
    found: dict[str, dict[Configuration, float]] = {}
    for number in range(types):
        alone_s = float(3600 * 10 ** rng.uniform(0, 1))
        faster, slower = float(rng.uniform(1.1, 1.6)), float(rng.uniform(1.5, 3.0))
        found[f"made-up-{number}"] = {
            ("TESLA", 1): alone_s,
            ("TESLA", 2): alone_s / faster,
            ("TURING", 1): alone_s * slower,
        }
    return found


def build_cluster(scenario: str, count: int, folder: Path | None) -> Nodes:
    """Return *count* nodes of two kinds in turn; prices of "datacenter" are in *folder*."""
    if scenario == "servers":
        kinds = (("tesla", 4, 360.0, 170.0), ("turing", 2, 330.0, 70.0))
    else:
        if folder is None:
            raise ValueError("the prices of the scenario datacenter are in the public data only")
        per_h = {
            row["GPUtype"]: float(row["cost"])
            for row in read_rows(folder / FILES[scenario][1])
            if row["nGPUs"] == "1"
        }
        kinds = (("azure-k80", 8, 0.0, 1000 * per_h["K80"]), ("azure-m60", 8, 0.0, 1000 * per_h["M60"]))
    many = ((count + 1) // 2, count // 2)
    return join_nodes(
        *(
            build_nodes(
                kind, count=n, gpus=gpus, base_w=base_w, idle_w=0.0, busy_w=busy_w,
                off_w=0.0, boot_s=0.0, boot_w=0.0,
            )
            for (kind, gpus, base_w, busy_w), n in zip(kinds, many, strict=True)
            if n
        )
    )  # fmt: skip


def draw_jobs(
    known: RunTimes, nodes: Nodes, count: int, load: float, weight: float, seed: int
) -> tuple[Jobs, TableModels]:
    """Return jobs of random types, late at *weight* times the service's prices, and their models."""
    rng = np.random.default_rng(seed)
    named = {name.partition("-")[2].upper() or name.upper(): name for name in nodes.kind.names}
    ways = {
        job: {(named[kind], gpus): s for (kind, gpus), s in of_job.items() if kind in named}
        for job, of_job in known.items()
    }
    first = nodes.kind.names[0]
    drawn = [list(ways)[k] for k in rng.integers(len(ways), size=count).tolist()]
    alone_s = np.array([ways[job][first, 1] for job in drawn])
    fastest_s = np.array([min(ways[job].values()) for job in drawn])
    slowest_s = np.array([max(ways[job].values()) for job in drawn])
    between_s = alone_s.mean() / (load * int(nodes.gpus.sum()))
    submit_s = np.concatenate(([0.0], np.cumsum(rng.exponential(between_s, count - 1))))
    jobs = Jobs.of(
        submit_s=submit_s,
        gpus=np.ones(count, dtype=np.int64),
        duration_s=alone_s,
        deadline_s=submit_s + rng.uniform(fastest_s, slowest_s),
        late_per_h=3600 * weight * rng.uniform(*SERVICE, count),
        max_gpus=np.full(count, max(gpus for of_job in ways.values() for _, gpus in of_job)),
        model=Labels.of(drawn),
    )
    table = {(job, kind, gpus): s for job, of_job in ways.items() for (kind, gpus), s in of_job.items()}
    return jobs, TableModels(table, first)

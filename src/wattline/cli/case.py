"""What to simulate: from the words on the command line to a run."""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattline.backend.sim import Faults, Overheads, Sim
from wattline.cluster import parse_cluster
from wattline.engine import run
from wattline.errors import ConfigError
from wattline.log import Log
from wattline.model.asked import Asked
from wattline.place.pack import Pack
from wattline.policy.parse import parse_policy
from wattline.trace import Trace
from wattline.trace import read as read_any_trace


@dataclass(frozen=True)
class Case:
    """One simulation, in words and numbers only, so that another process can run it."""

    trace: str
    format: str | None
    skip_bad: bool
    team: str | None
    cluster: str
    policy: str
    place: str
    backfill: str
    quantum_s: float | None
    restart_s: float
    span_penalty: float
    node_mtbf_s: float
    job_failure: float
    seed: int

    @classmethod
    def of(cls, args: argparse.Namespace, policy: str) -> Case:
        """The case that the options in *args* describe."""
        return cls(
            trace=args.trace,
            format=args.format,
            skip_bad=args.skip_bad,
            team=args.team,
            cluster=args.cluster,
            policy=policy,
            place=args.place,
            backfill=args.backfill,
            quantum_s=args.quantum,
            restart_s=args.restart_cost,
            span_penalty=args.span_penalty,
            node_mtbf_s=args.node_mtbf,
            job_failure=args.job_failure,
            seed=args.seed,
        )

    def read(self) -> Trace:
        """The trace, or the part of it that belongs to `team`."""
        trace = read_any_trace(self.trace, self.format, self.skip_bad)
        if self.team is None:
            return trace
        mine = [word == self.team for word in trace.jobs.team.words()]
        if not any(mine):
            teams = sorted(set(trace.jobs.team.words()) - {""})
            if not teams:
                raise ConfigError(f"team {self.team!r} was asked for, but {self.trace} names no teams")
            raise ConfigError(
                f"team {self.team!r} has no jobs in {self.trace}, expected one of {', '.join(teams)}"
            )
        jobs = trace.jobs.take(np.array(mine))
        return Trace(jobs, trace.format, trace.name, trace.sha256, trace.skipped, trace.ignored)

    def run(
        self, trace: Trace, progress: Callable[[float, int], None] | None = None
    ) -> tuple[Log, dict[str, Any]]:
        """Simulate; answers the log, and what it cost this process."""
        models = Asked(span_penalty=self.span_penalty)
        sim = Sim(
            trace.jobs,
            parse_cluster(self.cluster),
            truth=models,
            quantum_s=self.quantum_s,
            overheads=Overheads(restart_s=self.restart_s),
            faults=Faults(node_mtbf_s=self.node_mtbf_s, job_failure=self.job_failure),
            seed=self.seed,
        )
        if self.place != "pack":
            raise ConfigError(f"place is {self.place!r}, expected pack")
        about = {"name": trace.name, "format": trace.format, "sha256": trace.sha256, "team": self.team}
        policy = parse_policy(self.policy)
        place = Pack(self.backfill)  # type: ignore[arg-type]
        before = time.process_time()
        log = run(sim, policy, models, place=place, seed=self.seed, trace=about, progress=progress)
        cpu_s = time.process_time() - before
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return log, {"cpu_s": round(cpu_s, 4), "peak_rss_mb": round(peak_mb, 1)}

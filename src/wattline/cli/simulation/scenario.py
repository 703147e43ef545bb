"""What to simulate: from the words on the command line to a run."""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wattline.backend.sim.simulator import Faults, Overheads, Sim
from wattline.cli.simulation.models_argument import read_beliefs, with_drawn
from wattline.cli.simulation.policy_argument import check_teams, read_deciders
from wattline.cluster import parse_cluster
from wattline.core.protocols import Placer, Policy
from wattline.energy.budgets import Budget, parse_budget
from wattline.energy.prices import Price, parse_price
from wattline.errors import ConfigError
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.models.trace_model import Asked
from wattline.models.workload_models import Measured
from wattline.papers.synergy_speedups import Published
from wattline.policy.knobs import has_knob, turned
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
    policy: str  # or POLICY@PLACE
    place: str
    backfill: str
    models: str | None
    draw_models: bool
    budgets: tuple[str, ...]  # for policies that can hold them
    quantum_s: float | None
    restart_s: float
    rescale_s: float
    span_penalty: float
    node_mtbf_s: float
    job_failure: float
    price: str | None
    pue: float
    seed: int
    eta: float | None = None  # instead of the policy's own

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
            models=args.models,
            draw_models=args.draw_models,
            budgets=tuple(args.budget),
            quantum_s=args.quantum,
            restart_s=args.restart_cost,
            rescale_s=args.rescale_cost,
            span_penalty=args.span_penalty,
            node_mtbf_s=args.node_mtbf,
            job_failure=args.job_failure,
            price=args.price,
            pue=args.pue,
            seed=args.seed,
        )

    def read(self) -> Trace:
        """The trace, with drawn models if asked for, or the part of it that belongs to `team`."""
        trace = read_any_trace(self.trace, self.format, self.skip_bad)
        if self.draw_models:  # before rows are left out, so that a job's model is the same in every part
            models, kinds = self.beliefs(), parse_cluster(self.cluster).kind.names
            trace = replace(trace, jobs=with_drawn(trace.jobs, models, kinds, self.seed))
        if self.team is not None:
            trace = replace(trace, jobs=trace.jobs.take(np.array(self._mine(trace))))
        check_teams(self.budgets, trace.jobs, self.trace)
        return trace

    def _mine(self, trace: Trace) -> list[bool]:
        mine = [word == self.team for word in trace.jobs.team.words()]
        if any(mine):
            return mine
        teams = sorted(set(trace.jobs.team.words()) - {""})
        if not teams:
            raise ConfigError(f"team {self.team!r} was asked for, but {self.trace} names no teams")
        raise ConfigError(
            f"team {self.team!r} has no jobs in {self.trace}, expected one of {', '.join(teams)}"
        )

    def beliefs(self) -> Asked | Measured | Published:
        """The models: what jobs do, and what is believed of them."""
        return read_beliefs(self.models, self.span_penalty)

    def read_budgets(self) -> tuple[Budget, ...]:
        """The budgets."""
        return tuple(map(parse_budget, self.budgets))

    def read_price(self) -> Price | None:
        """What energy costs."""
        if self.price is None and self.pue != 1.0:
            raise ConfigError(f"--pue {self.pue:g} says what is paid of a price, expected --price, too")
        return None if self.price is None else parse_price(self.price, self.pue)

    def deciders(self) -> tuple[Policy, Placer]:
        """The policy, with budgets and eta where it has them, and the placer."""
        policy, place = read_deciders(self.policy, self.place, self.backfill)
        if self.budgets and has_knob(policy, "budgets"):
            policy = turned(policy, "budgets", self.read_budgets())
        if has_knob(policy, "price") and (price := self.read_price()) is not None:
            policy = turned(policy, "price", price)
        return policy if self.eta is None else turned(policy, "eta", self.eta), place

    def run(
        self, trace: Trace, progress: Callable[[float, int], None] | None = None
    ) -> tuple[Log, dict[str, Any]]:
        """Simulate; answers the log, and what it cost this process."""
        models = self.beliefs()
        sim = Sim(
            trace.jobs,
            parse_cluster(self.cluster),
            truth=models,
            quantum_s=self.quantum_s,
            overheads=Overheads(restart_s=self.restart_s, rescale_s=self.rescale_s),
            faults=Faults(node_mtbf_s=self.node_mtbf_s, job_failure=self.job_failure),
            seed=self.seed,
        )
        about = {"name": trace.name, "format": trace.format, "sha256": trace.sha256, "team": self.team}
        policy, place = self.deciders()
        before = time.process_time()
        log = run(
            sim,
            policy,
            models,
            place=place,
            seed=self.seed,
            trace=about,
            price=self.read_price(),
            progress=progress,
        )
        cpu_s = time.process_time() - before
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return log, {"cpu_s": round(cpu_s, 4), "peak_rss_mb": round(peak_mb, 1)}

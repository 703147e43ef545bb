"""One simulation, from the arguments of the command line to its run log."""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wattline.backend.sim.faults import Faults, Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cli.simulation.models_argument import AnyModels, assign_drawn_models, read_models
from wattline.cli.simulation.policy_argument import check_owners, check_teams, parse_policy_and_placer
from wattline.cluster import parse_cluster
from wattline.core.jobs import PREEMPTIBLE_ALWAYS, PREEMPTIBLE_ONCE_SAVED, Jobs
from wattline.core.protocols import Placer, Policy
from wattline.core.quotas import Quotas, parse_quota
from wattline.energy.budgets import Budget, parse_budget
from wattline.energy.prices import Price, parse_price
from wattline.errors import ConfigError
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.models.throughput_table import ThroughputTable
from wattline.policy.knobs import has_knob, insert_quota, set_knob
from wattline.trace import Trace
from wattline.trace import read as read_any_trace


@dataclass(frozen=True)
class SimulationCase:
    """One simulation as text and numbers only, so that another process can run it."""

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
    budgets: tuple[str, ...]  # ignored by policies that cannot hold one
    quantum_s: float | None
    restart_s: float
    rescale_s: float
    checkpoint_s: float | None  # None: jobs save at every stop; -1: they never save
    min_runtime_s: float
    span_penalty: float
    node_mtbf_s: float
    job_failure: float
    price: str | None
    pue: float
    seed: int
    eta: float | None = None  # replaces that of the policy
    quotas: tuple[str, ...] = ()

    @classmethod
    def from_arguments(cls, args: argparse.Namespace, policy: str) -> SimulationCase:
        """Return the simulation of *policy* that *args* describe."""
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
            checkpoint_s=args.checkpoint_interval,
            min_runtime_s=args.min_runtime,
            span_penalty=args.span_penalty,
            node_mtbf_s=args.node_mtbf,
            job_failure=args.job_failure,
            price=args.price,
            pue=args.pue,
            seed=args.seed,
            quotas=tuple(args.quota),
        )

    def read_trace(self) -> Trace:
        """Read the trace, draw models if asked to, and keep only the jobs of `team` if there is one."""
        trace = read_any_trace(self.trace, self.format, self.skip_bad)
        if self.draw_models:  # before jobs are left out, so that a job gets the same model with any team
            models, kinds = self.read_models(), parse_cluster(self.cluster).kind.names
            trace = replace(trace, jobs=assign_drawn_models(trace.jobs, models, kinds, self.seed))
        if isinstance(table := self.read_models(), ThroughputTable):
            trace = replace(trace, jobs=table.time_jobs(trace.jobs))
        if self.team is not None:
            trace = replace(trace, jobs=trace.jobs.take(np.array(self._find_team_jobs(trace))))
        check_teams(self.budgets, trace.jobs, self.trace)
        check_owners(self.read_quotas(), trace.jobs, self.trace)
        return replace(trace, jobs=self._set_checkpoints(trace.jobs))

    def _set_checkpoints(self, jobs: Jobs) -> Jobs:
        """Return *jobs* with the checkpoints of the command line where the trace has none of its own."""
        if self.min_runtime_s:
            jobs = replace(jobs, min_runtime_s=np.maximum(jobs.min_runtime_s, self.min_runtime_s))
        if self.checkpoint_s is None:
            return jobs
        usual = (jobs.checkpoint_s == 0) & (jobs.preemptible == PREEMPTIBLE_ALWAYS)
        return replace(
            jobs,
            checkpoint_s=np.where(jobs.checkpoint_s == 0, self.checkpoint_s, jobs.checkpoint_s),
            preemptible=np.where(usual, PREEMPTIBLE_ONCE_SAVED, jobs.preemptible),
        )

    def _find_team_jobs(self, trace: Trace) -> list[bool]:
        in_team = [word == self.team for word in trace.jobs.team.words()]
        if any(in_team):
            return in_team
        teams = sorted(set(trace.jobs.team.words()) - {""})
        if not teams:
            raise ConfigError(f"--team {self.team}: {self.trace} names no teams")
        raise ConfigError(
            f"--team {self.team}: no such team in {self.trace}, expected one of {', '.join(teams)}"
        )

    def read_models(self, trace_format: str = "") -> AnyModels:
        """Return the models, which both the simulator and the policy use."""
        return read_models(self.models, self.span_penalty, trace_format)

    def read_budgets(self) -> tuple[Budget, ...]:
        """Parse the budgets."""
        return tuple(map(parse_budget, self.budgets))

    def read_quotas(self) -> Quotas:
        """Parse the quotas."""
        return Quotas(tuple(map(parse_quota, self.quotas)))

    def read_price(self) -> Price | None:
        """Parse the price of energy; None without one."""
        if self.price is None and self.pue != 1.0:
            raise ConfigError(f"--pue {self.pue:g} needs a price of energy", hint="add --price")
        return None if self.price is None else parse_price(self.price, self.pue)

    def build_policy_and_placer(self) -> tuple[Policy, Placer]:
        """Return the policy, with budgets, price and eta where it has them, and the placer."""
        policy, place = parse_policy_and_placer(self.policy, self.place, self.backfill)
        if self.budgets and has_knob(policy, "budgets"):
            policy = set_knob(policy, "budgets", self.read_budgets())
        if has_knob(policy, "price") and (price := self.read_price()) is not None:
            policy = set_knob(policy, "price", price)
        if self.read_quotas().limits:
            policy = insert_quota(policy)
        return policy if self.eta is None else set_knob(policy, "eta", self.eta), place

    def run(
        self, trace: Trace, progress: Callable[[float, int], None] | None = None
    ) -> tuple[Log, dict[str, Any]]:
        """Simulate; return the run log, and the CPU time and peak memory of this process."""
        models = self.read_models(trace.format)
        sim = Sim(
            trace.jobs,
            parse_cluster(self.cluster),
            truth=models,
            quantum_s=self.quantum_s,
            overheads=Overheads(restart_s=self.restart_s, rescale_s=self.rescale_s),
            faults=Faults(node_mtbf_s=self.node_mtbf_s, job_failure=self.job_failure),
            seed=self.seed,
        )
        trace_header = {"name": trace.name, "format": trace.format, "sha256": trace.sha256, "team": self.team}
        policy, place = self.build_policy_and_placer()
        start_s = time.process_time()
        log = run(
            sim,
            policy,
            models,
            place=place,
            seed=self.seed,
            trace=trace_header,
            price=self.read_price(),
            progress=progress,
            quotas=self.read_quotas(),
        )
        cpu_s = time.process_time() - start_s
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return log, {"cpu_s": round(cpu_s, 4), "peak_rss_mb": round(peak_mb, 1)}

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
from wattline.cli.simulation.assume_argument import (
    Assumed,
    build_estimates,
    has_limits,
    parse_assumed,
)
from wattline.cli.simulation.models_argument import AnyModels, assign_drawn_models, read_models
from wattline.cli.simulation.policy_argument import check_owners, check_teams, parse_policy_and_placer
from wattline.cli.simulation.rules_argument import find_spread, join_quotas, list_rule_assumptions
from wattline.cluster import parse_cluster
from wattline.core.jobs import PREEMPTIBLE_ALWAYS, PREEMPTIBLE_ONCE_SAVED, Jobs
from wattline.core.nodes import Nodes
from wattline.core.protocols import Placer, Policy
from wattline.core.quotas import Quotas, parse_quota
from wattline.core.table import Floats
from wattline.energy.budgets import Budget, parse_budget
from wattline.energy.prices import Price, parse_price
from wattline.errors import ConfigError
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.models.throughput_table import ThroughputTable
from wattline.optimize.bound.limits import BOUND_JOBS, LowerBound
from wattline.placement.pack import Pack
from wattline.placement.power import Power
from wattline.policy.chain import Chain
from wattline.policy.knobs import has_knob, insert_quota, set_knob, turn_energy_knob
from wattline.policy.turns import find_turn
from wattline.reports.assumptions import CLAIRVOYANT, Assumption, list_assumptions, with_limit_watts
from wattline.rules.binding import BoundRules, bind_rules
from wattline.rules.dependencies import has_dependencies
from wattline.rules.describe import describe_rules
from wattline.rules.drains import DrainTimes
from wattline.rules.logged import encode_rules
from wattline.rules.reader import read_rules
from wattline.trace import Trace
from wattline.trace import read as read_any_trace
from wattline.trace.outages import read_outages
from wattline.trace.read_counts import describe_counts
from wattline.trace.reader import shift_seed
from wattline.units import pluralize


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
    energy_knob: float | None = None  # value of the energy knob; None: as the policy has it
    quotas: tuple[str, ...] = ()
    assume: tuple[str, ...] = ()
    durations: str = CLAIRVOYANT
    start_s: float = 0.0  # time that each start takes
    kill_at_limit: bool = False
    columns: str | None = None
    drop_running: bool = False
    outages: str | None = None
    rules: tuple[str, ...] = ()  # files
    keep_nodes: bool = False  # jobs hold at most the nodes that they were recorded on
    rules_off: tuple[str, ...] = ()  # parts of the rules that are left out, to show their effect

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
            assume=tuple(args.assume),
            durations=args.durations or CLAIRVOYANT,
            kill_at_limit=args.kill_at_limit,
            columns=args.columns,
            drop_running=args.drop_running,
            outages=args.outages,
            rules=tuple(args.rules),
        )

    def shift_seed(self, by: int) -> SimulationCase:
        """Return this simulation with the seed moved on, also that of a synthetic trace."""
        return replace(self, seed=self.seed + by, trace=shift_seed(self.trace, by))

    @property
    def has_seeded_trace(self) -> bool:
        """True if another seed gives other jobs."""
        return self.draw_models or shift_seed(self.trace, 1) != self.trace

    def read_trace(self) -> Trace:
        """Read the trace, draw models if asked to, and keep only the jobs of `team` if there is one."""
        trace = read_any_trace(self.trace, self.format, self.skip_bad, self.columns)
        if self.drop_running:
            trace = trace.drop_running()
        if self.draw_models:  # before jobs are left out, so that a job gets the same model with any team
            models, kinds = self.read_models(), parse_cluster(self.cluster).kind.names
            trace = replace(trace, jobs=assign_drawn_models(trace.jobs, models, kinds, self.seed))
        if isinstance(table := self.read_models(), ThroughputTable):
            trace = replace(trace, jobs=table.time_jobs(trace.jobs))
        if self.team is not None:
            trace = trace.take(np.array(self._find_team_jobs(trace)))
        check_teams(self.budgets, trace.jobs, self.trace)
        check_owners(self._parse_quotas(), trace.jobs, self.trace)
        return replace(trace, jobs=set_checkpoints(trace.jobs, self.checkpoint_s, self.min_runtime_s))

    @property
    def needs_records(self) -> bool:
        """True if the run reads limits or names that the trace records."""
        return self.durations != CLAIRVOYANT or self.kill_at_limit or self.keep_nodes or bool(self.rules)

    def drop_records(self, trace: Trace) -> Trace:
        """Return *trace* without its recorded schedule if the run does not read it."""
        if self.needs_records or has_dependencies(trace.recorded):
            return trace
        return replace(trace, recorded=None)

    def _find_limits(self, trace: Trace) -> Floats | None:
        """Return the time limits at which jobs are killed; None: they are not."""
        if not self.kill_at_limit:
            return None
        if trace.recorded is None or not has_limits(trace):
            raise ConfigError(f"--kill-at-limit: {trace.name} records no time limits")
        return trace.recorded.time_limit_s + self.start_s

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

    def check_turns(self) -> None:
        """Raise if jobs would take turns that are no longer than a restart, so that none would ever end."""
        turn = find_turn(self.build_policy_and_placer()[0])
        restart_s = self.restart_s + self.start_s
        if turn is None or max(turn.least_s, self.quantum_s or 0.0, self.min_runtime_s) > restart_s:
            return
        knob, longer = turn.knob.removesuffix("_s"), f"{2 * restart_s:g}s"
        raise ConfigError(
            f"{self.policy}: jobs take turns of {turn.least_s:g} s ({turn.stage}'s {knob}) and a restart"
            f" takes {restart_s:g} s, so no job would ever do any work; expected turns longer than a restart",
            hint=f"{turn.stage}:{knob}={longer}, or --min-runtime {longer}",
        )

    def read_models(self, trace_format: str = "") -> AnyModels:
        """Return the models, which both the simulator and the policy use."""
        return read_models(self.models, self.span_penalty, self.read_assumed().scaling, trace_format)

    def read_assumed(self) -> Assumed:
        """Parse the assumptions that were named."""
        return parse_assumed(self.assume)

    def read_nodes(self) -> Nodes:
        """Return the nodes of the cluster, with the watts that are assumed."""
        nodes = parse_cluster(self.cluster)
        return with_limit_watts(nodes) if self.read_assumed().watts == "limit" else nodes

    def list_assumptions(self, trace: Trace) -> tuple[Assumption, ...]:
        """Return what the result of this simulation of *trace* depends on besides its inputs."""
        assumed = self.read_assumed()
        rules = list_rule_assumptions(self.bind_rules(trace))
        return rules + list_assumptions(
            trace.jobs,
            self.read_nodes(),
            self.read_models(trace.format),
            scaling=assumed.scaling,
            watts=assumed.watts,
            restart_s=self.restart_s,
            checkpoint_s=self.checkpoint_s,
            span_penalty=self.span_penalty,
            durations=self.durations,
        )

    def read_budgets(self) -> tuple[Budget, ...]:
        """Parse the budgets."""
        return tuple(map(parse_budget, self.budgets))

    def _parse_quotas(self) -> Quotas:
        return Quotas(tuple(map(parse_quota, self.quotas)))

    def read_quotas(self, jobs: Jobs) -> Quotas:
        """Return the quotas, and those of the rules for users and teams that have jobs."""
        if not self.rules or "quotas" in self.rules_off:
            return self._parse_quotas()
        return join_quotas(self._parse_quotas(), read_rules(self.rules), jobs)

    def bind_rules(self, trace: Trace) -> BoundRules | None:
        """Return the rules and dependencies of *trace*; None: there are none."""
        rules = read_rules(self.rules)
        keep_nodes = self.keep_nodes and self.uses_pack
        if not (rules or keep_nodes or has_dependencies(trace.recorded)) and self.outages is None:
            return None
        nodes, origin_s = parse_cluster(self.cluster), trace.origin_s
        drains: DrainTimes = ()
        if self.outages is not None and self.uses_pack:
            drains = read_outages(self.outages).match_drains(nodes.name.tolist(), origin_s)
        return bind_rules(
            rules, trace.jobs, trace.recorded, nodes, origin_s, self.rules_off, drains, keep_nodes
        )

    @property
    def uses_pack(self) -> bool:
        """True if the placer can keep jobs off drained nodes, and to a number of nodes."""
        policy, place = parse_policy_and_placer(self.policy, self.place, self.backfill)
        stages = policy.stages if isinstance(policy, Chain) else (policy,)
        named = any(getattr(stage, "names_nodes", False) for stage in stages)
        return isinstance(place.place if isinstance(place, Power) else place, Pack) and not named

    def describe_rules(self, trace: Trace) -> list[str]:
        """Return messages about the rules: what was read, what has no effect, how names were matched."""
        bound = self.bind_rules(trace)
        return [] if bound is None else [*describe_rules(bound.rules), *bound.notes]

    def read_price(self) -> Price | None:
        """Parse the price of energy; None without one."""
        if self.price is None and self.pue != 1.0:
            raise ConfigError(f"--pue {self.pue:g} needs a price of energy", hint="add --price")
        return None if self.price is None else parse_price(self.price, self.pue)

    def read_faults(self, trace: Trace) -> Faults:
        """Return the failures of nodes and jobs, with the recorded outages if there are any."""
        outages: tuple[tuple[int, float, float], ...] = ()
        if self.outages is not None:
            names = parse_cluster(self.cluster).name.tolist()
            outages, _ = read_outages(self.outages).match(names, trace.origin_s)
        return Faults(node_mtbf_s=self.node_mtbf_s, job_failure=self.job_failure, outages=outages)

    def describe_outages(self, trace: Trace) -> list[str]:
        """Return messages about the recorded outages: their counts, and how nodes were matched."""
        if self.outages is None:
            return []
        outages = read_outages(self.outages)
        _, how = outages.match(parse_cluster(self.cluster).name.tolist(), trace.origin_s)
        counts = outages.counts
        nodes = pluralize(len(set(outages.node.words())), "node")
        text = f"{self.outages}: {pluralize(counts.jobs, 'outage')} of {nodes}"
        if drains := int(outages.drained.sum()):
            text += f", and {pluralize(drains, 'time')} that nodes were drained"
            text += "" if self.uses_pack else ", which this policy or placer cannot replay: left out"
        if counts.dropped:
            text += f"; left out {describe_counts(counts.dropped)}"
        return [text, how] if how else [text]

    def build_policy_and_placer(self, trace: Trace | None = None) -> tuple[Policy, Placer]:
        """Return the policy, with budgets, price and energy knob where it has them, and the placer.

        Both keep the rules and quotas of *trace*; None: they are left out.
        """
        policy, place = parse_policy_and_placer(self.policy, self.place, self.backfill)
        if self.budgets and has_knob(policy, "budgets"):
            policy = set_knob(policy, "budgets", self.read_budgets())
        if has_knob(policy, "price") and (price := self.read_price()) is not None:
            policy = set_knob(policy, "price", price)
        policy = policy if self.energy_knob is None else turn_energy_knob(policy, self.energy_knob)
        if trace is None:
            return policy, place
        if (bound := self.bind_rules(trace)) is not None:
            policy, place = bound.insert_stages(policy), bound.replace_placer(place)
        if self.read_quotas(trace.jobs).limits:
            policy = insert_quota(policy)
        return policy, place

    def run(
        self, trace: Trace, progress: Callable[[float, int], None] | None = None
    ) -> tuple[Log, dict[str, Any]]:
        """Simulate; return the run log, and the CPU time of the run."""
        models, bound = self.read_models(trace.format), self.bind_rules(trace)
        sim = Sim(
            trace.jobs if bound is None else bound.adjust_jobs(trace.jobs),
            self.read_nodes(),
            truth=models,
            quantum_s=self.quantum_s,
            overheads=Overheads(
                start_s=self.start_s, restart_s=self.restart_s + self.start_s, rescale_s=self.rescale_s
            ),
            faults=self.read_faults(trace),
            seed=self.seed,
            limit_s=self._find_limits(trace),
            spread=find_spread(bound),
        )
        trace_header = {"name": trace.name, "format": trace.format, "sha256": trace.sha256, "team": self.team}
        policy, place = self.build_policy_and_placer(trace)
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
            quotas=self.read_quotas(trace.jobs),
            durations=build_estimates(self.durations, trace),
            assumptions=[assumption.as_dict() for assumption in self.list_assumptions(trace)],
        )
        cpu_s = time.process_time() - start_s
        if bound is not None:
            log.header["rules"] = encode_rules(bound, trace)
        return log, {"cpu_s": round(cpu_s, 4)}


def find_bound(case: SimulationCase, trace: Trace, wanted: bool | None) -> LowerBound:
    """Return the bounds that hold for every policy; *wanted* None: only of up to `BOUND_JOBS` jobs."""
    if case.job_failure or case.kill_at_limit:
        return LowerBound(none="jobs may fail before they have done their work")
    count = len(trace.jobs)
    if wanted is False or (wanted is None and count > BOUND_JOBS):
        return LowerBound(none="" if wanted is False else f"not computed ({count:,} jobs); type --bound")
    from wattline.optimize.bound.lower_bound import find_lower_bound  # compiles

    return find_lower_bound(case.read_models(trace.format), trace.jobs, case.read_nodes())


def measure_peak_memory() -> dict[str, float]:
    """Return the largest memory that this process has had so far; call it after the report was made."""
    return {"peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)}


def set_checkpoints(jobs: Jobs, checkpoint_s: float | None, min_runtime_s: float) -> Jobs:
    """Return *jobs* with the checkpoints of the command line where they have none of their own."""
    if min_runtime_s:
        jobs = replace(jobs, min_runtime_s=np.maximum(jobs.min_runtime_s, min_runtime_s))
    if checkpoint_s is None:
        return jobs
    usual = (jobs.checkpoint_s == 0) & (jobs.preemptible == PREEMPTIBLE_ALWAYS)
    return replace(
        jobs,
        checkpoint_s=np.where(jobs.checkpoint_s == 0, checkpoint_s, jobs.checkpoint_s),
        preemptible=np.where(usual, PREEMPTIBLE_ONCE_SAVED, jobs.preemptible),
    )

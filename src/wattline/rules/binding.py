"""Rules bound to the jobs and nodes of one simulation, and the policy and placer that keep them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.protocols import Placer, Policy
from wattline.core.reasons import REASONS, Reason
from wattline.core.table import Ints
from wattline.errors import ConfigError
from wattline.placement.pack import Pack
from wattline.placement.power import Power
from wattline.policy import DEADLINE, ELASTIC
from wattline.policy.chain import Chain, spell
from wattline.policy.stages.fairshare import FairShare
from wattline.rules.dependencies import Dependencies, bind_dependencies, find_never
from wattline.rules.drains import DrainTimes, NodeDrains
from wattline.rules.job_rules import JobRules, bind_jobs
from wattline.rules.node_limits import RecordedNodeLimits, bind_node_limits
from wattline.rules.node_sets import NodeSets, bind_nodes
from wattline.rules.placer import RuledPack
from wattline.rules.rule_set import RuleSet
from wattline.rules.stage import OperatorRules
from wattline.rules.windows import ReservationWindows, bind_windows
from wattline.trace.recorded import RecordedSchedule
from wattline.units import pluralize

_WINDOW_LIMIT = REASONS.index(Reason.WINDOW_LIMIT)
_BEHIND = ("keep", "preempt", "demand", "fuse", "cap", "batch", "quota")


@dataclass(frozen=True, eq=False)
class BoundRules:
    """Rules as columns of jobs and nodes; None: there are none of that kind."""

    rules: RuleSet
    jobs: JobRules | None
    nodes: NodeSets | None
    windows: ReservationWindows | None
    dependencies: Dependencies | None
    drains: NodeDrains | None = None
    node_limits: RecordedNodeLimits | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about how the rules were matched with the trace and the cluster."""
        parts = (self.jobs, self.nodes, self.windows, self.dependencies)
        never = [] if self.jobs is None else _describe_never(self.jobs.never)
        return (*(note for part in parts if part is not None for note in part.notes), *never)

    def adjust_jobs(self, jobs: Jobs) -> Jobs:
        """Return *jobs* with the times for which their QOS exempts them from preemption."""
        if self.jobs is None or not self.jobs.exempt_s.any():
            return jobs
        return replace(jobs, min_runtime_s=np.maximum(jobs.min_runtime_s, self.jobs.exempt_s))

    def insert_stages(self, policy: Policy) -> Policy:
        """Return *policy* with the stages that keep the rules.

        They are behind the stage that orders jobs or chooses their GPUs, and also before the latter.
        """
        stages: list[Any] = list(policy.stages) if isinstance(policy, Chain) else [policy]
        names = [spell(stage).partition(":")[0] for stage in stages]
        if self.rules.limits_nodes and any(getattr(stage, "names_nodes", False) for stage in stages):
            raise ConfigError(
                f"{spell(policy)} chooses the nodes of jobs itself, and cannot keep rules about nodes",
                hint="leave out --rules, or take another policy",
            )
        end = len(stages)
        while end and names[end - 1] in _BEHIND:
            end -= 1
        elastic = [at for at, name in enumerate(names) if name in (*ELASTIC, *DEADLINE)]
        fair = self.rules.fairshare
        if fair is not None and not any(isinstance(stage, FairShare) for stage in stages):
            at = elastic[0] if elastic else end
            stages.insert(at, FairShare(fair.half_life_s, fair.age_s))
            elastic, end = [place + 1 for place in elastic], end + 1
        stage = OperatorRules(self.jobs, self.dependencies, self.windows)
        if self.jobs or self.dependencies or self.windows:
            stages.insert(end, stage)
            if elastic:
                stages.insert(elastic[0], replace(stage, before=True))
        return Chain(tuple(stages))

    def replace_placer(self, place: Placer) -> Placer:
        """Return the placer that keeps to the nodes of the rules, in place of `pack`."""
        if self.nodes is None or not (self.rules.limits_nodes or self.drains or self.node_limits):
            return place
        if isinstance(place, Power):
            return replace(place, place=self.replace_placer(place.place))
        if not isinstance(place, Pack):
            if not self.rules.limits_nodes:
                return place  # without drains and recorded numbers of nodes, which commands announce
            raise ConfigError(
                f"the placer {spell(place)} does not know partitions, reservations and racks",
                hint="--rules needs --place pack, or pack+power",
            )
        return RuledPack(self.nodes, self.jobs, self.windows, self.drains, place.backfill, self.node_limits)


def bind_rules(
    rules: RuleSet,
    jobs: Jobs,
    recorded: RecordedSchedule | None,
    nodes: Nodes,
    origin_s: float | None,
    parts_off: Sequence[str] = (),
    drains: DrainTimes = (),
    keep_nodes: bool = False,
) -> BoundRules | None:
    """Return the rules of one simulation; None: there are neither rules, dependencies, drains nor limits.

    *origin_s* is time 0 of the jobs in seconds since 1970. *parts_off* names parts to leave out, which are
    fields of `RuleSet`, `dependencies` or `nodes`. *keep_nodes*: jobs hold at most the nodes that they were
    recorded on.
    """
    for part in parts_off:
        if part not in ("dependencies", "nodes"):
            rules = rules.without(part)
    dependencies = None if "dependencies" in parts_off else bind_dependencies(jobs, recorded)
    drained = NodeDrains.of(drains, len(nodes))
    limits = bind_node_limits(recorded) if keep_nodes and "nodes" not in parts_off else None
    if not rules:
        if dependencies is None and drained is None and limits is None:
            return None
        return BoundRules(rules, None, bind_nodes(rules, nodes), None, dependencies, drained, limits)
    sets = bind_nodes(rules, nodes)
    of_jobs = bind_jobs(rules, jobs, recorded, sets.gpus)
    windows = bind_windows(rules.reservations, jobs, recorded, nodes, sets.rows, origin_s, of_jobs.limit_s)
    never = of_jobs.never
    if windows is not None:
        too_long = windows.find_never(jobs, nodes, of_jobs.partition_bit, sets.bits)
        never = np.where((never == 0) & too_long, _WINDOW_LIMIT, never)
    if dependencies is not None:
        never = find_never(dependencies, never)
    return BoundRules(rules, replace(of_jobs, never=never), sets, windows, dependencies, drained, limits)


def _describe_never(never: Ints) -> list[str]:
    """Return how many jobs never start, by the reason."""
    counts = np.bincount(never, minlength=1).tolist()
    return [
        f"{pluralize(count, 'job')} never start{'s' if count == 1 else ''}: {REASONS[code].value}"
        for code, count in enumerate(counts)
        if code and count
    ]

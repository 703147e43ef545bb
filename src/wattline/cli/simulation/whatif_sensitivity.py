"""Runs with pessimistic values of the assumptions of a what-if study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from wattline.cli.simulation.pool import SimulationPool
from wattline.cli.simulation.rules_argument import WITHOUT
from wattline.cli.simulation.scenario import SimulationCase
from wattline.cli.simulation.whatif_runs import WorldRun, measure_run, simulate_world
from wattline.reports.assumptions import Assumption
from wattline.units import format_seconds, parse_seconds
from wattline.whatif.result import World
from wattline.whatif.sensitivity import describe_change
from wattline.whatif.window import PreparedTrace, Window


class Simulated(Protocol):
    """A policy of a study."""

    @property
    def name(self) -> str:
        """Its name in tables."""
        ...

    @property
    def case(self) -> SimulationCase:
        """Its simulation."""
        ...

    @property
    def by_partition(self) -> bool:
        """True if its jobs have learnt priorities."""
        ...


def check_assumptions(
    pool: SimulationPool,
    policies: Sequence[Simulated],
    prepared: PreparedTrace,
    window: Window,
    world: World,
) -> tuple[Assumption, ...]:
    """Return every assumption of the study with its effect on *policies*, in the first *world*."""
    case = policies[-1].case
    found = list(case.list_assumptions(prepared.trace))
    now = {row.policy: row.metrics for row in world.rows if row.policy in {one.name for one in policies}}
    distinct = {one.name: one for one in policies}
    rows = [
        (WorldRun(pessimise(one.case, assumption), window, world.load, one.by_partition),)
        for assumption in found
        if assumption.pessimistic
        for one in distinct.values()
    ]
    digests = iter(list(pool.map(simulate_world, rows)))
    checked = []
    for assumption in found:
        if assumption.pessimistic:
            then = {name: measure_run(next(digests), prepared, world.gpus) for name in distinct}
            base = {name: now[name] for name in distinct}
            assumption = replace(assumption, effect=describe_change(assumption.pessimistic, base, then))
        checked.append(assumption)
    if case.start_s > 0:
        says = f"each start takes {format_seconds(case.start_s)}, as fitted to the records"
        checked.append(Assumption("start", f"{case.start_s:g}s", says))
    return tuple(checked)


def count_checks(assumptions: Sequence[Assumption]) -> int:
    """Return the number of runs that the check of *assumptions* needs."""
    return 2 * sum(1 for assumption in assumptions if assumption.pessimistic)


def pessimise(simulated: SimulationCase, assumption: Assumption) -> SimulationCase:
    """Return *simulated* with the pessimistic value of *assumption*."""
    value = assumption.pessimistic
    match assumption.name:
        case "scaling" | "watts":
            return replace(simulated, assume=(*simulated.assume, f"{assumption.name}={value}"))
        case "restart":
            # Policies that swap jobs more often than a restart takes would never end any.
            least_s = max(simulated.min_runtime_s, 2 * parse_seconds(value))
            return replace(simulated, restart_s=parse_seconds(value), min_runtime_s=least_s)
        case "checkpoints":
            return replace(simulated, checkpoint_s=parse_seconds(value))
        case _ if assumption.pessimistic == WITHOUT:
            return replace(simulated, rules_off=(*simulated.rules_off, assumption.name))
        case "span":
            return replace(simulated, span_penalty=float(value))
        case _:
            return replace(simulated, durations=value)

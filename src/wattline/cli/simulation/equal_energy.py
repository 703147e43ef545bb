"""Runs of a policy with other etas, and the eta at which it compares fairly with other policies."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import isfinite

from wattline.cli.simulation.pool import SimulationPool
from wattline.cli.simulation.scenario import SimulationCase
from wattline.errors import ConfigError
from wattline.policy.knobs import has_knob, list_policies_with_knob
from wattline.reports import Report, report
from wattline.reports.equal_energy import EtaSweep, MatchedComparison
from wattline.reports.knob_search import GRID, Metric, find_knob_value
from wattline.trace import Trace


def find_case_with_eta(cases: Sequence[SimulationCase]) -> int:
    """Return the row of the first case with an eta that can also hold a budget, else the first with one."""
    policies = [case.build_policy_and_placer()[0] for case in cases]
    rows = [row for row, policy in enumerate(policies) if has_knob(policy, "eta")]
    if rows:
        return next((row for row in rows if has_knob(policies[row], "budgets")), rows[0])
    names = ", ".join(case.policy for case in cases)
    raise ConfigError(
        f"none of {names} has an eta to choose, expected one with {list_policies_with_knob('eta')}"
    )


def sweep_eta(pool: SimulationPool, case: SimulationCase, row: int) -> EtaSweep:
    """Run *case*, the *row*-th of those compared, for every eta of the grid."""
    reports = pool.map(simulate_report, [(replace(case, eta=eta),) for eta in GRID])
    return EtaSweep(case.policy, GRID, tuple(reports), row)


def match_other_cases(
    pool: SimulationPool,
    cases: Sequence[SimulationCase],
    reports: Sequence[Report],
    row: int,
    figure: Metric,
) -> tuple[MatchedComparison, ...]:
    """Compare the *row*-th case with each other one at the eta at which both are equal in *figure*.

    Cases without energy, or without a finished job that took any time, are left out.
    """
    tuned = cases[row]

    def run(eta: float) -> Report:
        return pool.call(simulate_report, replace(tuned, eta=eta))

    def match_case(other: int) -> MatchedComparison:
        target = getattr(reports[other], figure)
        return MatchedComparison(
            cases[other].policy, tuned.policy, reports[other], find_knob_value(run, target, figure)
        )

    if not any(map(_is_comparable, sweep_eta(pool, tuned, row).reports)):
        return ()
    others = [other for other, r in enumerate(reports) if other != row and _is_comparable(r)]
    if pool.processes == 1:
        return tuple(map(match_case, others))
    with ThreadPoolExecutor(pool.processes) as searches:  # each thread waits for its own runs
        return tuple(searches.map(match_case, others))


def _is_comparable(r: Report) -> bool:
    return all(isfinite(figure) and figure > 0 for figure in (r.energy_j, r.jct_mean_s))


def simulate_report(trace: Trace, case: SimulationCase) -> Report:
    """Simulate *case* and return only its report."""
    return report(case.run(trace)[0])

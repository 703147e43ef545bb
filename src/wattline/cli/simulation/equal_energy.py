"""What can a policy do with one eta or another, and which eta compares it fairly with other runs?"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import isfinite

from wattline.cli.simulation.pool import Pool
from wattline.cli.simulation.scenario import Case
from wattline.errors import ConfigError
from wattline.policy.knobs import has_knob, who_has
from wattline.reports import Report, report
from wattline.reports.equal_energy import Equal, Swept
from wattline.reports.knob_search import GRID, Figure, match
from wattline.trace import Trace


def with_eta(cases: Sequence[Case]) -> int:
    """Which of *cases* has an eta: the first that can hold a budget, too, or else the first."""
    has = [row for row, case in enumerate(cases) if has_knob(case.deciders()[0], "eta")]
    if has:
        return next((row for row in has if has_knob(cases[row].deciders()[0], "budgets")), has[0])
    named = ", ".join(case.policy for case in cases)
    raise ConfigError(f"none of {named} has an eta to choose, expected one with {who_has('eta')}")


def sweep(pool: Pool, case: Case, row: int) -> Swept:
    """The runs of *case*, the *row*-th of those compared, for every eta of the grid."""
    runs = pool.each(run_for_report, [(replace(case, eta=eta),) for eta in GRID])
    return Swept(case.policy, GRID, tuple(runs), row)


def equals(
    pool: Pool, cases: Sequence[Case], reports: Sequence[Report], row: int, figure: Figure
) -> tuple[Equal, ...]:
    """The *row*-th case against each of the others, at the eta at which it meets them in *figure*.

    What has no energy, or no finished job that took any time, cannot be met, and is left out.
    """
    ours = cases[row]

    def run(eta: float) -> Report:
        return pool.get(run_for_report, replace(ours, eta=eta))

    def against(other: int) -> Equal:
        target = getattr(reports[other], figure)
        return Equal(cases[other].policy, ours.policy, reports[other], match(run, target, figure))

    if not any(map(_known, sweep(pool, ours, row).reports)):
        return ()
    others = [other for other, r in enumerate(reports) if other != row and _known(r)]
    if pool.processes == 1:
        return tuple(map(against, others))
    with ThreadPoolExecutor(pool.processes) as searches:  # each waits for its own runs
        return tuple(searches.map(against, others))


def _known(r: Report) -> bool:
    return all(isfinite(figure) and figure > 0 for figure in (r.energy_j, r.jct_mean_s))


def run_for_report(trace: Trace, case: Case) -> Report:
    """A run of which only the figures are wanted."""
    return report(case.run(trace)[0])

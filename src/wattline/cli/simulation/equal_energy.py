"""Runs of a policy with other values of its energy knob, and the value at which it compares fairly."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import isfinite

from wattline.cli.simulation.pool import SimulationPool
from wattline.cli.simulation.scenario import SimulationCase
from wattline.core.energy_knob import EnergyKnob
from wattline.errors import ConfigError
from wattline.policy.knobs import find_energy_knob, list_policies_with_energy_knob
from wattline.reports import Report, report
from wattline.reports.equal_energy import KnobSweep, MatchedComparison
from wattline.reports.knob_search import Metric, find_knob_value, search_log_scale
from wattline.trace import Trace


@dataclass(frozen=True)
class TunedCase:
    """The case with the knob that is turned, and its row among those compared."""

    row: int
    case: SimulationCase
    knob: EnergyKnob

    def turn(self, value: float) -> SimulationCase:
        """Return the case with its knob at *value*."""
        return replace(self.case, energy_knob=value)


def find_tuned_case(cases: Sequence[SimulationCase]) -> TunedCase:
    """Return the first case with an energy knob; one of a whole policy comes before one of a stage."""
    knobs = [find_energy_knob(case.build_policy_and_placer()[0]) for case in cases]
    found = [(knob.secondary, row, knob) for row, knob in enumerate(knobs) if knob is not None]
    if found:
        _, row, knob = min(found, key=lambda each: each[:2])
        return TunedCase(row, cases[row], knob)
    names = ", ".join(case.policy for case in cases)
    raise ConfigError(
        f"none of {names} has an energy knob to turn, expected one with {list_policies_with_energy_knob()}"
    )


def sweep_knob(pool: SimulationPool, tuned: TunedCase) -> KnobSweep:
    """Run the tuned case for every value of its knob's grid."""
    grid = tuned.knob.grid
    reports = pool.map(simulate_report, [(tuned.turn(value),) for value in grid])
    return KnobSweep(tuned.case.policy, tuned.knob.name, grid, tuple(reports), tuned.row)


def match_other_cases(
    pool: SimulationPool,
    cases: Sequence[SimulationCase],
    reports: Sequence[Report],
    tuned: TunedCase,
    figure: Metric,
) -> tuple[MatchedComparison, ...]:
    """Compare the tuned case with each other one at the knob value at which both are equal in *figure*.

    Cases without energy, or without a finished job that took any time, are left out.
    """

    def run(value: float) -> Report:
        return pool.call(simulate_report, tuned.turn(value))

    def match_case(other: int) -> MatchedComparison:
        target = getattr(reports[other], figure)
        if tuned.knob.scale == "log":
            match = search_log_scale(run, target, figure, tuned.knob)
        else:
            match = find_knob_value(run, target, figure, grid=tuned.knob.grid)
        return MatchedComparison(
            cases[other].policy, tuned.case.policy, reports[other], match, tuned.knob.name
        )

    if tuned.knob.scale == "linear":
        if not any(map(_is_comparable, sweep_knob(pool, tuned).reports)):
            return ()
    elif not any(_is_comparable(run(value)) for value in (0.0, tuned.knob.start)):
        return ()
    others = [other for other, r in enumerate(reports) if other != tuned.row and _is_comparable(r)]
    if pool.processes == 1:
        return tuple(map(match_case, others))
    with ThreadPoolExecutor(pool.processes) as searches:  # each thread waits for its own runs
        return tuple(searches.map(match_case, others))


def _is_comparable(r: Report) -> bool:
    return all(isfinite(figure) and figure > 0 for figure in (r.energy_j, r.jct_mean_s))


def simulate_report(trace: Trace, case: SimulationCase) -> Report:
    """Simulate *case* and return only its report."""
    return report(case.run(trace)[0])

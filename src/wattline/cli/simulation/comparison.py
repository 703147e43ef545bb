"""Simulation of several policies on one trace, for `wattline compare`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from wattline.cli.output import check_writable, notify, print_json, progress_bar, warn_skipped_rows
from wattline.cli.simulation.equal_energy import (
    TunedCase,
    find_tuned_case,
    match_other_cases,
    sweep_knob,
)
from wattline.cli.simulation.policy_argument import warn_fixed_sizes, warn_no_fusion_keys
from wattline.cli.simulation.pool import SimulationPool
from wattline.cli.simulation.scenario import SimulationCase, find_bound, measure_peak_memory
from wattline.cli.simulation.unfinished import (
    UnfinishedCounts,
    count_unfinished,
    describe_budget_limit,
    describe_impossible,
    explain_nothing_started,
)
from wattline.errors import ConfigError
from wattline.loop.log_writer import write_log
from wattline.optimize.bound.limits import LowerBound
from wattline.policy import ELASTIC, ORDERS
from wattline.policy.knobs import build_budget_error, has_knob
from wattline.reports import Comparison, PlotData, Report, build_plot_data, compare, write_html
from wattline.reports.seed_means import SeedRuns
from wattline.trace import Trace

_RUNS_PER_SEARCH = 3  # mean, for the progress bar


class SimulatedPolicy(NamedTuple):
    """Result of one policy: its digest, the CPU time and memory used, and the unfinished jobs."""

    digest: PlotData
    cost: dict[str, Any]
    unfinished: UnfinishedCounts


def compare_policies(args: argparse.Namespace) -> int:
    """Simulate the policies of *args*, print the comparison and return the exit code."""
    texts = [*args.policy, *((*ORDERS, *ELASTIC) if args.policies == "all" else ())]
    if not texts:
        raise ConfigError("no policy given", hint="--policy fifo --policy las, or --policies all")
    cases = [SimulationCase.from_arguments(args, text) for text in dict.fromkeys(texts)]
    _check_cases(cases)
    tuned = find_tuned_case(cases) if args.equal_energy or args.equal_jct or args.front else None
    _check_seeds(cases[0], args)
    trace = cases[0].read_trace()
    for case in cases:
        warn_no_fusion_keys(case.policy, trace.jobs)
    log_paths = _list_log_paths(args, cases, 0)
    check_writable(args.html, *log_paths)
    warn_skipped_rows(trace)
    for message in (*cases[0].describe_outages(trace), *cases[0].describe_rules(trace)):
        notify(message)
    trace = cases[0].drop_records(trace)
    more_cpu_s = 0.0
    with (
        progress_bar(f"{len(cases)} policies on {trace.name}", _estimate_runs(cases, tuned, args)) as update,
        SimulationPool(trace, args.jobs, update) as pool,
    ):
        bound = find_bound(cases[0], trace, args.bound)
        results = list(
            pool.map(_simulate_case, [(*row, bound) for row in zip(cases, log_paths, strict=True)])
        )
        comparison = compare(*(result.digest for result in results))
        if tuned is not None:
            comparison = _add_tuned_runs(comparison, pool, cases, tuned, args)
        if args.seeds > 1:
            seed_runs, more_cpu_s = _simulate_other_seeds(cases, comparison.reports, args, update)
            comparison = replace(comparison, seed_runs=seed_runs)
    if args.html:
        write_html(args.html, comparison)
        notify(f"page: {args.html}")
    if args.json:
        data = {**comparison.as_dict(), "read": trace.counts.as_dict()}
        for row, case, result in zip(data["reports"], cases, results, strict=True):
            row.update(policy=case.policy, policy_exact=row["policy"], left=result.unfinished, **result.cost)
        print_json(data)
    else:
        print(comparison)
        cpu_s = sum(result.cost["cpu_s"] for result in results) + more_cpu_s
        tuning = pool.count - len(results)
        more = f", and {tuning} runs with other values of {tuned.knob.name}" if tuned and tuning else ""
        seeds = f" x {args.seeds} seeds" if args.seeds > 1 else ""
        notify(f"{len(cases)} x {len(trace.jobs)} jobs{seeds} in {cpu_s:.1f} CPU s{more}")
    return _report_unfinished(cases, results, trace)


def _check_cases(cases: Sequence[SimulationCase]) -> None:
    """Parse all policies before the first run, and warn of missing budgets and models."""
    for case in cases:
        case.check_turns()
        warn_fixed_sizes(case.policy, case.models, case.assume)
    can_hold = [has_knob(case.build_policy_and_placer()[0], "budgets") for case in cases]
    if not cases[0].budgets or all(can_hold):
        return
    without = ", ".join(case.policy for case, can in zip(cases, can_hold, strict=True) if not can)
    if not any(can_hold):
        raise build_budget_error(without)
    notify(f"simulated without the budget, because they cannot hold one: {without}")


def _estimate_runs(cases: Sequence[SimulationCase], tuned: TunedCase | None, args: argparse.Namespace) -> int:
    """Return about how many runs there will be, for the progress bar."""
    searches = (int(args.equal_energy) + int(args.equal_jct)) * (len(cases) - 1)
    seeds: int = args.seeds
    return len(cases) * seeds + (len(tuned.knob.grid) if tuned else 0) + _RUNS_PER_SEARCH * searches


def _check_seeds(case: SimulationCase, args: argparse.Namespace) -> None:
    """Raise where several seeds cannot be averaged, and announce where they change little."""
    if args.seeds == 1:
        return
    if args.equal_energy or args.equal_jct or args.front:
        raise ConfigError(
            f"--seeds {args.seeds}: --equal-energy, --equal-jct and --front are of one seed",
            hint="leave out --seeds, or those three",
        )
    if not case.has_seeded_trace:
        notify(
            f"{case.trace} has the same jobs with every seed: the intervals are those of failures and of"
            " random policies alone; --trace synth or combined, or --draw-models, draw other jobs"
        )


def _simulate_other_seeds(
    cases: Sequence[SimulationCase],
    first: Sequence[Report],
    args: argparse.Namespace,
    update: Callable[[float], None],
) -> tuple[SeedRuns, float]:
    """Simulate all seeds but the first, which has the reports *first*; return all reports and CPU seconds."""
    by_seed, cpu_s = [tuple(first)], 0.0
    for number in range(1, args.seeds):
        shifted = [case.shift_seed(number) for case in cases]
        trace = shifted[0].drop_records(shifted[0].read_trace())
        bound, done = find_bound(shifted[0], trace, args.bound), number * len(cases)

        def count(runs: float, done: int = done) -> None:
            update(done + runs)

        with SimulationPool(trace, args.jobs, count) as pool:
            rows = zip(shifted, _list_log_paths(args, shifted, number), strict=True)
            results = list(pool.map(_simulate_case, [(*row, bound) for row in rows]))
        by_seed.append(tuple(result.digest.report for result in results))
        cpu_s += sum(result.cost["cpu_s"] for result in results)
    return SeedRuns(tuple(zip(*by_seed, strict=True))), cpu_s


def _list_log_paths(
    args: argparse.Namespace, cases: Sequence[SimulationCase], number: int
) -> list[str | None]:
    """Return the path of the log of each case; with several seeds it names the seed."""
    if not args.logs:
        return [None] * len(cases)
    seed = f"-seed{args.seed + number}" if args.seeds > 1 else ""
    return [_log_path(args.logs, case, seed) for case in cases]


def _add_tuned_runs(
    comparison: Comparison,
    pool: SimulationPool,
    cases: Sequence[SimulationCase],
    tuned: TunedCase,
    args: argparse.Namespace,
) -> Comparison:
    """Add the parts that need more runs of the *tuned* case."""
    reports = comparison.reports
    if args.front:
        comparison = replace(comparison, sweep=sweep_knob(pool, tuned))
    if args.equal_energy:
        equal = match_other_cases(pool, cases, reports, tuned, "energy_j")
        comparison = replace(comparison, equal_energy=equal)
    if args.equal_jct:
        equal = match_other_cases(pool, cases, reports, tuned, "jct_mean_s")
        comparison = replace(comparison, equal_jct=equal)
    return comparison


def _report_unfinished(
    cases: Sequence[SimulationCase], results: Sequence[SimulatedPolicy], trace: Trace
) -> int:
    """Print which policies left jobs unfinished because of a budget; return the exit code."""
    reports = [result.digest.report for result in results]
    if all(report.never_started == report.jobs for report in reports):
        messages = (
            explain_nothing_started(result.unfinished, trace.jobs, case)
            for case, result in zip(cases, results, strict=True)
        )
        for message in dict.fromkeys(messages):
            notify(message)
        return 4
    for case, result in zip(cases, results, strict=True):
        message = describe_budget_limit(result.unfinished, result.digest.report.jobs, case.budgets)
        if message:
            notify(f"{case.policy}: {message}")
    impossible = [describe_impossible(result.unfinished, result.digest.report.jobs) for result in results]
    for case, message in zip(cases, impossible, strict=True):
        if message and len(set(impossible)) > 1:
            notify("\n".join(f"{case.policy}: {line}" for line in message.splitlines()))
    if len(set(impossible)) == 1 and impossible[0]:
        notify(impossible[0])
    return 4 if any(impossible) else 0


def _simulate_case(
    trace: Trace, case: SimulationCase, log_path: str | None, bound: LowerBound
) -> SimulatedPolicy:
    log, cost = case.run(trace)
    log.header["bound"] = bound.as_dict()
    if log_path:
        write_log(log, log_path)
    digest = build_plot_data(log)
    return SimulatedPolicy(digest, cost | measure_peak_memory(), count_unfinished(log))


def _log_path(logs: str, case: SimulationCase, seed: str) -> str:
    name = "".join(c if c.isalnum() or c in "-+=.@" else "_" for c in case.policy)
    return str(Path(logs) / f"{name}{seed}.jsonl.gz")

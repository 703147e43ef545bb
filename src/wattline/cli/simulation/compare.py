"""`wattline compare`: several policies on one trace."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from wattline.cli.output import bar, show_json, tell, tell_skipped
from wattline.cli.output_check import claim
from wattline.cli.simulation.equal_energy import equals, sweep, with_eta
from wattline.cli.simulation.policy_argument import tell_elastic, tell_fuse
from wattline.cli.simulation.pool import Pool
from wattline.cli.simulation.scenario import Case
from wattline.cli.simulation.unfinished import Left, blame, left, nobody
from wattline.errors import ConfigError
from wattline.loop.runlog import write_log
from wattline.policy import ELASTIC, ORDERS
from wattline.policy.knobs import has_knob, refuse_budget
from wattline.reports import Comparison, Digest, compare, digest, write_html
from wattline.reports.knob_search import GRID
from wattline.trace import Trace

_TRIES = 3  # of a search, on average


def run(args: argparse.Namespace) -> int:
    """Simulate every policy, print the comparison and write what was asked for."""
    texts = [*args.policy, *(_all(args.models) if args.policies == "all" else ())]
    if not texts:
        raise ConfigError("no policy given", hint="--policy fifo --policy las, or --policies all")
    cases = [Case.of(args, text) for text in dict.fromkeys(texts)]
    _check(cases)
    tuned = with_eta(cases) if args.equal_energy or args.equal_jct or args.front else 0
    trace = cases[0].read()
    for case in cases:
        tell_fuse(case.policy, trace.jobs)
    claim(args.html, *(path for path in _log_paths(args.logs, cases) if path))
    tell_skipped(trace)
    rows = list(zip(cases, _log_paths(args.logs, cases), strict=True))
    with (
        bar(f"{len(cases)} policies on {trace.name}", _expected(cases, args)) as done,
        Pool(trace, args.jobs, done) as pool,
    ):
        ran = list(pool.each(_run_one, rows))
        comparison = _tuned(compare(*(one.digest for one in ran)), pool, cases, tuned, args)
    if args.html:
        write_html(args.html, comparison)
        tell(f"page: {args.html}")
    if args.json:
        result = comparison.as_dict()
        for row, case, one in zip(result["reports"], cases, ran, strict=True):
            row.update(policy=case.policy, policy_exact=row["policy"], left=one.left, **one.cost)
        show_json(result)
    else:
        print(comparison)
        cpu_s = sum(one.cost["cpu_s"] for one in ran)
        more = f", and {pool.count - len(ran)} runs with other etas" if pool.count > len(ran) else ""
        tell(f"{len(cases)} x {len(trace.jobs)} jobs in {cpu_s:.1f} CPU s{more}")
    return _conclude(cases, ran, trace)


def _all(models: str | None) -> tuple[str, ...]:
    """The built-in policies; those that change the number of GPUs only where it is known what that does."""
    return ORDERS if models is None else (*ORDERS, *ELASTIC)


def _check(cases: Sequence[Case]) -> None:
    """Find what is misspelt before anything has run, and say who is without a budget or models."""
    for case in cases:
        tell_elastic(case.policy, case.models)
    holds = [has_knob(case.deciders()[0], "budgets") for case in cases]
    if not cases[0].budgets or all(holds):
        return
    without = ", ".join(case.policy for case, can in zip(cases, holds, strict=True) if not can)
    if not any(holds):
        raise refuse_budget(without)
    tell(f"without a budget, because they cannot hold one: {without}")


def _expected(cases: Sequence[Case], args: argparse.Namespace) -> int:
    """About how many runs there will be, for a progress bar."""
    searches = (int(args.equal_energy) + int(args.equal_jct)) * (len(cases) - 1)
    return len(cases) + (len(GRID) if searches or args.front else 0) + _TRIES * searches


def _tuned(
    seen: Comparison, pool: Pool, cases: Sequence[Case], row: int, args: argparse.Namespace
) -> Comparison:
    """The comparison with what else was asked for, which takes more runs of the policy that has an eta."""
    reports = seen.reports
    if args.front:
        seen = replace(seen, swept=sweep(pool, cases[row], row))
    if args.equal_energy:
        seen = replace(seen, equal_energy=equals(pool, cases, reports, row, "energy_j"))
    if args.equal_jct:
        seen = replace(seen, equal_jct=equals(pool, cases, reports, row, "jct_mean_s"))
    return seen


def _conclude(cases: Sequence[Case], ran: Sequence[_Ran], trace: Trace) -> int:
    """Say who was left by a budget; answers the exit code."""
    reports = [one.digest.report for one in ran]
    if all(r.never_started == r.jobs for r in reports):
        for why in dict.fromkeys(
            nobody(one.left, trace.jobs, case) for case, one in zip(cases, ran, strict=True)
        ):
            tell(why)
        return 4
    for case, one in zip(cases, ran, strict=True):
        if said := blame(one.left, one.digest.report.jobs, case.budgets):
            tell(f"{case.policy}: {said}")
    return 0


class _Ran(NamedTuple):
    digest: Digest
    cost: dict[str, Any]
    left: Left


def _run_one(trace: Trace, case: Case, log_path: str | None) -> _Ran:
    log, cost = case.run(trace)
    if log_path:
        write_log(log, log_path)
    return _Ran(digest(log), cost, left(log))


def _log_paths(logs: str | None, cases: Sequence[Case]) -> list[str | None]:
    return [_log_path(logs, case) if logs else None for case in cases]


def _log_path(logs: str, case: Case) -> str:
    name = "".join(c if c.isalnum() or c in "-+=.@" else "_" for c in case.policy)
    return str(Path(logs) / f"{name}.jsonl.gz")

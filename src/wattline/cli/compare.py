"""`wattline compare`: several policies on one trace."""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from wattline.cli.case import Case
from wattline.cli.claim import claim
from wattline.cli.show import bar, show_json, tell, tell_skipped
from wattline.errors import ConfigError
from wattline.log import write_log
from wattline.policy import ORDERS
from wattline.policy.parse import parse_policy
from wattline.report import Digest, compare, digest, write_html
from wattline.trace import Trace


def run(args: argparse.Namespace) -> int:
    """Simulate every policy, print the comparison and write what was asked for."""
    texts = [*args.policy, *(ORDERS if args.policies == "all" else ())]
    if not texts:
        raise ConfigError("no policy given", hint="--policy fifo --policy las, or --policies all")
    cases = [Case.of(args, text) for text in dict.fromkeys(texts)]
    for case in cases:
        parse_policy(case.policy)  # a misspelt one should not be found after the others have run
    trace = cases[0].read()
    claim(args.html, *(str(_log_path(args.logs, case)) for case in cases if args.logs))
    tell_skipped(trace)
    digests, costs = [], []
    with bar(f"{len(cases)} policies on {trace.name}", len(cases)) as done:
        for found, cost in _run_all(cases, trace, args.jobs, args.logs):
            digests.append(found)
            costs.append(cost)
            done(len(digests))
    comparison = compare(*digests)
    if args.html:
        write_html(args.html, digests)
        tell(f"page: {args.html}")
    if args.json:
        result = comparison.as_dict()
        for row, case, cost in zip(result["reports"], cases, costs, strict=True):
            row.update(policy=case.policy, policy_exact=row["policy"], **cost)
        show_json(result)
    else:
        print(comparison)
        tell(f"{len(cases)} x {len(trace.jobs)} jobs in {sum(c['cpu_s'] for c in costs):.1f} CPU s")
    if all(d.report.never_started == d.report.jobs for d in digests):
        tell("no job could start on this cluster")
        return 4
    return 0


def _run_all(
    cases: list[Case], trace: Trace, processes: int, logs: str | None
) -> Iterator[tuple[Digest, dict[str, Any]]]:
    if processes == 1:
        for case in cases:
            yield _run_one(case, trace, logs)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_run_one, cases, [trace] * len(cases), [logs] * len(cases))


def _run_one(case: Case, trace: Trace, logs: str | None) -> tuple[Digest, dict[str, Any]]:
    log, cost = case.run(trace)
    if logs:
        write_log(log, _log_path(logs, case))
    return digest(log), cost


def _log_path(logs: str, case: Case) -> Path:
    name = "".join(c if c.isalnum() or c in "-+=." else "_" for c in case.policy)
    return Path(logs) / f"{name}.jsonl.gz"

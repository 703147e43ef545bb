"""`wattline simulate`: one policy on one trace."""

from __future__ import annotations

import argparse

from wattline.cli.output import bar, show_json, tell, tell_skipped
from wattline.cli.output_check import claim
from wattline.cli.simulation.policy_argument import tell_elastic, tell_fuse
from wattline.cli.simulation.scenario import Case
from wattline.cli.simulation.unfinished import blame, left, nobody
from wattline.loop.runlog import write_log
from wattline.policy.knobs import has_knob, refuse_budget
from wattline.reports import report, write_html


def run(args: argparse.Namespace) -> int:
    """Simulate, then print the report and write what was asked for."""
    case = Case.of(args, args.policy)
    if case.budgets and not has_knob(case.deciders()[0], "budgets"):
        raise refuse_budget(args.policy)
    tell_elastic(case.policy, case.models)
    trace = case.read()
    tell_fuse(case.policy, trace.jobs)
    claim(args.log, args.html)
    tell_skipped(trace)
    last_s = float(trace.jobs.submit_s[-1])
    with bar(f"{args.policy} on {trace.name}", last_s) as done:
        log, cost = case.run(trace, lambda now_s, _: done(now_s))
    result, waiting = report(log), left(log)
    if args.log:
        write_log(log, args.log)
        tell(f"log: {args.log}")
    if args.html:
        write_html(args.html, [log])
        tell(f"page: {args.html}")
    if args.json:
        named = {"policy": args.policy, "policy_exact": result.policy, "left": waiting}
        show_json({**result.as_dict(), **named, **cost})
    else:
        print(result)
        tell(f"{len(trace.jobs)} jobs in {cost['cpu_s']:.2f} CPU s, {cost['peak_rss_mb']:.0f} MB")
    if result.never_started == result.jobs:
        tell(nobody(waiting, trace.jobs, case))
        return 4
    if said := blame(waiting, result.jobs, case.budgets):
        tell(said)
    return 0

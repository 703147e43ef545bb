"""`wattline simulate`: simulate one policy on a trace."""

from __future__ import annotations

import argparse

from wattline.cli.arguments import add_output_arguments
from wattline.cli.compile_progress import announce_compilation
from wattline.cli.output import (
    check_writable,
    notify,
    print_json,
    progress_bar,
    warn_skipped_rows,
)
from wattline.cli.simulation.scenario_arguments import add_scenario_arguments
from wattline.units import pluralize


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline simulate`."""
    add_scenario_arguments(parser)
    parser.add_argument(
        "--policy",
        default="fifo",
        metavar="P",
        help="stages joined by +, knobs after :, placer after @ (las:quantum=10m+keep@buddy;"
        " default fifo; wattline policies lists them)",
    )
    parser.add_argument("--log", metavar="FILE", help="write the run log (.jsonl or .jsonl.gz)")
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate, print the report and write the files asked for."""
    progress = announce_compilation()
    from wattline.cli.simulation.policy_argument import warn_fixed_sizes, warn_no_fusion_keys
    from wattline.cli.simulation.scenario import SimulationCase, find_bound, measure_peak_memory
    from wattline.cli.simulation.unfinished import (
        count_unfinished,
        describe_budget_limit,
        describe_impossible,
        explain_nothing_started,
    )
    from wattline.loop.log_writer import write_log
    from wattline.policy.knobs import build_budget_error, has_knob
    from wattline.reports import report, write_html

    progress.finish()

    case = SimulationCase.from_arguments(args, args.policy)
    if case.budgets and not has_knob(case.build_policy_and_placer()[0], "budgets"):
        raise build_budget_error(args.policy)
    case.check_turns()
    warn_fixed_sizes(case.policy, case.models, case.assume)
    trace = case.read_trace()
    warn_no_fusion_keys(case.policy, trace.jobs)
    check_writable(args.log, args.html)
    warn_skipped_rows(trace)
    for message in (*case.describe_outages(trace), *case.describe_rules(trace)):
        notify(message)
    trace = case.drop_records(trace)
    last_submit_s = float(trace.jobs.submit_s[-1])
    with progress_bar(f"{args.policy} on {trace.name}", last_submit_s) as update:
        log, cost = case.run(trace, lambda now_s, _: update(now_s))
    log.header["bound"] = find_bound(case, trace, args.bound).as_dict()
    result, unfinished = report(log), count_unfinished(log)
    cost |= measure_peak_memory()
    if args.log:
        write_log(log, args.log)
        notify(f"log: {args.log}")
    if args.html:
        write_html(args.html, [log])
        notify(f"page: {args.html}")
    if args.json:
        identity = {"policy": args.policy, "policy_exact": result.policy, "left": unfinished}
        print_json({**result.as_dict(), **identity, **cost, "read": trace.counts.as_dict()})
    else:
        print(result)
        notify(
            f"{pluralize(len(trace.jobs), 'job')} in {cost['cpu_s']:.2f} CPU s, {cost['peak_rss_mb']:.0f} MB"
        )
    if result.never_started == result.jobs:
        notify(explain_nothing_started(unfinished, trace.jobs, case))
        return 4
    if message := describe_budget_limit(unfinished, result.jobs, case.budgets):
        notify(message)
    if message := describe_impossible(unfinished, result.jobs):
        notify(message)
        return 4
    return 0

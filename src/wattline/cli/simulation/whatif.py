"""`wattline whatif`: what other policies would have done with recorded jobs."""

from __future__ import annotations

import argparse
import math
import os

from wattline.cli.arguments import add_output_arguments, non_negative_int, positive_int, with_unit
from wattline.cli.compile_progress import announce_compilation
from wattline.cli.simulation.scenario_arguments import (
    CLUSTER_HELP,
    add_durations_argument,
    add_seeds_argument,
    add_world_arguments,
)
from wattline.units import parse_seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline whatif`."""
    add, seconds = parser.add_argument, with_unit(parse_seconds)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--sacct", metavar="FILE", help="export of Slurm's sacct -P")
    source.add_argument("--trace", metavar="FILE", help="trace of any format, or synth[:count=1000,...]")
    add("--cluster", action="append", required=True, metavar="C", help=f"{CLUSTER_HELP} (repeatable)")
    add(
        "--policies",
        nargs="+",
        default=["all"],
        metavar="P",
        help="policies to try, as P or P@PLACER, joined by commas or separated by blanks; all: every"
        " built-in one (default all)",
    )
    add("--user", metavar="NAME", help="also show what would change for the jobs of this user")
    add_world_arguments(parser)
    add_durations_argument(parser, None)
    add("--seed", type=non_negative_int, default=0, metavar="N", help="first seed (default 0)")
    add_seeds_argument(parser)
    add("--load", type=_loads, default=(1.0,), metavar="L", help="loads relative to the trace: 0.8,1.0,1.2")
    add("--from", dest="window_from", metavar="T", help=_TIME.format("begin"))
    add("--to", dest="window_to", metavar="T", help=_TIME.format("end"))
    add("--warmup", type=seconds, default=0.0, metavar="T", help=_EDGE.format("first"))
    add("--cooldown", type=seconds, default=0.0, metavar="T", help=_EDGE.format("last"))
    add(
        "--jobs",
        type=positive_int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes to use (default: one for each core)",
    )
    add_output_arguments(parser)


_TIME = "{} of the part to simulate: 2026-01-31, or 7d after the first submission"
_EDGE = "simulate, but do not count, jobs submitted in the {} T"


def _loads(text: str) -> tuple[float, ...]:
    try:
        loads = tuple(float(part) for part in text.split(","))
    except ValueError:
        loads = ()
    if not loads or not all(0 < load < math.inf for load in loads):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers above 0, expected 0.8,1.0,1.2")
    return tuple(dict.fromkeys(loads))


def run(args: argparse.Namespace) -> int:
    """Simulate, print the answer and write the page."""
    progress = announce_compilation()
    from wattline.cli.output import check_writable, notify, print_json
    from wattline.cli.simulation.whatif_study import answer_question
    from wattline.whatif.text import format_answer

    progress.finish()

    check_writable(args.html)
    answer = answer_question(args)
    if args.html:
        from wattline.whatif.page import write_answer

        write_answer(args.html, answer)
        notify(f"page: {args.html}")
    if args.json:
        print_json(answer.as_dict())
    else:
        print(format_answer(answer))
    started = any(row.metrics.unfinished < row.metrics.jobs for row in answer.worlds[0].rows)
    return 0 if started else 4

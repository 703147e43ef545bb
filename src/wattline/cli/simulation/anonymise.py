"""`wattline anonymise`: write a trace that can be shared."""

from __future__ import annotations

import argparse

from wattline.cli.arguments import add_json_argument
from wattline.cli.output import check_writable, notify, print_json, warn_skipped_rows
from wattline.units import pluralize


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline anonymise`."""
    add = parser.add_argument
    add("trace", metavar="FILE", help="trace file of any format")
    add("--out", required=True, metavar="FILE", help="CSV to write, compressed if it ends in .gz")
    add(
        "--secret",
        metavar="TEXT",
        help="key of the pseudonyms: with the same one, equal names of several files stay equal"
        " (default: a random one, which is forgotten)",
    )
    add(
        "--keep",
        action="append",
        default=[],
        metavar="COLUMN",
        help="column to leave as it is: model, partition, qos, team, user, name, … (repeatable)",
    )
    add("--format", metavar="NAME", help="format of the trace (default: detected from its content)")
    add("--columns", metavar="C", help="columns of a table, as for wattline simulate")
    add("--skip-bad", action="store_true", help="skip and count broken rows (default: stop at the first)")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Read the trace, replace its names and write it."""
    import secrets

    from wattline.trace import read, write_trace
    from wattline.trace.anonymise import NAMED, anonymise

    check_writable(args.out)
    secret = secrets.token_bytes(32) if args.secret is None else args.secret.encode()
    trace = read(args.trace, args.format, args.skip_bad, args.columns)
    warn_skipped_rows(trace)
    shared = anonymise(trace, secret, args.keep)
    write_trace(shared.jobs, args.out, shared.recorded)
    replaced = [name for name in NAMED if name not in args.keep]
    if args.json:
        print_json(
            {
                "out": args.out,
                "jobs": len(shared.jobs),
                "replaced": replaced,
                "kept": list(args.keep),
                "read": trace.counts.as_dict(),
            }
        )
    else:
        notify(f"{args.out}: {pluralize(len(shared.jobs), 'job')}; replaced {', '.join(replaced)}")
        notify("kept: times since the first submission, durations, GPUs, GPU kinds, limits, usual states")
    return 0

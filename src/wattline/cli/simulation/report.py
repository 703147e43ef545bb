"""`wattline report`: report job times and energy from run logs."""

from __future__ import annotations

import argparse

from wattline.cli.arguments import add_output_arguments
from wattline.cli.compile_progress import announce_compilation
from wattline.cli.output import check_writable, notify, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline report`."""
    parser.add_argument(
        "logs", nargs="+", metavar="LOG", help="run logs written by --log; several are compared"
    )
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the report of one log, or the comparison of several."""
    progress = announce_compilation()
    from wattline.loop.log_reader import read_log
    from wattline.reports import build_plot_data, compare, write_html

    progress.finish()

    check_writable(args.html)
    digests = [build_plot_data(read_log(path)) for path in args.logs]
    if args.html:
        write_html(args.html, digests)
        notify(f"page: {args.html}")
    result = digests[0].report if len(digests) == 1 else compare(*digests)
    if args.json:
        print_json(result.as_dict())
    else:
        print(result)
    return 0

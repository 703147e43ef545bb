"""`wattline report`: what run logs say."""

from __future__ import annotations

import argparse

from wattline.cli.output import show_json, tell
from wattline.cli.output_check import claim
from wattline.loop.runlog import read_log
from wattline.reports import compare, digest, write_html


def run(args: argparse.Namespace) -> int:
    """Print the report of one log, or the comparison of several."""
    claim(args.html)
    digests = [digest(read_log(path)) for path in args.logs]
    if args.html:
        write_html(args.html, digests)
        tell(f"page: {args.html}")
    if len(digests) == 1:
        found = digests[0].report
        show_json(found.as_dict()) if args.json else print(found)
        return 0
    comparison = compare(*digests)
    show_json(comparison.as_dict()) if args.json else print(comparison)
    return 0

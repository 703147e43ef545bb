"""`wattline queue`: who waits, who runs, and why? The newest are last, and totals at the bottom."""

from __future__ import annotations

import argparse
import time

from wattline.cli.output import show_json
from wattline.cli.service.connect import reach
from wattline.cli.service.job_text import LIVE, table, totals


def run(args: argparse.Namespace) -> int:
    """List jobs."""
    states = args.state or (None if args.all else list(LIVE))
    jobs = reach(args).jobs({"state": states, "team": args.team, "user": args.user})
    if args.json:
        show_json({"jobs": jobs})
        return 0
    if jobs:
        print("\n".join(table(jobs, time.time())))
    print(totals(jobs))
    return 0

"""`wattline priority JOB N`: who should go before whom?"""

from __future__ import annotations

import argparse

from wattline.cli.output import show_json
from wattline.cli.service.connect import path_of, reach


def run(args: argparse.Namespace) -> int:
    """Give a job another priority."""
    job = reach(args).patch(path_of(args.job), {"priority": args.priority})
    if args.json:
        show_json(job)
    else:
        print(f"job {job['id']} has priority {job['priority']:g}")
    return 0

"""`wattline explain JOB`: why is it where it is, and what would change that?"""

from __future__ import annotations

import argparse
from typing import Any

from wattline.cli.output import show_json
from wattline.cli.service.connect import path_of, reach
from wattline.cli.service.job_text import clean, clock


def run(args: argparse.Namespace) -> int:
    """Explain one job."""
    said = reach(args).get(path_of(args.job, "explain"))
    if args.json:
        show_json(said)
    else:
        print("\n".join(_lines(said)))
    return 0


def _lines(said: dict[str, Any]) -> list[str]:
    lines = [f"job {said['job']} is {said['state']}: {clean(said['reason'])}".rstrip(": ")]
    lines += [f"  {clean(fact)}" for fact in said["evidence"]]
    if said["expected"]:
        lines.append(f"expected {clean(said['expected']['text'])}")
    if said["changes"]:
        lines.append("what would change that:")
        lines += [f"  {clean(what['text'])}" for what in said["changes"]]
    if said["decided_s"] is not None:
        lines.append(f"(decided at {clock(said['decided_s'])}, epoch {said['epoch']})")
    return lines

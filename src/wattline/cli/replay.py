"""`wattline replay`: decide again from a run log and insist on the same actions."""

from __future__ import annotations

import argparse

from wattline.backend.replay import Replay
from wattline.cli.show import show_json
from wattline.engine import run as run_loop
from wattline.log import read_log
from wattline.model.asked import Asked
from wattline.place.pack import Pack
from wattline.policy.parse import parse_policy


def run(args: argparse.Namespace) -> int:
    """Replay; a first difference is an error."""
    log = read_log(args.log_file)
    again = run_loop(
        Replay(log),
        parse_policy(args.policy),
        Asked(span_penalty=args.span_penalty),
        place=Pack(args.backfill),
        seed=log.header["seed"],
        trace=log.header["trace"],
    )
    result = {"log": args.log_file, "rounds": len(again), "actions": len(again.actions), "same": True}
    if args.json:
        show_json(result)
    else:
        print(f"{len(again.actions)} actions in {len(again)} rounds: the same again")
    return 0

"""`wattline replay`: decide again from a run log and insist on the same actions."""

from __future__ import annotations

import argparse

from wattline.backend.replay import Replay
from wattline.cli.output import show_json
from wattline.cli.simulation.models_argument import read_beliefs
from wattline.cli.simulation.policy_argument import check_teams, read_deciders
from wattline.energy.budgets import parse_budget
from wattline.energy.prices import Price
from wattline.loop.run import run as run_loop
from wattline.loop.runlog import read_log
from wattline.policy.knobs import has_knob, refuse_budget, turned


def run(args: argparse.Namespace) -> int:
    """Replay; a first difference is an error."""
    policy, place = read_deciders(args.policy, args.place, args.backfill)
    if args.budget and not has_knob(policy, "budgets"):
        raise refuse_budget(args.policy)
    log = read_log(args.log_file)
    if args.budget:
        check_teams(args.budget, log.jobs, args.log_file)
        policy = turned(policy, "budgets", tuple(map(parse_budget, args.budget)))
    price = Price.of(log.header["price"]) if "price" in log.header else None
    if price is not None and has_knob(policy, "price"):
        policy = turned(policy, "price", price)
    backend = Replay(log)
    again = run_loop(
        backend,
        policy,
        read_beliefs(args.models, args.span_penalty),
        place=place,
        seed=log.header["seed"],
        trace=log.header["trace"],
        price=price,
        begins=backend.begins,
    )
    result = {"log": args.log_file, "rounds": len(again), "actions": len(again.actions), "same": True}
    if args.json:
        show_json(result)
    else:
        print(f"{len(again.actions)} actions in {len(again)} rounds: the same again")
    return 0

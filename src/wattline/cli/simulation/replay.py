"""`wattline replay`: repeat the decisions of a run log and check that they are equal."""

from __future__ import annotations

import argparse

from wattline.cli.arguments import add_json_argument
from wattline.cli.compile_progress import announce_compilation
from wattline.cli.output import print_json
from wattline.cli.simulation.scenario_arguments import add_decision_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline replay`."""
    parser.add_argument("log_file", metavar="LOG", help="run log written by --log or wattline runlog")
    parser.add_argument(
        "--policy", required=True, metavar="P", help="policy of the run, as it was given then"
    )
    add_decision_arguments(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Replay the log; the first different action raises an error."""
    progress = announce_compilation()
    from wattline.backend.replay import Replay
    from wattline.cli.simulation.assume_argument import parse_assumed, read_logged_estimates
    from wattline.cli.simulation.models_argument import read_models
    from wattline.cli.simulation.policy_argument import check_teams, parse_policy_and_placer
    from wattline.energy.budgets import parse_budget
    from wattline.energy.prices import Price
    from wattline.loop.log_reader import read_log
    from wattline.loop.run import run as run_loop
    from wattline.policy.knobs import build_budget_error, has_knob, insert_quota, set_knob
    from wattline.rules.logged import read_logged_rules

    progress.finish()

    policy, place = parse_policy_and_placer(args.policy, args.place, args.backfill)
    if args.budget and not has_knob(policy, "budgets"):
        raise build_budget_error(args.policy)
    log = read_log(args.log_file)
    if args.budget:
        check_teams(args.budget, log.jobs, args.log_file)
        policy = set_knob(policy, "budgets", tuple(map(parse_budget, args.budget)))
    price = Price.from_dict(log.header["price"]) if "price" in log.header else None
    if price is not None and has_knob(policy, "price"):
        policy = set_knob(policy, "price", price)
    backend = Replay(log)
    if (rules := read_logged_rules(log.header, log.jobs, log.nodes)) is not None:
        policy, place = rules.insert_stages(policy), rules.replace_placer(place)
    if backend.quotas.limits:
        policy = insert_quota(policy)
    again = run_loop(
        backend,
        policy,
        read_models(
            args.models,
            args.span_penalty,
            parse_assumed(args.assume).scaling,
            (log.header["trace"] or {}).get("format", ""),
        ),
        place=place,
        seed=log.header["seed"],
        trace=log.header["trace"],
        price=price,
        initial_state=backend.initial_state,
        durations=read_logged_estimates(log.header),
    )
    result = {"log": args.log_file, "rounds": len(again), "actions": len(again.actions), "same": True}
    if args.json:
        print_json(result)
    else:
        print(f"all {len(again.actions)} actions in {len(again)} rounds are equal to the log")
    return 0

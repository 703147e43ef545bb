"""`wattline compare`: simulate several policies on one trace and compare them."""

from __future__ import annotations

import argparse

from wattline.cli.arguments import add_output_arguments, positive_int
from wattline.cli.compile_progress import announce_compilation
from wattline.cli.simulation.scenario_arguments import add_scenario_arguments, add_seeds_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline compare`."""
    add_scenario_arguments(parser)
    add = parser.add_argument
    add(
        "--policy",
        action="append",
        default=[],
        metavar="P",
        help="a policy to compare, as P or P@PLACER (repeat for each)",
    )
    add("--policies", choices=("all",), help="all: compare every built-in policy")
    add_seeds_argument(
        parser, ", from --seed on: another synth or combined trace, and other models, for each"
    )
    add("--jobs", type=positive_int, default=1, metavar="N", help="processes to use (default 1)")
    add("--logs", metavar="DIR", help="write one run log per policy and seed into DIR")
    tuned = "also turn the energy knob (eta) of the first policy that has one so that it"
    add("--equal-energy", action="store_true", help=f"{tuned} uses as much energy as each other policy")
    add("--equal-jct", action="store_true", help=f"{tuned} has the mean JCT of each other policy")
    add(
        "--front",
        action="store_true",
        help="also show energy and JCT of that policy over its knob's range",
    )
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate every policy, print the comparison and write the files asked for."""
    progress = announce_compilation()
    from wattline.cli.simulation.comparison import compare_policies

    progress.finish()

    return compare_policies(args)

"""`wattline tune`: show, reset or replay the batch sizes tried for recurring jobs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from wattline.cli.arguments import add_actions, add_json_argument, add_output_arguments, number, positive_int

if TYPE_CHECKING:
    from wattline.cli.main import CommandParser

_ETA = "weight of energy against time: 1: only energy counts, 0: only time (default 0.5)"


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of `wattline tune`."""
    actions = add_actions(parser)
    show = actions.add_parser("show", help="show the runs of a recurring job and its next batch size")
    show.add_argument("--gpu", metavar="KIND", help="only on this kind of GPU")
    show.add_argument("--eta", type=number, default=0.5, metavar="X", help=_ETA)
    reset = actions.add_parser("reset", help="delete the recorded runs of a recurring job")
    reset.add_argument("-y", "--yes", action="store_true", help="delete without asking")
    for action in (show, reset):
        action.add_argument("group", metavar="GROUP", help="name of the recurring job")
        action.add_argument(
            "--state", metavar="FILE", help="database of runs (default ~/.local/state/wattline/memory.db)"
        )
        add_json_argument(action)
    _add_replay_arguments(actions.add_parser("replay", help="run optimisers on recorded trainings"))


def _add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--data",
        required=True,
        metavar="DIR",
        help="directory of summary_train.csv and summary_power_<gpu>.csv",
    )
    add("--gpu", action="append", required=True, metavar="KIND", help="v100, or all (repeatable)")
    add("--eta", type=number, default=0.5, metavar="X", help=_ETA)
    add("--seeds", type=positive_int, default=20, metavar="N", help="replays of each workload (default 20)")
    add(
        "--recurrences",
        type=positive_int,
        metavar="N",
        help="runs of each job (default: two for each batch size and cap)",
    )
    add("--all-targets", action="store_true", help="each target level of the tables, not only the usual one")
    add(
        "--optimizer",
        choices=("wattline", "zeus", "both"),
        default="wattline",
        help="optimiser to run (default wattline)",
    )
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Show or delete the runs of a job, or replay recorded trainings."""
    if args.action == "replay":
        from wattline.cli.models.tune_replay import replay_recorded

        return replay_recorded(args)
    from wattline.cli.models.tune_group import reset_group, show_group

    return show_group(args) if args.action == "show" else reset_group(args)

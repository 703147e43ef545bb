"""Arguments that describe a simulation: trace, cluster, models, budgets and costs."""

from __future__ import annotations

import argparse
import math

from wattline.cli.arguments import non_negative_int, number, positive_int, with_unit
from wattline.units import parse_seconds

CLUSTER_HELP = "nodes, as in 16xv100:8,cpus=24,mem=500G+4xa100:8, or a TOML file"
NEVER = -1.0
"""Value of `--checkpoint-interval never`."""


def add_scenario_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all arguments of a simulation except the policy."""
    add = parser.add_argument
    add("--trace", required=True, metavar="FILE", help="trace file, synth[:count=1000,...] or combined[:...]")
    add("--cluster", required=True, metavar="C", help=CLUSTER_HELP)
    add_world_arguments(parser)
    add_durations_argument(parser, "clairvoyant")
    add(
        "--bound",
        action=argparse.BooleanOptionalAction,
        help="compute the mean JCT and energy below which no policy can be (default: up to 500 jobs)",
    )
    add(
        "--seed", type=non_negative_int, default=0, metavar="N", help="seed of all random numbers (default 0)"
    )


def add_durations_argument(parser: argparse.ArgumentParser, default: str | None) -> None:
    """Add `--durations`; *default* None: the time limits if they are recorded, else history."""
    shown = "limit if time limits are recorded, else history" if default is None else default
    parser.add_argument(
        "--durations",
        choices=("clairvoyant", "limit", "history"),
        default=default,
        help="what policies know of a job that has not ended: its true duration (clairvoyant), its time"
        f" limit, or an estimate from the jobs of its user that ended before (history) (default {shown})",
    )


def add_seeds_argument(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add `--seeds`; *more* is added to its help."""
    parser.add_argument(
        "--seeds",
        type=positive_int,
        default=1,
        metavar="N",
        help=f"number of seeds to average{more} (default 1)",
    )


def add_world_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a simulation besides trace, cluster, policy, durations and seed."""
    add = parser.add_argument
    seconds = with_unit(parse_seconds)
    add("--format", metavar="NAME", help="format of the trace (default: detected from its content)")
    add(
        "--columns",
        metavar="C",
        help="columns of a table, as in submit=arrival_s,duration=service_sec,gpus=gpu_count; also start,"
        " end, wait, time_limit, id, user, team, model, kind, name (default: guessed from names and values)",
    )
    add(
        "--drop-running",
        action="store_true",
        help="leave out jobs that were still running when the trace was recorded (default: they end with the"
        " work that they had done)",
    )
    add("--skip-bad", action="store_true", help="skip and count broken rows (default: stop at the first)")
    add("--team", metavar="NAME", help="simulate only the jobs of this team or virtual cluster")
    add_decision_arguments(parser)
    add(
        "--draw-models",
        action="store_true",
        help="assign each job of unknown model a random one of --models (uses --seed)",
    )
    add(
        "--quantum", type=seconds, metavar="T", help="decide only every T, as in 300s (default: at any event)"
    )
    add_stop_arguments(parser)
    _add_fault_arguments(parser)
    add(
        "--quota",
        action="append",
        default=[],
        metavar="Q",
        help="quota or share of a team or user: team:vision:gpus=8,gpu_hours_per_week=500,share=2"
        " (repeatable); every policy keeps it",
    )
    add(
        "--price",
        metavar="P",
        help="price of a kWh: 0.17, prices.csv or prices.csv/1d; adds costs to reports",
    )
    add(
        "--pue",
        type=number,
        default=1.0,
        metavar="X",
        help="power usage effectiveness: kWh paid for each kWh used (default 1)",
    )


def add_stop_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the times lost at restarts, and the checkpoints of jobs."""
    add, seconds = parser.add_argument, with_unit(parse_seconds)
    add(
        "--restart-cost",
        type=seconds,
        default=30.0,
        metavar="T",
        help="time a job loses at each restart (default 30s)",
    )
    add(
        "--rescale-cost",
        type=seconds,
        default=0.0,
        metavar="T",
        help="further time it loses if it restarts with another number of GPUs (default 0s)",
    )
    add(
        "--checkpoint-interval",
        type=_checkpoint_interval,
        metavar="T",
        help="running time between the checkpoints of a job, as in 10m, or never: a stop loses what was"
        " done since, and a job is not stopped for others before it has saved (default: jobs lose nothing"
        " when they are stopped); a column checkpoint_s or preemptible of the trace goes first",
    )
    add(
        "--min-runtime",
        type=seconds,
        default=0.0,
        metavar="T",
        help="time for which a job that was started is not stopped for others (default 0s)",
    )


def _add_fault_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the rates of failures."""
    add, seconds = parser.add_argument, with_unit(parse_seconds)
    add(
        "--node-mtbf",
        type=seconds,
        default=math.inf,
        metavar="T",
        help="mean time between failures of a node (default: nodes never fail)",
    )
    add(
        "--kill-at-limit",
        action="store_true",
        help="kill a job that reaches its recorded time limit, as Slurm does (default: it ends its work)",
    )
    add(
        "--outages",
        metavar="FILE",
        help="recorded outages of nodes to replay: a table with node, down_s and up_s, or the output of"
        " sacctmgr show event -P",
    )
    add(
        "--rules",
        action="append",
        default=[],
        metavar="FILE",
        help="operators' rules (repeatable): a TOML file, or the output of scontrol show partition, scontrol"
        " show reservation, sacctmgr show qos -P and others, one after the other",
    )
    add(
        "--job-failure",
        type=number,
        default=0.0,
        metavar="P",
        help="probability that an attempt of a job fails (default 0)",
    )


def _checkpoint_interval(text: str) -> float:
    """Return the seconds between checkpoints; -1: never."""
    if text == "never":
        return NEVER
    value_s = with_unit(parse_seconds)(text)
    if not 0 < value_s < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0, expected a time such as 10m, or never")
    return value_s


def add_decision_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that decisions depend on; a replay needs the same values as the run."""
    add = parser.add_argument
    add(
        "--place",
        default="pack",
        metavar="P",
        help="placer, which assigns nodes, GPUs, cores and memory: pack, buddy, tune or optimum;"
        " pack+power switches idle nodes off (default pack)",
    )
    add(
        "--backfill",
        choices=("none", "easy", "greedy"),
        default="easy",
        help="jobs that may start before a waiting job: none, easy (only if they do not delay it), or"
        " greedy (any that fits) (default easy)",
    )
    add(
        "--models",
        metavar="M",
        help="models of speed and power: library, a file written by fit --out, or gavel:FILE, a table of"
        " throughputs by GPU kind (default: the durations of the trace)",
    )
    add(
        "--assume",
        action="append",
        default=[],
        metavar="A",
        help="assumption about jobs of unknown model (repeatable): scaling=request (no faster on more GPUs"
        " than they ask for; the default), scaling=linear, scaling=amdahl:0.9; watts=kind (default) or"
        " watts=limit",
    )
    add(
        "--budget",
        action="append",
        default=[],
        metavar="B",
        help="energy budget: 12kW, 300kWh/day, 5GJ, 2MWh/7d, eta=0.5, tariff.csv; TEAM:B for one team"
        " (repeatable)",
    )
    add(
        "--span-penalty",
        type=number,
        default=1.0,
        metavar="X",
        help="slowdown of jobs that span several nodes (default 1: none)",
    )

"""Which options say what is simulated, and how are their values read?"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from wattline.units import parse_seconds


def add_case(parser: argparse.ArgumentParser) -> None:
    """All that a simulation can be told."""
    add = parser.add_argument
    seconds = read_by(parse_seconds)
    add("--trace", required=True, metavar="FILE", help="a trace, or synth[:count=1000,seed=0,...]")
    add("--format", metavar="NAME", help="the trace's format, when it cannot be told from its content")
    add("--skip-bad", action="store_true", help="count broken rows instead of stopping at the first")
    add("--team", metavar="NAME", help="only the jobs of this team or virtual cluster")
    add("--cluster", required=True, metavar="C", help="16xv100:8,cpus=24,mem=500G+4xa100:8, or a TOML file")
    add_deciders(parser)
    add("--draw-models", action="store_true", help="jobs of unknown models get one of --models by --seed")
    add("--quantum", type=seconds, metavar="T", help="decide only every T, in whole steps (300s)")
    add("--restart-cost", type=seconds, default=30.0, metavar="T", help="lost at each restart (default 30s)")
    add(
        "--rescale-cost",
        type=seconds,
        default=0.0,
        metavar="T",
        help="more at one on other GPUs (default 0s)",
    )
    add(
        "--node-mtbf", type=seconds, default=math.inf, metavar="T", help="mean time between a node's failures"
    )
    add("--job-failure", type=number, default=0.0, metavar="P", help="chance that an attempt of a job fails")
    add("--price", metavar="P", help="of a kWh: 0.17, prices.csv, prices.csv/1d: money in reports")
    add("--pue", type=number, default=1.0, metavar="X", help="kWh paid for each that is used (default 1)")
    add("--seed", type=at_least_0, default=0, metavar="N", help="of everything random (default 0)")


def add_deciders(parser: argparse.ArgumentParser) -> None:
    """What decisions follow from: a replay needs to be told the same as the run had."""
    add = parser.add_argument
    add(
        "--place",
        default="pack",
        metavar="P",
        help="who gets which GPUs, cores and memory: pack, buddy, tune, …, pack+power (default pack)",
    )
    modes = ("none", "easy", "greedy")
    add("--backfill", choices=modes, default="easy", help="who may overtake (default easy)")
    add(
        "--models",
        metavar="M",
        help="what jobs do: library, or a file of fit --out (default what their trace says)",
    )
    add(
        "--budget",
        action="append",
        default=[],
        metavar="B",
        help="12kW, 300kWh/day, 5GJ, 2MWh/7d, eta=0.5, tariff.csv; TEAM:B for one team (repeatable)",
    )
    add(
        "--span-penalty",
        type=number,
        default=1.0,
        metavar="X",
        help="slowdown over several nodes (default 1)",
    )


def read_by(parse: Callable[[str], float]) -> Callable[[str], float]:
    """What argparse needs of a parser of units."""

    def read(text: str) -> float:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def number(text: str) -> float:
    """Any number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def share(text: str) -> float:
    """A number above 0 and at most 1."""
    value = number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and at most 1")
    return value


def at_least_0(text: str) -> int:
    """A whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def at_least_1(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)

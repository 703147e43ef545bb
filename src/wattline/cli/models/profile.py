"""`wattline profile -- COMMAND`: measure how the speed of a command depends on cores and memory."""

from __future__ import annotations

import argparse

from wattline.cli.arguments import add_json_argument, non_negative_int, number, positive_int, with_unit
from wattline.units import parse_gib, parse_mib_s, parse_seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline profile`."""
    parser.usage = f"{parser.prog} [options] -- COMMAND ..."
    parser.add_argument(
        "words", nargs="*", metavar="COMMAND", help="command of the job; {cpus} becomes its number of cores"
    )
    _add_job_arguments(parser)
    _add_measurement_arguments(parser)
    _add_dataset_arguments(parser)
    add_json_argument(parser)


def _add_job_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", default="profile.csv", metavar="CSV", help="table to write (default profile.csv)")
    add("--fresh", action="store_true", help="discard the points in --out and measure all again")
    add("--model", metavar="NAME", help="model that is trained (default: the name of the script)")
    add("--gpu", metavar="KIND", help="kind of GPU: a100 (default: that of this machine)")
    add("--gpus", type=positive_int, default=1, metavar="N", help="GPUs of the job (default 1)")
    add("--batch", type=positive_int, default=1, metavar="N", help="samples per step (default 1)")
    add(
        "--step-pattern",
        metavar="RE",
        help=r"regular expression for the step number in the output, as in step (\d+)",
    )


def _add_measurement_arguments(parser: argparse.ArgumentParser) -> None:
    add, seconds = parser.add_argument, with_unit(parse_seconds)
    add("--cpus", type=positive_int, metavar="N", help="largest number of cores to try (default: all)")
    add("--grain", type=number, default=1.0, metavar="X", help="smallest difference in cores (default 1)")
    add("--points", type=positive_int, default=8, metavar="N", help="measure at most N points (default 8)")
    add(
        "--threshold",
        type=number,
        default=0.1,
        metavar="X",
        help="measure between two points only if their speeds differ by more (default 0.1)",
    )
    add(
        "--warmup",
        type=non_negative_int,
        metavar="N",
        help="first steps that are not counted (default: 10, plus 2 per core)",
    )
    add(
        "--seconds",
        type=seconds,
        default=30.0,
        metavar="T",
        help="measure each point at most T (default 30s)",
    )
    add(
        "--precision",
        type=number,
        default=0.02,
        metavar="X",
        help="end a point when its relative 95 %% interval is below X (default 0.02)",
    )
    add(
        "--first-step",
        type=seconds,
        default=300.0,
        metavar="T",
        help="wait at most T for the first step (default 5m)",
    )
    add("--grace", type=seconds, default=10.0, metavar="T", help="time from SIGTERM to SIGKILL (default 10s)")


def _add_dataset_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--data",
        metavar="DIR",
        help="data set with one file per sample; gives --dataset, --sample and the storage",
    )
    add("--dataset", type=with_unit(parse_gib), metavar="M", help="size of the data set (144G)")
    add("--sample", type=with_unit(parse_gib), metavar="M", help="size of a sample on storage (110K)")
    storage = parser.add_mutually_exclusive_group()
    storage.add_argument(
        "--storage",
        type=with_unit(parse_mib_s),
        metavar="R",
        help="bandwidth of the storage (500MB/s; default: measured once per node)",
    )
    storage.add_argument("--measure-storage", action="store_true", help="measure the bandwidth again")


def run(args: argparse.Namespace) -> int:
    """Measure the points that are missing, save after each, and print the result."""
    from wattline.cli.models.profile_command import profile_command

    return profile_command(args)

"""`wattline predict`: predict speed, power and energy of a job, and what a cap or a clock saves."""

from __future__ import annotations

import argparse

from wattline.cli.arguments import add_json_argument, positive_int, with_unit
from wattline.units import parse_gib, parse_mhz, parse_mib_s, parse_watts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline predict`."""
    add = parser.add_argument
    add("--model", required=True, metavar="NAME", help="model that is trained: resnet50, or SOURCE/NAME")
    add("--gpu", required=True, metavar="KIND", help="kind of GPU: a100")
    add("--gpus", type=positive_int, default=1, metavar="N", help="GPUs of the job (default 1)")
    add("--nodes", type=positive_int, metavar="N", help="nodes of the job (default: one for every 8 GPUs)")
    add(
        "--batch",
        type=positive_int,
        metavar="N",
        help="batch size of all GPUs together (default: the usual one of the model)",
    )
    add("--cap", type=with_unit(parse_watts), metavar="P", help="power cap of each GPU (250W, 0.25kW)")
    add("--clock", type=with_unit(parse_mhz), metavar="F", help="clock of each GPU (1200MHz, 1.2GHz)")
    add("--cpus", type=positive_int, metavar="N", help="CPU cores of the job (default: enough)")
    add("--mem", type=with_unit(parse_gib), metavar="M", help="memory of the job (64G; default: enough)")
    add(
        "--storage",
        type=with_unit(parse_mib_s),
        metavar="R",
        help="storage bandwidth of the job (500MB/s; default: enough)",
    )
    add("--fuse", type=positive_int, default=1, metavar="B", help="number of jobs fused into one (default 1)")
    add(
        "--aim",
        metavar="AIM",
        help="with --profile: also name the best cap and clock by energy, time or cost:ETA",
    )
    models = parser.add_mutually_exclusive_group()
    models.add_argument("--models", metavar="FILE", help="models written by fit --out (default: the library)")
    models.add_argument("--profile", metavar="CSV", help="measurements to fit first")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print the prediction with the cap and clock in *args*, and without them."""
    from wattline.cli.models.prediction import print_prediction

    return print_prediction(args)

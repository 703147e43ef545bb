"""`wattline advise`: recommend CPU cores and memory per GPU for jobs."""

from __future__ import annotations

import argparse

from wattline.cli.arguments import add_json_argument, fraction, positive_int, with_unit
from wattline.units import parse_gib


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline advise`."""
    add = parser.add_argument
    add("what", metavar="TRACE|MODEL", help="a trace, or the name of a measured model")
    add("--cluster", default="1xv100:8", metavar="C", help="nodes that jobs run on (default 1xv100:8)")
    add(
        "--models",
        metavar="M",
        help="models of speed and power: library, or a file written by fit --out (default library)",
    )
    add(
        "--keep",
        type=fraction,
        default=0.98,
        metavar="S",
        help="part of the best speed that a job must keep (default 0.98)",
    )
    add("--gpus", type=positive_int, default=1, metavar="N", help="GPUs of the job (default 1)")
    add(
        "--cpus",
        type=positive_int,
        metavar="N",
        help="cores per GPU that it requests now (default: its share of the node)",
    )
    add(
        "--mem",
        type=with_unit(parse_gib),
        metavar="M",
        help="memory per GPU that it requests now (default: its share of the node)",
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print advice for every class of jobs in a trace, or for one model."""
    from wattline.cli.models.job_advice import print_advice

    return print_advice(args)

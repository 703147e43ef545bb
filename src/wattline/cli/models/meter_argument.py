"""Argument `--meter` of `wattline doctor` and `wattline measure`."""

from __future__ import annotations

import argparse


def add_meter_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--meter`."""
    parser.add_argument(
        "--meter",
        default="auto",
        metavar="M",
        help="energy meter: auto, nvml, rapl, zeusd[:SOCKET], simulated:2xv100,…, replay:FILE or none"
        " (default auto)",
    )

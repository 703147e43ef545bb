"""`wattline fuse check SCRIPT`: measure the gain of training several jobs as one array."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from wattline.cli.arguments import add_actions, add_json_argument, positive_int, with_unit
from wattline.cli.output import notify, print_json
from wattline.errors import ConfigError
from wattline.units import parse_seconds

if TYPE_CHECKING:
    from wattline.cli.main import CommandParser
    from wattline.fusion.gain import Gain


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of `wattline fuse`."""
    check = add_actions(parser).add_parser("check", help="measure what a script would gain from fusion")
    add = check.add_argument
    add("script", metavar="SCRIPT", help="a script that calls wattline.fusion.main(build, train)")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="value in the config of a member (repeatable)",
    )
    add("--width", type=positive_int, default=8, metavar="B", help="members of the array (default 8)")
    add(
        "--seconds",
        type=with_unit(parse_seconds),
        default=5.0,
        metavar="T",
        help="length of each of the two trainings (default 5s)",
    )
    add_json_argument(check)


def run(args: argparse.Namespace) -> int:
    """Train the script for some seconds, alone and as an array, and print both speeds."""
    try:
        from wattline.fusion.gain import measure_gain
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError("PyTorch is not installed", "pip install torch==2.13.0") from None
    notify(f"training {args.script} for about {2 * args.seconds:g} s, plus compilation")
    gain = measure_gain(Path(args.script), args.width, args.set, args.seconds)
    if args.json:
        print_json({**asdict(gain), "gain": gain.gain, "fusible": not _list_unfused_parts(gain)})
    else:
        print(_format_gain(gain))
    return 0


def _list_unfused_parts(gain: Gain) -> list[str]:
    return [part.name or "the whole model" for part in gain.parts if part.how == "per member"]


def _format_gain(gain: Gain) -> str:
    from wattline.fusion.lowering.report import format_parts

    verb = "gains" if gain.gain > 1 else "loses"
    lines = [
        *format_parts(gain.parts),
        "",
        f"one member by itself    {gain.alone_steps_s:.4g} steps/s",
        f"{gain.width} members as an array  {gain.fused_steps_s:.4g} steps/s",
        f"fusing {verb}: {gain.gain:.2f} times the samples of one job after another",
    ]
    if gain.peak_gib is not None:
        lines.append(f"memory of the GPU: {gain.peak_gib:.2f} GiB at most")
    lines.append(f"architecture {gain.key}")
    return "\n".join(lines)

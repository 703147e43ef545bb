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
    from wattline.fusion.gain import Gain, StepSpeed


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
        help="length of each measurement (default 5s)",
    )
    add_json_argument(check)


def run(args: argparse.Namespace) -> int:
    """Train the script for some seconds as an array and as ordinary models, and print the speeds."""
    try:
        from wattline.fusion.gain import measure_gain
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError("PyTorch is not installed", "pip install torch==2.13.0") from None
    notify(f"training {args.script} for at least {2 * args.seconds:g} s, plus compilation")
    gain = measure_gain(Path(args.script), args.width, args.set, args.seconds)
    if args.json:
        figures = {
            "alone_steps_s": gain.alone.steps_s,
            "fused_steps_s": gain.fused.steps_s,
            "gain": gain.gain,
            "is_noisy": gain.is_noisy,
            "fusible": not _list_unfused_parts(gain),
        }
        print_json({**asdict(gain), **figures})
    else:
        print(_format_gain(gain))
    return 0


def _list_unfused_parts(gain: Gain) -> list[str]:
    return [part.name or "the whole model" for part in gain.parts if part.how == "per member"]


def _format_gain(gain: Gain) -> str:
    from wattline.fusion.lowering.report import format_parts

    width, batch = gain.width, gain.batch
    rows = [("one ordinary model", gain.alone, batch)]
    if gain.compiled is not None:
        rows.append(("the same under torch.compile", gain.compiled, batch))
    turns = "in turn" if gain.best_serial is gain.serial else "in turn, compiled"
    rows.append((f"{width} ordinary models {turns}", gain.best_serial, width * batch))
    how = "compiled" if gain.is_fused_compiled else "not compiled"
    rows.append((f"{width} members as an array", gain.fused, width * batch))
    verb = "gains" if gain.gain > 1 else "loses"
    lines = [*format_parts(gain.parts), "", f"{'':36s}samples/s   (middle half of the steps)"]
    lines += [_format_speed(label, speed, samples) for label, speed, samples in rows]
    lines += [
        f"fusing {verb}: {gain.gain:.2f} times the samples of ordinary models one after another",
        f"steps of the array are {how}; batches have {batch} samples",
    ]
    if gain.is_noisy:
        lines.append("the times of steps vary widely: repeat on an idle machine, or with a longer --seconds")
    if gain.is_fused_compiled and gain.compiled is None:
        lines.append("the ordinary model cannot be compiled by torch.compile")
    if not gain.has_loss:
        lines.append(
            "the loss is not computed by array.loss or array.each: ordinary models were timed without it"
        )
    if gain.outside_fraction > 0.1:
        lines.append(
            f"{gain.outside_fraction:.0%} of the array's time is outside of steps (loading, evaluation) "
            "and is not counted"
        )
    if gain.peak_gib is not None:
        lines.append(f"memory of the GPU: {gain.peak_gib:.2f} GiB at most")
    lines.append(f"architecture {gain.key}")
    return "\n".join(lines)


def _format_speed(label: str, speed: StepSpeed, samples: int) -> str:
    low, middle, high = (f"{samples * rate:.4g}" for rate in (speed.low, speed.steps_s, speed.high))
    return f"{label:36s}{middle:9s}   ({low} to {high})"

"""`wattline fuse check SCRIPT`: what a training script would gain from being fused."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from wattline.cli.output import show_json, tell
from wattline.errors import ConfigError

if TYPE_CHECKING:
    from wattline.fusion.gain import Gain


def run(args: argparse.Namespace) -> int:
    """Train the script for some seconds, alone and as an array, and say what came of it."""
    try:
        from wattline.fusion.gain import measure_gain
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError("PyTorch is not installed", "pip install torch==2.13.0") from None
    tell(f"training {args.script} for about {2 * args.seconds:g} s, and compiling it")
    found = measure_gain(Path(args.script), args.width, args.set, args.seconds)
    if args.json:
        show_json({**asdict(found), "gain": found.gain, "fusible": not _alone(found)})
    else:
        print(_text(found))
    return 0


def _alone(found: Gain) -> list[str]:
    return [part.name or "the whole model" for part in found.parts if part.how == "per member"]


def _text(found: Gain) -> str:
    from wattline.fusion.lowering.report import table

    words = "gains" if found.gain > 1 else "loses"
    lines = [
        *table(found.parts),
        "",
        f"one member by itself    {found.alone_steps_s:.4g} steps/s",
        f"{found.width} members as an array  {found.fused_steps_s:.4g} steps/s",
        f"fusing {words}: {found.gain:.2f} times the samples of one job after another",
    ]
    if found.peak_gib is not None:
        lines.append(f"memory of the GPU: {found.peak_gib:.2f} GiB at most")
    lines.append(f"architecture {found.key}")
    return "\n".join(lines)

"""`wattline measure -- COMMAND`: seconds and joules of a command, and how they are known."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import FrameType
from typing import Any

from wattline.cli.output import show_json, tell
from wattline.errors import ConfigError, NotFound
from wattline.meter import Meter, open_meter
from wattline.meter.caps.guard import reap
from wattline.meter.energy_window import Part, Used, Window

_LOOK_S = 0.5  # how much of a GPU that is lost may go uncounted
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(args: argparse.Namespace) -> int:
    """Run the command, say what it used, and end as it did."""
    _check(args.words)
    for left in reap():
        if left.restored:
            tell(f"GPU {left.record.uuid} had a cap that a dead process left behind: restored")
    meter = open_meter(args.meter)
    try:
        began_s = time.monotonic()
        code, used = _measured(args, meter)
        wall_s = time.monotonic() - began_s
    finally:
        meter.close()
    if args.json:
        show_json(_data(args.words, code, used, meter.name, wall_s))
    else:
        print(_text(used))
    return code


def _check(words: list[str]) -> None:
    if not words:
        raise ConfigError("there is no command, expected one after --: wattline measure -- python train.py")
    if shutil.which(words[0]) is None:
        exists = Path(words[0]).exists()
        why = "it may not be run" if exists else "no such command"
        raise (ConfigError if exists else NotFound)(f"{words[0]} cannot be started: {why}")


def _measured(args: argparse.Namespace, meter: Meter) -> tuple[int, Used]:
    """Exit code as a shell has it, and what was used until the command ended."""
    window = Window(meter, counting=False)  # the command may count them itself
    with _Signals() as signals:
        # With --json, stdout is ours: what the command prints goes where people look.
        try:
            process = subprocess.Popen(
                args.words, env=_env(args.meter, meter), stdout=2 if args.json else None
            )
        except OSError as error:
            raise ConfigError(f"{args.words[0]} cannot be started: {error.strerror}") from None
        signals.go_to(process)
        while True:
            try:
                code = process.wait(_LOOK_S)
                break
            except subprocess.TimeoutExpired:
                window.look()
    return (code if code >= 0 else 128 - code), window.end()


def _env(text: str, meter: Meter) -> dict[str, str]:
    """The command sees the meter that we see: simulated GPUs are in a state of their own."""
    spec = meter.gpus[0].spec if meter.name == "simulated" else text
    return dict(os.environ) if spec == "auto" else {**os.environ, "WATTLINE_METER": spec}


class _Signals:
    """Who wants to end us ends the command; what is typed at a terminal reaches it without us."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: list[int] = []  # for a command that has not yet started

    def __enter__(self) -> _Signals:
        self._before = {number: signal.signal(number, self._came) for number in _PASSED_ON}
        return self

    def __exit__(self, *problem: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self._process is None:
            self._waiting.append(number)
        elif number != signal.SIGINT or not os.isatty(0):
            self._process.send_signal(number)

    def go_to(self, process: subprocess.Popen[bytes]) -> None:
        """It has started."""
        self._process = process
        while self._waiting:
            process.send_signal(self._waiting.pop(0))


def _data(words: list[str], code: int, used: Used, meter: str, wall_s: float) -> dict[str, Any]:
    return {
        "command": shlex.join(words),
        "exit_code": code,
        "meter": meter,
        "method": used.method,
        "seconds": used.seconds,
        "wall_s": wall_s,
        "energy_j": used.energy_j,
        "counted_j": used.counted_j,
        "watts": used.watts,
        "gpus": [_part_data(part) for part in used.parts],
    }


def _part_data(part: Part) -> dict[str, Any]:
    return {
        "index": part.gpu.index,
        "uuid": part.gpu.uuid,
        "name": part.gpu.name,
        "energy_j": part.energy_j,
        "counted": part.counted,
        "lost": part.lost or None,
    }


def _text(used: Used) -> str:
    lines = [f"{used.seconds:.3f} s", *map(_part_text, used.parts)]
    if used.energy_j is None:
        lines.append("unmetered: no joules can be told here (wattline doctor says why)")
    else:
        mean = f", {used.watts:.1f} W on average" if used.watts is not None else ""
        lines.append(f"{used.energy_j:.1f} J{mean}, by {used.method}")
    return "\n".join(lines)


def _part_text(part: Part) -> str:
    joules = "unknown" if part.energy_j is None else f"{part.energy_j:.1f} J"
    lost = f", until it was lost: {part.lost}" if part.lost else ""
    twice = "" if part.counted else ", which another process counts too"
    return f"GPU {part.gpu.index} ({part.gpu.name}): {joules}{lost}{twice}"

"""`wattline measure -- COMMAND`: run a command and report its time and energy, with the method."""

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

from wattline.cli.arguments import add_json_argument
from wattline.cli.models.meter_argument import add_meter_argument
from wattline.cli.output import notify, print_json
from wattline.errors import ConfigError, NotFound
from wattline.measurement.counter_period import MIN_PERIODS, MIN_WINDOW_S, min_window_s
from wattline.meter import Meter, open_meter
from wattline.meter.caps.restore import restore_orphaned_caps
from wattline.meter.counter_renewal import measure_counter_periods
from wattline.meter.energy_window import EnergyPart, EnergyUse, EnergyWindow
from wattline.meter.neighbours import describe_neighbours

_READ_S = 0.5  # between two readings: if a GPU is lost, at most this much of it is not counted
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline measure`."""
    parser.usage = f"{parser.prog} [options] -- COMMAND ..."
    parser.add_argument(
        "words", nargs="*", metavar="COMMAND", help="command to run; its exit code is returned"
    )
    add_meter_argument(parser)
    add_json_argument(parser)
    parser.epilog = "With --json, the output of the command goes to stderr."


def run(args: argparse.Namespace) -> int:
    """Run the command, print the energy it used, and return its exit code."""
    _check_command(args.words)
    for restored in restore_orphaned_caps():
        if restored.restored:
            notify(f"GPU {restored.record.uuid}: restored a cap that a dead process left behind")
    meter = open_meter(args.meter)
    try:
        for line in describe_neighbours(meter.gpus):
            notify(line)
        start_s = time.monotonic()
        code, used = _run_metered(args, meter)
        wall_s = time.monotonic() - start_s
        _check_resolution(meter, used)
    finally:
        meter.close()
    if args.json:
        print_json(_encode(args.words, code, used, meter.name, wall_s))
    else:
        print(_format_usage(used))
    return code


def _check_command(words: list[str]) -> None:
    if not words:
        raise ConfigError("no command was given, expected one after --: wattline measure -- python train.py")
    if shutil.which(words[0]) is None:
        exists = Path(words[0]).exists()
        why = "it is not executable" if exists else "no such command"
        raise (ConfigError if exists else NotFound)(f"{words[0]} cannot be started: {why}")


def _run_metered(args: argparse.Namespace, meter: Meter) -> tuple[int, EnergyUse]:
    """Run the command; return its exit code as a shell does (128 + signal), and the energy it used."""
    window = EnergyWindow(meter, claim=False)  # the command may count the same GPUs itself
    with SignalForwarder() as signals:
        # With --json, stdout holds only the result, so the output of the command goes to stderr.
        try:
            process = subprocess.Popen(
                args.words, env=_build_environment(args.meter, meter), stdout=2 if args.json else None
            )
        except OSError as error:
            raise ConfigError(f"{args.words[0]} cannot be started: {error.strerror}") from None
        signals.forward_to(process)
        while True:
            try:
                code = process.wait(_READ_S)
                break
            except subprocess.TimeoutExpired:
                window.sample()
    return (code if code >= 0 else 128 - code), window.end()


def _check_resolution(meter: Meter, used: EnergyUse) -> None:
    """Announce a window that is short against the period of the energy counters."""
    if used.energy_j is None or used.seconds >= MIN_WINDOW_S:
        return
    period_s = max(measure_counter_periods(meter).values(), default=0.0)
    if MIN_PERIODS * period_s > used.seconds:
        share = period_s / max(used.seconds, period_s)
        notify(
            f"the energy may be off by {share:.0%}: it was measured for {used.seconds:.2g} s, and its counter"
            f" is renewed every {1e3 * period_s:.0f} ms; expected at least {min_window_s(period_s):.2g} s"
        )


def _build_environment(text: str, meter: Meter) -> dict[str, str]:
    """Return an environment in which the command uses the same meter, with the same simulated GPUs."""
    spec = meter.gpus[0].spec if meter.name == "simulated" else text
    return dict(os.environ) if spec == "auto" else {**os.environ, "WATTLINE_METER": spec}


class SignalForwarder:
    """Forwards signals to the command; Ctrl-C at a terminal reaches it without our help."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: list[int] = []  # received before the command has started

    def __enter__(self) -> SignalForwarder:
        self._previous = {number: signal.signal(number, self._handle) for number in _FORWARDED}
        return self

    def __exit__(self, *problem: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._process is None:
            self._pending.append(number)
        elif number != signal.SIGINT or not os.isatty(0):
            self._process.send_signal(number)

    def forward_to(self, process: subprocess.Popen[bytes]) -> None:
        """Send all signals to *process* from now on, and those received before."""
        self._process = process
        while self._pending:
            process.send_signal(self._pending.pop(0))


def _encode(words: list[str], code: int, used: EnergyUse, meter: str, wall_s: float) -> dict[str, Any]:
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
        "gpus": [_encode_part(part) for part in used.parts],
    }


def _encode_part(part: EnergyPart) -> dict[str, Any]:
    return {
        "index": part.gpu.index,
        "uuid": part.gpu.uuid,
        "name": part.gpu.name,
        "energy_j": part.energy_j,
        "counted": part.counted,
        "lost": part.lost or None,
    }


def _format_usage(used: EnergyUse) -> str:
    lines = [f"{used.seconds:.3f} s", *map(_format_part, used.parts)]
    if used.energy_j is None:
        lines.append("unmetered: the energy cannot be measured here (wattline doctor shows why)")
    else:
        mean = f", {used.watts:.1f} W on average" if used.watts is not None else ""
        lines.append(f"{used.energy_j:.1f} J{mean}, by {used.method}")
    return "\n".join(lines)


def _format_part(part: EnergyPart) -> str:
    joules = "unknown" if part.energy_j is None else f"{part.energy_j:.1f} J"
    lost = f", until it was lost: {part.lost}" if part.lost else ""
    also = "" if part.counted else ", which another process counts too"
    return f"GPU {part.gpu.index} ({part.gpu.name}): {joules}{lost}{also}"

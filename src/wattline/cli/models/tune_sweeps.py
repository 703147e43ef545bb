"""Measured power caps of one job, for `wattline tune show`."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from wattline.batch_size.sweeps import LIFETIME_S, CapSweep
from wattline.cli.output import print_table
from wattline.errors import ConfigError
from wattline.profiler.cap_aim import Aim, find_best

_COLUMNS = ("cap", "time of a step", "energy of a step", "")


def encode_sweep(sweep: CapSweep) -> dict[str, Any]:
    """Return a sweep for JSON; *best_w* is None if it has to be measured again."""
    best_w = None
    if sweep.usable:
        aim = Aim()
        with suppress(ConfigError):  # of another version
            aim = Aim.parse(sweep.aim) if sweep.aim else aim
        best_w = find_best(sweep.usable, aim, sweep.measurements[-1].cap_w, sweep.gpus).cap_w
    return {
        "gpu": sweep.kind,
        "gpus": sweep.gpus,
        "batch": sweep.batch or None,
        "aim": sweep.aim or None,
        "device": sweep.device or None,
        "measured_at": datetime.fromtimestamp(sweep.measured_s, UTC).isoformat(timespec="seconds"),
        "expired": sweep.is_expired,
        "best_w": best_w,
        "caps": [
            {"cap_w": one.cap_w, "step_s": one.step_s, "step_j": one.step_j, "spoilt": one.spoilt}
            for one in sweep.measurements
        ],
    }


def print_sweep(sweep: dict[str, Any]) -> None:
    """Print an encoded sweep: each cap, the best one, and whether it is measured again."""
    batch = f", batch size {sweep['batch']}" if sweep["batch"] else ""
    print(f"caps measured on {sweep['gpus']} x {sweep['gpu']}{batch}, {sweep['measured_at']}")
    rows = []
    for one in sweep["caps"]:
        note = "disturbed, to be measured again" if one["spoilt"] else ""
        note = "best" if one["cap_w"] == sweep["best_w"] else note
        rows.append((f"{one['cap_w']:g} W", f"{1e3 * one['step_s']:.4g} ms", f"{one['step_j']:.4g} J", note))
    print_table(_COLUMNS, rows, right=_COLUMNS[:3])
    if sweep["expired"]:
        print(f"older than {LIFETIME_S / 86400:g} days: the next run measures them again")

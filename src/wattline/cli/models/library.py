"""`wattline library`: which workloads and devices are known, and how well?"""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from typing import Any

from wattline.cli.models.workload_data import workload_data
from wattline.cli.models.workload_text import percent, varied, workload_text
from wattline.cli.output import show_json
from wattline.errors import NotFound, did_you_mean
from wattline.grid import grid
from wattline.measurement.devices import DEVICES, Device
from wattline.models.library import library
from wattline.models.workload import Workload
from wattline.models.workload_models import plain


def run(args: argparse.Namespace) -> int:
    """List everything, or show what has a name."""
    return _list(args) if args.action == "list" else _show(args)


def _list(args: argparse.Namespace) -> int:
    workloads, devices = library().workloads, list(DEVICES.values())
    if args.json:
        short = [{k: v for k, v in workload_data(w).items() if k != "parameters"} for w in workloads]
        show_json({"workloads": short, "devices": [_device_data(d) for d in devices]})
        return 0
    head: tuple[str, ...] = ("model", "gpu", "source", "points", "samples/s off", "watts off", "varied")
    print("\n".join(grid([head, *map(_row, workloads)], lambda column: ">" if column in (3, 4, 5) else "<")))
    print()
    head = ("device", "idle", "busy", "base", "max", "cap", "clock", "watts")
    print("\n".join(grid([head, *map(_device_row, devices)], lambda c: ">" if 1 <= c <= 4 else "<")))
    return 0


def _row(w: Workload) -> tuple[str, ...]:
    watts = percent(w.source.watts_error) if w.metered else "assumed"
    points, samples = str(w.source.points), percent(w.source.samples_error)
    return w.model, w.gpu, w.source.name, points, samples, watts, varied(w)


def _device_row(d: Device) -> tuple[str, ...]:
    watts = [f"{value:g} W" for value in (d.idle_w, d.busy_w, d.base_w, d.max_w)]
    cap = f"{d.min_cap_w:g} to {d.max_cap_w:g} W"
    clock = f"{d.min_clock_mhz:g} to {d.max_clock_mhz:g} MHz"
    return d.name, *watts, cap, clock, _by_whom(d)


def _by_whom(d: Device) -> str:
    return f"measured: {d.measured}" if d.measured else "assumed"


def _device_data(d: Device) -> dict[str, Any]:
    return {**asdict(d), "max_cap_w": d.max_cap_w, "measured": d.measured or None}


def _show(args: argparse.Namespace) -> int:
    found = [w for w in library().workloads if plain(args.name) in _names(w)]
    device = DEVICES.get(args.name.casefold())
    if not found and device is None:
        raise NotFound(
            f"{args.name!r} is neither a workload of the library nor a device",
            did_you_mean(args.name.casefold(), _all_names()) or "wattline library list",
        )
    if args.gpu is not None:
        found, kinds = [w for w in found if w.gpu == args.gpu.casefold()], sorted({w.gpu for w in found})
        if not found:
            raise NotFound(
                f"{args.name} was not measured on {args.gpu!r}"
                + (f", only on {', '.join(kinds)}" * bool(kinds)),
                did_you_mean(args.gpu.casefold(), kinds),
            )
    devices = [device] if device is not None and args.gpu is None else []
    if args.json:
        show_json({"workloads": [*map(workload_data, found)], "devices": [*map(_device_data, devices)]})
        return 0
    print("\n\n".join([*(workload_text(w, _held_out(w)) for w in found), *map(_device_text, devices)]))
    return 0


def _names(w: Workload) -> tuple[str, str]:
    return plain(w.model), plain(f"{w.source.name}/{w.model}")


def _all_names() -> list[str]:
    known = library().workloads
    return [*(w.model for w in known), *(f"{w.source.name}/{w.model}" for w in known), *DEVICES]


def _held_out(w: Workload) -> str:
    if math.isnan(w.source.samples_error):
        return "too few points to leave any out"
    watts = f", watts {percent(w.source.watts_error)}" if math.isfinite(w.source.watts_error) else ""
    return f"samples/s {percent(w.source.samples_error)} off on average{watts}"


def _device_text(d: Device) -> str:
    name, idle, busy, base, most, cap, clock, watts = _device_row(d)
    rows = (
        (f"{name}: {watts}", ""),
        ("  idle", idle),
        ("  busy", f"{busy}, training"),
        ("  max", most),
        ("  base", f"{base}, the rest of a node of eight"),
        ("  cap", cap),
        ("  clock", clock),
    )
    return "\n".join(f"{key:<12}{value}".rstrip() for key, value in rows)

"""`wattline library list` and `show`: print entries of the library."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from typing import Any

from wattline.cli.models.workload_data import encode_workload
from wattline.cli.models.workload_text import format_percent, format_ranges, format_workload
from wattline.cli.output import print_json, print_table
from wattline.errors import NotFound, did_you_mean
from wattline.measurement.devices import DEVICES, Device
from wattline.models.library import library
from wattline.models.workload import Workload
from wattline.models.workload_models import normalize_name

_WORKLOAD_COLUMNS = ("model", "gpu", "source", "points", "samples/s off", "watts off", "varied")
_DEVICE_COLUMNS = ("device", "idle", "busy", "base", "max", "cap", "clock", "watts")


def list_entries(args: argparse.Namespace) -> int:
    """Print a line for every workload and every device."""
    workloads, devices = library().workloads, list(DEVICES.values())
    if args.json:
        short = [{k: v for k, v in encode_workload(w).items() if k != "parameters"} for w in workloads]
        print_json({"workloads": short, "devices": [_encode_device(d) for d in devices]})
        return 0
    print_table(_WORKLOAD_COLUMNS, [_workload_row(w) for w in workloads], right=_WORKLOAD_COLUMNS[3:6])
    print()
    print_table(_DEVICE_COLUMNS, [_device_row(d) for d in devices], right=_DEVICE_COLUMNS[1:5])
    return 0


def _workload_row(w: Workload) -> tuple[str, ...]:
    watts = format_percent(w.source.watts_error) if w.metered else "assumed"
    points, samples = str(w.source.points), format_percent(w.source.samples_error)
    return w.model, w.gpu, w.source.name, points, samples, watts, format_ranges(w)


def _device_row(d: Device) -> tuple[str, ...]:
    watts = [f"{value:g} W" for value in (d.idle_w, d.busy_w, d.base_w, d.max_w)]
    cap = f"{d.min_cap_w:g} to {d.max_cap_w:g} W"
    clock = f"{d.min_clock_mhz:g} to {d.max_clock_mhz:g} MHz"
    return d.name, *watts, cap, clock, f"measured: {d.measured}" if d.measured else "assumed"


def _encode_device(d: Device) -> dict[str, Any]:
    return {**asdict(d), "max_cap_w": d.max_cap_w, "measured": d.measured or None, "source": d.source or None}


def show_entries(args: argparse.Namespace) -> int:
    """Print all details of the workloads and devices named `args.name`."""
    workloads = [w for w in library().workloads if normalize_name(args.name) in _names_of(w)]
    device = DEVICES.get(args.name.casefold())
    if not workloads and device is None:
        raise NotFound(
            f"{args.name!r} is neither a workload of the library nor a device",
            did_you_mean(args.name.casefold(), _list_names()) or "wattline library list",
        )
    if args.gpu is not None:
        workloads = _filter_by_gpu(workloads, args.name, args.gpu)
    devices = [device] if device is not None and args.gpu is None else []
    if args.json:
        encoded = [encode_workload(w) for w in workloads]
        print_json({"workloads": encoded, "devices": [_encode_device(d) for d in devices]})
        return 0
    texts = [format_workload(w, _format_error(w)) for w in workloads]
    print("\n\n".join([*texts, *map(_format_device, devices)]))
    return 0


def _filter_by_gpu(workloads: list[Workload], name: str, gpu: str) -> list[Workload]:
    on_gpu = [w for w in workloads if w.gpu == gpu.casefold()]
    if not on_gpu:
        kinds = sorted({w.gpu for w in workloads})
        only = f", only on {', '.join(kinds)}" if kinds else ""
        raise NotFound(f"{name} was not measured on {gpu!r}{only}", did_you_mean(gpu.casefold(), kinds))
    return on_gpu


def _names_of(w: Workload) -> tuple[str, str]:
    return normalize_name(w.model), normalize_name(f"{w.source.name}/{w.model}")


def _list_names() -> list[str]:
    workloads = library().workloads
    return [*(w.model for w in workloads), *(f"{w.source.name}/{w.model}" for w in workloads), *DEVICES]


def _format_error(w: Workload) -> str:
    if math.isnan(w.source.samples_error):
        return "too few points to leave any out"
    watts_error = w.source.watts_error
    watts = f", watts {format_percent(watts_error)}" if math.isfinite(watts_error) else ""
    return f"samples/s {format_percent(w.source.samples_error)} off on average{watts}"


def _format_device(d: Device) -> str:
    name, idle, busy, base, most, cap, clock, watts = _device_row(d)
    rows = (
        (f"{name}: {watts}", ""),
        ("  idle", idle),
        ("  busy", f"{busy}, training"),
        ("  max", most),
        ("  base", f"{base}, the rest of a node of eight"),
        ("  cap", cap),
        ("  clock", clock),
        *([("  from", d.source)] if d.source else []),
    )
    return "\n".join(f"{key:<12}{value}".rstrip() for key, value in rows)

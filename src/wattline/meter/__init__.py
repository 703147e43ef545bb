"""Meters: energy, power and power caps of GPUs, read and set through one interface for all drivers."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module

from wattline.errors import ConfigError, MeterError, did_you_mean
from wattline.meter.protocol import Gpu, Meter

__all__ = ["METERS", "Gpu", "Meter", "open_meter"]

METERS = ("auto", "nvml", "rapl", "zeusd", "simulated", "replay", "none")
"""Names of the drivers: a meter is written `NAME` or `NAME:OPTIONS`."""


def open_meter(text: str = "auto") -> Meter:
    """Open the meter that *text* names.

    `auto` is the value of WATTLINE_METER if it is set, else `nvml` if it works, else `rapl`, else `none`. The
    others are `nvml`, `rapl`, `zeusd[:SOCKET]`,
    `simulated:2xv100,model=resnet50,batch=64,time=virtual,state=DIR`, `replay:FILE` and `none` (unmetered).
    """
    if text == "auto":
        text = os.environ.get("WATTLINE_METER") or "auto"
    name, _, options = text.partition(":")
    if name not in METERS:
        raise ConfigError(
            f"unknown meter {name!r}, expected one of {', '.join(METERS)}",
            did_you_mean(name.casefold(), METERS),
        )
    return _open_auto() if name == "auto" else _load_driver(name)(options)


def _open_auto() -> Meter:
    for name in ("nvml", "rapl"):
        try:
            meter = _load_driver(name)("")
        except MeterError:
            continue
        if meter.gpus:
            return meter
        meter.close()
    return _load_driver("none")("")


def _load_driver(name: str) -> Callable[[str], Meter]:
    """Import a driver when it is needed, so that a process does not load drivers that it does not use."""
    module = import_module(f"wattline.meter.drivers.{'unmetered' if name == 'none' else name}")
    open_driver: Callable[[str], Meter] = module.open_driver
    return open_driver

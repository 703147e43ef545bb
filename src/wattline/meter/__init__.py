"""Meters and knobs: what GPUs draw, and the caps that can be set on them, whatever stands behind them."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module

from wattline.errors import ConfigError, MeterError, did_you_mean
from wattline.meter.protocol import Gpu, Meter

__all__ = ["METERS", "Gpu", "Meter", "open_meter"]

METERS = ("auto", "nvml", "rapl", "zeusd", "simulated", "replay", "none")
"""What the text of a meter begins with."""


def open_meter(text: str = "auto") -> Meter:
    """The meter that *text* names.

    `auto` is what WATTLINE_METER says, else `nvml` if it works, else `rapl`, else `none`. Others are `nvml`,
    `rapl`, `zeusd[:SOCKET]`, `simulated:2xv100,model=resnet50,batch=64,time=virtual,state=DIR`,
    `replay:FILE` and `none`: unmetered.
    """
    if text == "auto":
        text = os.environ.get("WATTLINE_METER") or "auto"
    name, _, rest = text.partition(":")
    if name not in METERS:
        raise ConfigError(
            f"unknown meter {name!r}, expected one of {', '.join(METERS)}",
            did_you_mean(name.casefold(), METERS),
        )
    return _auto() if name == "auto" else _opener(name)(rest)


def _auto() -> Meter:
    for name in ("nvml", "rapl"):
        try:
            found = _opener(name)("")
        except MeterError:
            continue
        if found.gpus:
            return found
        found.close()
    return _opener("none")("")


def _opener(name: str) -> Callable[[str], Meter]:
    """Imported when it is asked for: no process pays for meters that it does not use."""
    module = import_module(f"wattline.meter.drivers.{'unmetered' if name == 'none' else name}")
    opener: Callable[[str], Meter] = module.open_text
    return opener

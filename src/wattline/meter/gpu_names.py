"""Mapping of product names to the GPU kinds of `wattline.measurement.devices`."""

from __future__ import annotations

import re

from wattline.measurement.devices import DEVICES


def find_gpu_kind(name: str) -> str:
    """Return the kind of the GPU with the product name *name*; empty if its power limits would not match."""
    words = set(re.findall(r"[a-z0-9]+", name.casefold().replace("rtx 6000", "rtx6000")))
    if "rtx6000" in words and "ada" in words:
        return ""
    if {"a100", "pcie"} <= words:
        return "a100-pcie"
    if "h100" in words and words & {"pcie", "nvl"}:
        return ""
    return next((kind for kind in DEVICES if kind in words), "")

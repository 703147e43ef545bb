"""Which of the kinds that we know is a GPU, by the name its maker gave it?"""

from __future__ import annotations

import re

from wattline.measurement.devices import DEVICES


def kind_of(name: str) -> str:
    """The kind as `wattline.measurement.devices` calls it; empty where its watts would be another's."""
    words = set(re.findall(r"[a-z0-9]+", name.casefold().replace("rtx 6000", "rtx6000")))
    if "rtx6000" in words and "ada" in words:
        return ""
    if {"a100", "pcie"} <= words:
        return "a100-pcie"
    if "h100" in words and words & {"pcie", "nvl"}:
        return ""
    return next((kind for kind in DEVICES if kind in words), "")

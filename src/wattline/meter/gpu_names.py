"""Kinds of the GPUs that a meter finds."""

from __future__ import annotations

import re

from wattline.meter.protocol import Gpu


def name_gpu_kind(gpu: Gpu) -> str:
    """Return the kind of *gpu*; of an unlisted one its product name as a word, such as `rtx-a6000`."""
    words = re.findall(r"[a-z0-9.]+", gpu.name.casefold())
    return gpu.kind or "-".join(word for word in words if word != "nvidia") or "gpu"

"""Mapping of product names to the GPU kinds of `wattline.measurement.devices`.

A name that differs in one word is another product: an H100 PCIe has half the limit of an H100 with SXM, and
an RTX 4090 Laptop GPU is no RTX 4090. A product that is not listed takes no values of another.
"""

from __future__ import annotations

import re

from wattline.meter.protocol import Gpu

_FAMILIES = {
    # kind by the words that name the product; further words make it another one
    "k80": ("k80", {"tesla"}),
    "p100": ("p100", {"tesla", "pcie", "sxm2"}),
    "v100": ("v100", {"tesla", "pcie", "sxm2", "sxm3", "fhhl", "dgxs"}),
    "t4": ("t4", {"tesla"}),
    "rtx6000": ("rtx6000", {"quadro"}),
    "a10g": ("a10g", set()),
    "a30": ("a30", set()),
    "a40": ("a40", set()),
    "a100": ("a100", {"sxm4", "sxm"}),
    "a100-pcie": ("a100", {"pcie"}),
    "h100": ("h100", {"sxm5", "sxm", "hbm3"}),
    "h100-pcie": ("h100", {"pcie"}),
    "h200": ("h200", {"sxm5", "sxm"}),
    "b200": ("b200", {"sxm6", "sxm"}),
    "gh200": ("gh200", set()),
    "l4": ("l4", set()),
    "l40s": ("l40s", set()),
    "rtx3090": ("rtx3090", {"geforce"}),
    "rtx4090": ("rtx4090", {"geforce"}),
}
_REQUIRED = {"a100-pcie": "pcie", "h100-pcie": "pcie"}


def find_gpu_kind(name: str) -> str:
    """Return the kind of the GPU with the product name *name*; empty: no listed one has its power limits."""
    text = re.sub(r"\brtx (\d{4})\b", r"rtx\1", name.casefold())
    words = set(re.findall(r"[a-z0-9.]+", text)) - {"nvidia"}
    words = {word for word in words if not re.fullmatch(r"\d+gb", word)}  # memory sizes
    for kind, (product, optional) in _FAMILIES.items():
        if product in words and words - {product} <= optional and _REQUIRED.get(kind, product) in words:
            return kind
    return ""


def name_gpu_kind(gpu: Gpu) -> str:
    """Return the kind of *gpu*; of an unlisted one its product name as a word, such as `rtx-a6000`."""
    words = re.findall(r"[a-z0-9.]+", gpu.name.casefold())
    return gpu.kind or "-".join(word for word in words if word != "nvidia") or "gpu"

"""Mapping of product names to the GPU kinds of `wattline.measurement.devices`.

A name that differs in one word is another product: an H100 PCIe has half the limit of an H100 with SXM, and
an RTX 4090 Laptop GPU is no RTX 4090. A product that is not listed takes no values of another. Drivers,
Slurm (`nvidia_a100_80gb_pcie`), traces and cluster descriptions all write the names differently.
"""

from __future__ import annotations

import re

FAMILIES = {
    # kind by the words that name the product; further words make it another one
    "k80": ("k80", {"tesla"}),
    "p100": ("p100", {"tesla", "pcie", "sxm2"}),
    "v100": ("v100", {"tesla", "pcie", "sxm2", "sxm3", "fhhl", "dgxs"}),
    "t4": ("t4", {"tesla"}),
    "rtx6000": ("rtx6000", {"quadro"}),
    "a10g": ("a10g", set()),
    "a30": ("a30", set()),
    "a40": ("a40", set()),
    "a100": ("a100", {"sxm4", "sxm", "tesla"}),
    "a100-pcie": ("a100", {"pcie", "tesla"}),
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
"""Kinds, the word of the product that each needs, and the words that may stand beside it."""

_REQUIRED = {"a100-pcie": "pcie", "h100-pcie": "pcie"}
_VENDOR = re.compile(r"^(?:(?:nvidia|geforce|tesla|quadro)[ _-]+)+(?=\S)")
_MIG = re.compile(r"(?:(.*?)(?:[ _:-]+mig)?[ _:-]+)?((\d)g\.(\d{1,3})gb)(?:\+me)?")
_MIG_OWNERS = {  # slices that only one product has
    **dict.fromkeys(("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"), "a100"),
    **dict.fromkeys(("1g.6gb", "2g.12gb", "4g.24gb"), "a30"),
}
MIG_SLICES = {"a30": 4}
"""Compute slices of a GPU that can be divided; 7 where it is not listed."""


def find_gpu_kind(name: str) -> str:
    """Return the kind of the GPU with the product name *name*; empty: no listed one has its power limits."""
    text = re.sub(r"\brtx (\d{4})\b", r"rtx\1", re.sub(r"[_-]", " ", name.casefold()))
    words = set(re.findall(r"[a-z0-9.]+", text)) - {"nvidia"}
    words = {word for word in words if not re.fullmatch(r"\d+gb", word)}  # memory sizes
    for kind, (product, optional) in FAMILIES.items():
        if product in words and words - {product} <= optional and _REQUIRED.get(kind, product) in words:
            return kind
    return ""


def resolve_gpu_kind(name: str) -> str:
    """Return the kind of the GPU *name*, whatever its spelling; of an unlisted one its name in lower case.

    A MIG slice is a kind of its own, `a100-1g.5gb`, of the GPU that it is a part of.
    """
    text = name.strip().casefold()
    slice_of = find_mig_slice(text)
    if slice_of is not None:
        owner, profile = slice_of[:2]
        return f"{owner}-{profile}" if owner else profile
    return find_gpu_kind(text) or re.sub(r"\s+", "_", _VENDOR.sub("", text))


def find_gpu_kinds(text: str) -> str:
    """Return kinds separated by |: those of the library by its names, all others as they are."""
    return "|".join(find_gpu_kind(word) or word for word in text.split("|"))


def resolve_gpu_kinds(text: str) -> str:
    """Return kinds separated by | as `resolve_gpu_kind` names each."""
    return "|".join(map(resolve_gpu_kind, text.split("|")))


def find_mig_slice(name: str) -> tuple[str, str, int, int] | None:
    """Return GPU kind, profile, compute slices and GB of the MIG slice *name*; None: it is none.

    The kind is empty if it is unknown.
    """
    match = _MIG.fullmatch(name.casefold())
    if match is None:
        return None
    owner = resolve_gpu_kind(match[1]) if match[1] else _MIG_OWNERS.get(match[2], "")
    return owner, match[2], int(match[3]), int(match[4])

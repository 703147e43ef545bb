"""Leases: which GPUs, and what of the host beside them. A name here is a name on the command line.

Names are imported when they are first used: some take long to compile the first time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wattline.papers.synergy_placers import Greedy, TunePublished
    from wattline.placement.buddy.placer import Buddy
    from wattline.placement.host.optimum import Optimum
    from wattline.placement.host.synergy_tune import Tune
    from wattline.placement.pack import Pack
    from wattline.placement.power import Power

__all__ = ["Buddy", "Greedy", "Optimum", "Pack", "Power", "Tune", "TunePublished"]

_HOMES = {"Greedy": "published", "TunePublished": "published"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"wattline.placement.{_HOMES.get(name, name.casefold())}"), name)
    raise AttributeError(f"module 'wattline.placement' has no attribute {name!r}")

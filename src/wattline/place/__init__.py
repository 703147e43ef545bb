"""Leases: which GPUs, and what of the host beside them. A name here is a name on the command line.

Names are imported when they are first used: some take long to compile the first time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wattline.place.buddy import Buddy
    from wattline.place.optimum import Optimum
    from wattline.place.pack import Pack
    from wattline.place.power import Power
    from wattline.place.published import Greedy, TunePublished
    from wattline.place.tune import Tune

__all__ = ["Buddy", "Greedy", "Optimum", "Pack", "Power", "Tune", "TunePublished"]

_HOMES = {"Greedy": "published", "TunePublished": "published"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"wattline.place.{_HOMES.get(name, name.casefold())}"), name)
    raise AttributeError(f"module 'wattline.place' has no attribute {name!r}")

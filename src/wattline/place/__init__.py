"""Leases: which GPUs. A name here is a name on the command line.

Names are imported when they are first used: `Buddy` takes long to compile the first time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wattline.place.buddy import Buddy
    from wattline.place.pack import Pack
    from wattline.place.power import Power

__all__ = ["Buddy", "Pack", "Power"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"wattline.place.{name.casefold()}"), name)
    raise AttributeError(f"module 'wattline.place' has no attribute {name!r}")

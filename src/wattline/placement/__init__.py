"""Placers: they turn plans into leases of GPUs and host resources. These names are typed on the command line.

Names are imported when they are first used: some take long to compile the first time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wattline.placement.buddy.placer import Buddy
    from wattline.placement.host.host_shares import Host
    from wattline.placement.host.optimum import Optimum
    from wattline.placement.host.synergy_tune import Tune
    from wattline.placement.pack import Pack
    from wattline.placement.power import Power

__all__ = ["Buddy", "Host", "Optimum", "Pack", "Power", "Tune"]

_MODULES = {
    "Buddy": "buddy.placer",
    "Host": "host.host_shares",
    "Optimum": "host.optimum",
    "Pack": "pack",
    "Power": "power",
    "Tune": "host.synergy_tune",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"wattline.placement.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'wattline.placement' has no attribute {name!r}")

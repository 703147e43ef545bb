"""orders.json in the folder of an attempt: settings that change while it runs, read by its sessions."""

from __future__ import annotations

from pathlib import Path

from wattline.backend.engine.folder_layout import write_json
from wattline.train.attempt_watch import ORDERS


def write_orders(folder: Path, cap_w: float) -> None:
    """Order a power limit for the GPUs of an attempt; 0: none."""
    write_json(folder / ORDERS, {"cap_w": cap_w})

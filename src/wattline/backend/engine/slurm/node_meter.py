"""Process that reads the meter of a node while an attempt runs there: `python -m … METER NODE`.

It writes energy.NODE.json into the current folder, that of the attempt, at the start, every 10 s, and when it
is asked to end.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from wattline.backend.engine.slurm.energy_files import UNMETERED, energy_file
from wattline.backend.engine.user_files import replace_file
from wattline.errors import WattlineError
from wattline.meter import open_meter
from wattline.meter.energy_window import EnergyWindow

_INTERVAL_S = 10.0


def main(text: str, node: str) -> None:
    """Read the meter until SIGTERM."""
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    try:
        meter = open_meter(text.replace("{node}", node))
    except WattlineError as error:
        _write(node, {"method": UNMETERED, "joules": None, "problem": error.message})
        return
    if not meter.gpus:
        _write(node, {"method": UNMETERED, "joules": None, "problem": "no GPU can be read"})
        return
    window = EnergyWindow(meter, meter.gpus)
    method = " and ".join(dict.fromkeys(gpu.method for gpu in meter.gpus))
    before_j, before_s = 0.0, time.monotonic()
    while True:
        last = ending.is_set()
        parts = window.read().parts
        known = [part.energy_j for part in parts if part.energy_j is not None]
        now_s = time.monotonic()
        values: dict[str, Any] = {"method": UNMETERED, "joules": None}
        if known and len(known) == len(parts):
            power_w = (sum(known) - before_j) / (now_s - before_s) if now_s - before_s > 1 else None
            values = {"method": method, "joules": sum(known), "power_w": power_w, "at": time.time()}
            before_j, before_s = sum(known), now_s
        _write(node, values)
        if last:
            break
        ending.wait(_INTERVAL_S)
    window.end()
    meter.close()


def _write(node: str, values: dict[str, Any]) -> None:
    """Replace the energy file; while the disk is full the one before stays."""
    with suppress(OSError):
        replace_file(Path(energy_file(node)), json.dumps(values).encode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

"""Size and cost of the power history of the service: bytes per sample, time of a write and of a read.

python benchmarks/power_history.py [GPUS] [DAYS]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from wattline.backend.engine.power_samples import POWER_INTERVAL_S
from wattline.backend.engine.protocol import GpuReading
from wattline.cluster import nodes
from wattline.service.power_history import PowerHistory, read_power
from wattline.service.storage.events import PowerSample
from wattline.service.storage.store import Store


def main(gpus: int = 8, days: float = 7.0) -> None:
    with tempfile.TemporaryDirectory() as folder, Store.open(folder) as store:
        empty = (Path(folder) / "state.db").stat().st_size
        count = int(days * 86400 / POWER_INTERVAL_S)
        for first in range(0, count, 1000):
            times = [POWER_INTERVAL_S * number for number in range(first, min(first + 1000, count))]
            store.add_power_samples(
                PowerSample(at_s, "node-12", gpu, 250.0 + gpu, 300.0, ("12345",))
                for at_s in times
                for gpu in range(gpus)
            )
        size = sum(path.stat().st_size for path in Path(folder).glob("state.db*")) - empty
        print(f"{gpus} GPUs, {days:g} days: {count} samples, {size / 1e6:.1f} MB with its write-ahead log,")
        each, day = size / count / gpus, size / days / gpus / 1e6
        print(f"  {each:.0f} bytes per sample of a GPU, {day:.2f} MB a day")
        start_s = time.perf_counter()
        points, _ = read_power(store, 0.0, days * 86400, days * 86400 / 60, 100)
        read_s = time.perf_counter() - start_s
        print(f"a read of all of it in {len(points)} steps: {1e3 * read_s:.0f} ms")
        history = PowerHistory(store, nodes("a100", gpus=gpus))
        history.record(1e9, [])  # deletes old samples once
        readings = [GpuReading(0, gpu, 250.0, 300.0, ("12345",)) for gpu in range(gpus)]
        durations = []
        for number in range(50):
            start_s = time.perf_counter()
            history.record(1e9 + POWER_INTERVAL_S * number, readings)
            durations.append(time.perf_counter() - start_s)
        print(f"a write, every 10 s: median {1e3 * sorted(durations)[25]:.2f} ms")


if __name__ == "__main__":
    main(*(float(word) if "." in word else int(word) for word in sys.argv[1:]))  # type: ignore[arg-type]

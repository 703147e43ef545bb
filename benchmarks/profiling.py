"""Cost of optimistic profiling, and its error at cells that it did not measure.

    python benchmarks/profiling.py [simulated torch]     (both by default; torch takes some minutes)

simulated: twenty loaders, item by item, on 24 cores; every cell of cores and memory is known.
torch: a real PyTorch loader on this machine, with as many cores as there are. Its GPU is a sleep, and its
storage a queue of known speed in front of real files; processes, cores, decoding and cache are real.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from loader import simulate_samples_s

from wattline.core.table import Floats
from wattline.models.demand import DemandModel
from wattline.profiler.core_sweep import MEMORY_SHARES, CoreSweep, interpolate_speed
from wattline.profiler.cpu_limits import CpuLimits, limit_cpus
from wattline.profiler.run import Patience, ProfiledJob, measure_speed

CORES = tuple(float(c) for c in range(1, 25))
NOISE = 0.01
SHARES = (0.0, 0.5)
STORAGE_MIB_S, FILES, BATCH, GPU_S = 20.0, 512, 16, 0.06
PATIENCE = Patience(warmup=24, most_s=4.0, precision=0.01)
QUIET = 5.0  # per cent by which tries may differ
TRIES = 3  # of which the fastest counts: other programs only make the machine slower


def main() -> int:
    parts: dict[str, Callable[[], bool]] = {"simulated": check_simulated, "torch": check_torch}
    chosen = sys.argv[1:] or list(parts)
    for name in chosen:
        if name not in parts:
            sys.exit(f"unknown part {name!r}, expected one of {', '.join(parts)}")
    missed = [name for name in chosen if not parts[name]()]
    print(f"\nbars missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


def check_bar(text: str, met: bool, expected: str) -> bool:
    print(f"  {'met   ' if met else 'MISSED'} {text}, bar {expected}")
    return met


def compute_errors(predicted: Floats, truth: Floats) -> Floats:
    return np.asarray(100 * np.abs(predicted / truth - 1.0))


# Simulated loaders


def check_simulated() -> bool:
    print(f"20 simulated loaders, {len(CORES)} cores x {len(MEMORY_SHARES)} amounts of memory; errors in %")
    met = True
    for noise in (0.0, NOISE, 2 * NOISE):
        points, cells = [], []
        for seed in range(20):
            count, errors = simulate_loader_errors(seed, noise)
            points.append(count)
            cells.append(errors)
        every = np.concatenate(cells)
        ratio = 20 * len(CORES) * len(MEMORY_SHARES) / sum(points)
        print(
            f"  noise {noise:.0%}: {np.mean(points):.1f} points of {len(CORES)}; {len(every)} cells not"
            f" measured: mean {every.mean():.2f}, 90th {np.percentile(every, 90):.2f},"
            f" worst {every.max():.2f}; within 3 %: {np.mean(every < 3):.1%}"
        )
        met &= check_bar(f"mean error {every.mean():.2f} %", bool(every.mean() < 3), "3 %")
        met &= check_bar(f"{ratio:.0f} times less work", ratio >= 10, "10 times")
    return met


def simulate_loader_errors(seed: int, noise: float) -> tuple[int, Floats]:
    """Return the number of measured points, and the errors of all other cells."""
    rng = np.random.default_rng(seed)
    batch, items = 64, 64 * 400
    gpu_s = batch / rng.uniform(300, 3000)
    prepare_s = rng.lognormal(0.0, 0.5, items) * rng.uniform(1.0, 12.0) * gpu_s / batch
    dataset_gib, sample_kib = rng.uniform(20, 300), rng.uniform(20, 500)
    storage_mib_s = sample_kib / 1024 * batch / gpu_s * rng.uniform(0.2, 0.9)
    hit = rng.random(items)

    def run(cores: float, share: float) -> float:
        fetch_s = sample_kib / 1024 / storage_mib_s
        return float(simulate_samples_s(int(cores), share, fetch_s, prepare_s, hit, gpu_s, batch, 4))

    known = CoreSweep(CORES)(lambda c: run(c, 1.0) * (1 + noise * rng.uniform(-1, 1)))
    cores = np.array(CORES)
    predicted = interpolate_speed(known, cores)
    demand = DemandModel.from_core_sweep(
        cores, predicted, dataset_gib=dataset_gib, sample_kib=sample_kib, storage_mib_s=storage_mib_s
    )
    plenty = np.array([c not in known for c in CORES])
    errors = [compute_errors(predicted, np.array([run(c, 1.0) for c in CORES]))[plenty]]
    for share in MEMORY_SHARES:
        gib = np.full(len(cores), share * dataset_gib)
        errors.append(
            compute_errors(demand.speed_with_memory(predicted, gib), np.array([run(c, share) for c in CORES]))
        )
    return len(known), np.concatenate(errors)


# A real loader

TRAIN = '''
"""A PyTorch loader with a cache that never evicts, in front of a GPU that is a sleep."""
import multiprocessing, sys, time, zlib
from pathlib import Path
import torch
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset, RandomSampler
from wattline.profiler.step_counter import cpus, steps

folder, cached, mib_s, batch, gpu_s, each = Path(sys.argv[1]), *map(float, sys.argv[2:])

class Storage:
    """One device: a read waits for those before it."""
    def __init__(self):
        self.free_s, self.lock = multiprocessing.Value("d", 0.0, lock=False), multiprocessing.Lock()
    def read(self, path):
        data = path.read_bytes()
        with self.lock:
            now_s = time.monotonic()
            self.free_s.value = max(self.free_s.value, now_s) + len(data) / 2**20 / mib_s
            wait_s = self.free_s.value - now_s
        time.sleep(wait_s)
        return data

class Pictures(Dataset):
    def __init__(self):
        self.files = sorted(folder.iterdir())
        self.storage = Storage()
        self.cache = {i: self.files[i].read_bytes() for i in range(round(cached * len(self.files)))}
    def __len__(self):
        return len(self.files)
    def __getitem__(self, i):
        data = self.cache.get(i) or self.storage.read(self.files[i])
        pixels = torch.frombuffer(bytearray(zlib.decompress(data)), dtype=torch.uint8).view(3, 256, 256)
        views = [pixels[:, i : 224 + i, i : 224 + i].float().div(255)[None] for i in range(0, 30, 5)]
        small = [interpolate(v, size=(160, 160), mode="bicubic", antialias=True)[0] for v in views]
        return (sum(small) / len(small) - 0.45) / 0.22

dataset = Pictures()
endless = RandomSampler(dataset, replacement=True, num_samples=10**9)  # short epochs would be all stalls
loader = DataLoader(dataset, batch_size=int(batch), sampler=endless, num_workers=int(each) * cpus())
for _ in steps(loader):
    time.sleep(gpu_s)
'''


def check_torch() -> bool:
    try:
        import torch
    except ImportError:
        print("\nPyTorch is not installed: nothing was measured")
        return False
    with limit_cpus() as limit, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAIN)
        sample_kib = write_pictures(folder / "data")
        print(f"\nPyTorch {torch.__version__} on this machine, {len(limit.cores)} cores, limited by {limit}")
        if len(limit.cores) < 4:
            print(f"  a CPU axis of {len(limit.cores)} points only: nothing between them can be held out")
        cores = tuple(float(c + 1) for c in range(len(limit.cores)))
        met = True
        for each in (4, 1):
            print(f"  {each} worker{'s' if each > 1 else ''} for each core; samples/s and errors in %")
            errors, ratio, spread = measure_torch_errors(folder, cores, limit, each, sample_kib)
            text = (
                f"mean {errors.mean():.2f} %, worst {errors.max():.2f} % of {len(errors)} cells not measured"
            )
            print(
                f"    {TRIES} tries of a cell differ by {spread:.1f} % on average;"
                f" load average {os.getloadavg()[1]:.1f}"
            )
            if each == 1:
                print(f"         {text}: a worker that reads does not prepare, but the model assumes so")
                continue
            if spread > QUIET:
                print(f"         {text}: this machine is not quiet enough for a bar of 3 %")
            else:
                met &= check_bar(text, bool(errors.mean() < 3), "mean 3 %")
            met &= check_bar(
                f"{ratio:.0f} times less work than {len(cores)} x 10 cells", ratio >= 10, "10 times"
            )
    return met


def write_pictures(folder: Path) -> float:
    """Write files that compress to about three quarters; return their mean size in KiB."""
    import zlib

    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(FILES):
        noisy = rng.integers(0, 256, 3 * 256 * 256, dtype=np.uint8)
        noisy[: noisy.size // 3] //= 16
        (folder / f"{i:05}.z").write_bytes(zlib.compress(noisy.tobytes(), 6))
    return float(np.mean([file.stat().st_size for file in folder.iterdir()]) / 1024)


def measure_torch_errors(
    folder: Path, cores: tuple[float, ...], limit: CpuLimits, each: int, sample_kib: float
) -> tuple[Floats, float, float]:
    """Return the errors of unmeasured cells, the saved work, and the spread of tries."""

    def run(cpus: float, share: float) -> float:
        words = (str(folder / "data"), share, STORAGE_MIB_S, BATCH, GPU_S, each)
        job = ProfiledJob((sys.executable, str(folder / "train.py"), *map(str, words)), batch=BATCH)
        tries = [measure_speed(job, cpus, limit, PATIENCE).samples_s for _ in range(TRIES)]
        spread.append(100 * (max(tries) / min(tries) - 1))
        return max(tries)

    spread: list[float] = []
    began_s = time.monotonic()
    known = CoreSweep(cores)(lambda c: run(c, 1.0))
    swept_s = time.monotonic() - began_s
    every = np.array(cores)
    dataset_gib = sample_kib * FILES / 2**20
    plenty = interpolate_speed(known, every)
    demand = DemandModel.from_core_sweep(
        every, plenty, dataset_gib=dataset_gib, sample_kib=sample_kib, storage_mib_s=STORAGE_MIB_S
    )
    errors = []
    for row, c in enumerate(cores):
        cells = [f"all {plenty[row]:.1f}"]
        for share in SHARES if each > 1 else SHARES[1:]:
            truth = run(c, share)
            predicted = float(
                demand.speed_with_memory(plenty[row : row + 1], np.array([share * dataset_gib]))[0]
            )
            error = 100 * abs(predicted / truth - 1)
            errors.append(error)
            cells.append(f"{share:.0%} {truth:.1f}, estimated {predicted:.1f} ({error:.1f})")
        print(f"    {c:g} cores: {'; '.join(cells)}")
    took_s = time.monotonic() - began_s
    print(
        f"    {len(known)} points in {swept_s:.0f} s; the {len(errors)} others took {took_s - swept_s:.0f} s"
    )
    return np.array(errors), len(cores) * len(MEMORY_SHARES) / len(known), float(np.mean(spread))


if __name__ == "__main__":
    sys.exit(main())

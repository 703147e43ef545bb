"""Load of the Slurm engine on a real cluster on this host: latency, hand-over and polling.

    python benchmarks/slurm_load.py --nodes 8 --gpus 8 --polled 200

Each figure has its reference from the same run: plain sbatch for the latency, the same number of serial
sbatch calls for the hand-over, one core for the polling.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.job_request import JOB_REQUEST
from support.slurm_cluster import SlurmCluster
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.job_spec import JobSpec
from wattline.backend.engine.slurm.backend import Slurm
from wattline.backend.engine.slurm.submission import SlurmOptions
from wattline.core.actions import ACTION_COLUMNS, START

_TRIES, _HANDED = 10, 200
_POLLED_S = 20.0


class LoadedBackend:
    """A backend on the partition main, and jobs that write a file when they start."""

    def __init__(self, root: Path) -> None:
        self.root, self._count = root, 0
        self.backend = Slurm(root / "service", SlurmOptions("main", meter="none"), stay_open=True)

    def submit(self, count: int) -> list[str]:
        """Submit jobs, and return their ids."""
        names = [str(self._count + n) for n in range(count)]
        self._count += count
        specs = [JobSpec(name, ("touch", str(self.root / f"job{name}"))) for name in names]
        self.backend.submit([JobRecord(spec, JOB_REQUEST, time.time()) for spec in specs])
        while any(name not in self.backend.records for name in names):
            self.backend.wait(time.time() + 0.05)
        return names

    def start(self, names: list[str], gpus: int) -> None:
        """Start jobs on one GPU each, *gpus* of them per node."""
        block = np.zeros((len(names), ACTION_COLUMNS), dtype=np.int64)
        for number, (row, name) in enumerate(zip(block, names, strict=True)):
            job = self.backend.records[name].row
            row[:5] = (START, job, job, number // gpus, 1)
        self.backend.apply(block)

    def wait(self, condition: object, timeout_s: float = 300.0) -> None:
        """Let the backend go on until a condition is true."""
        assert callable(condition)
        end_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end_s, condition
            self.backend.wait(time.time() + 0.05)


def measure_plain_latency(cluster: SlurmCluster, root: Path) -> float:
    """Return the median seconds from sbatch to the first file of the job."""
    seconds = []
    for number in range(_TRIES):
        path = root / f"plain{number}"
        began_s = time.time()
        cluster.run("sbatch", "-p", "main", "--gres=gpu:1", "-o", "/dev/null", "--wrap", f"touch {path}")
        cluster.wait_for(path.exists)
        seconds.append(path.stat().st_mtime - began_s)
    return statistics.median(seconds)


def measure_latency(loaded: LoadedBackend) -> float:
    """Return the median seconds from a decision to the first file of the job."""
    seconds = []
    for _ in range(_TRIES):
        (name,) = loaded.submit(1)
        path, began_s = loaded.root / f"job{name}", time.time()
        loaded.start([name], 1)
        loaded.wait(path.exists)
        seconds.append(path.stat().st_mtime - began_s)
        loaded.wait(lambda name=name: name not in loaded.backend.records)
    return statistics.median(seconds)


def measure_hand_over(loaded: LoadedBackend, count: int, gpus: int) -> tuple[float, float]:
    """Return jobs per second that Slurm has accepted, and seconds until all *count* jobs have ended."""
    names = loaded.submit(count)
    began_s = time.monotonic()
    loaded.start(names, gpus)
    tracked = loaded.backend.engine._tracker.tracked
    loaded.wait(lambda: all(one.job_id for one in tracked.values()))
    accepted_s = time.monotonic() - began_s
    loaded.wait(lambda: not loaded.backend.records)
    return count / accepted_s, time.monotonic() - began_s


def measure_polling(cluster: SlurmCluster, root: Path, count: int) -> tuple[float, float]:
    """Return the share of a core that polling costs, and the seconds between two polls."""
    backend = Slurm(root / "polled", SlurmOptions("main", meter="none"), stay_open=True)
    for number in range(count):
        cluster.run(
            *("sbatch", "-p", "main", "--gres=gpu:1", "-o", "/dev/null", "--mem=10M"),
            *(f"--comment=wl:other:{number}:1", "--wrap", "sleep 100000"),
        )
    cluster.wait_for(lambda: cluster.run("squeue", "-h", "-t", "R", "-o", "%i").count("\n") == count, 600.0)
    poller, seen = backend.engine._poller, set()
    cpu_s, began_s = _cpu_s(), time.monotonic()
    while time.monotonic() - began_s < _POLLED_S:
        seen.add(poller.latest.began_s)
        time.sleep(0.05)
    share = (_cpu_s() - cpu_s) / (time.monotonic() - began_s)
    backend.engine.close()
    return share, _POLLED_S / max(len(seen) - 1, 1)


def _cpu_s() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--polled", type=int, default=64, help="running jobs while polling is measured")
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir="/tmp"))
    with SlurmCluster(args.nodes, args.gpus) as cluster:
        os.environ.update(cluster.environment)
        plain_s = measure_plain_latency(cluster, root)
        loaded = LoadedBackend(root)
        latency_s = measure_latency(loaded)
        print(f"decision to running job: {latency_s:.2f} s, plain sbatch {plain_s:.2f} s")
        count = min(args.nodes * args.gpus, _HANDED)
        rate, all_s = measure_hand_over(loaded, count, args.gpus)
        print(f"handed to Slurm: {rate:.1f} jobs/s of {count}; all ended after {all_s:.1f} s")
        loaded.backend.engine.close()
        share, every_s = measure_polling(cluster, root, args.polled)
        print(f"polling {args.polled} running jobs every {every_s:.2f} s: {100 * share:.1f} % of a core")


if __name__ == "__main__":
    main()

"""Preemption of jobs that save their work and of jobs that never do, by the service.

    python benchmarks/preemption.py unsaved     two jobs of 100 s on all GPUs, without checkpoints
    python benchmarks/preemption.py short       one of 100 s and one of 12 s, without checkpoints
    python benchmarks/preemption.py saving      two jobs of 60 s that save when they are asked to stop
    python benchmarks/preemption.py simulated   a synthetic trace under `las`, by what a stop loses

The service runs in its own process under `--gpus simulated:2xa100 --policy las:quantum=10s`; every job
requests both GPUs and counts seconds. Seconds that an attempt counted and did not save are lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from wattline.backend.sim.simulator import Sim
from wattline.cluster import parse_cluster
from wattline.core.actions import ACTION_VERB, STOP
from wattline.core.events import EVENT_AT_S, EVENT_JOB, EVENT_VERB, FINISHED, RAN, STOPPED
from wattline.core.jobs import PREEMPTIBLE_ALWAYS, PREEMPTIBLE_ONCE_SAVED
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.policy.parser import parse_policy
from wattline.trace import read

OPTIONS = ("--gpus", "simulated:2xa100", "--policy", "las:quantum=10s")
LIMIT_S = 400.0  # jobs that have not ended by then are reported as they are

COUNT = """
import os, signal, sys, time
goal, saves = int(sys.argv[1]), sys.argv[2] == "saves"
path = os.path.join(os.environ["WATTLINE_CHECKPOINT_DIR"], "second")
done = int(open(path).read()) if os.path.exists(path) else 0
stop = []
if saves:
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
while done < goal:
    time.sleep(1.0)
    done += 1
    print(done, flush=True)
    if saves and (stop or done % 5 == 0):
        with open(path, "w") as file:
            file.write(str(done))
        if stop:
            sys.exit(75)
"""
CASES = {
    "unsaved": ((100, False), (100, False)),
    "short": ((100, False), (12, False)),
    "saving": ((60, True), (60, True)),
}


def run_case(jobs: tuple[tuple[int, bool], ...]) -> None:
    """Submit *jobs*, pairs of seconds and whether the job saves, and print how they went."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wattline = [sys.executable, "-m", "wattline"]
        served = subprocess.Popen(
            [*wattline, "serve", "--dir", name, "--port", "0", *OPTIONS], stderr=subprocess.DEVNULL
        )
        try:
            while not (folder / "url").exists():
                if served.poll() is not None:
                    raise SystemExit("the service did not start")
                time.sleep(0.1)
            for seconds, saves in jobs:
                words = [sys.executable, "-c", COUNT, str(seconds), "saves" if saves else "loses"]
                submit = ["submit", "--dir", name, "--gpus", "2", "--time", "10m", "--", *words]
                subprocess.run([*wattline, *submit], check=True, stdout=subprocess.DEVNULL)
            begin_s = time.monotonic()
            while time.monotonic() - begin_s < LIMIT_S:
                states = [_show(wattline, name, n + 1) for n in range(len(jobs))]
                if all(job["end_s"] is not None for job in states):
                    break
                time.sleep(2.0)
            for number, ((seconds, _), job) in enumerate(zip(jobs, states, strict=True), 1):
                _print_job(folder, number, seconds, job)
        finally:
            for number in range(1, len(jobs) + 1):
                subprocess.run([*wattline, "cancel", "--dir", name, str(number)], capture_output=True)
            time.sleep(1.0)
            served.terminate()
            served.wait()


def _show(wattline: list[str], folder: str, number: int) -> dict[str, object]:
    command = [*wattline, "show", "--dir", folder, "--json", str(number)]
    return dict(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))


def _print_job(folder: Path, number: int, seconds: int, job: dict[str, object]) -> None:
    ranges = []
    for path in sorted((folder / "jobs" / str(number) / "attempts").glob("*/rank0.log"), key=_attempt):
        lines = path.read_text().split()
        ranges.append((int(lines[0]) - 1, int(lines[-1])) if lines else (0, 0))
    counted = sum(end - begin for begin, end in ranges)
    reached = max((end for _, end in ranges), default=0)
    end_s, submit_s = job["end_s"], job["submit_s"]
    took = "not ended" if end_s is None else f"{float(str(end_s)) - float(str(submit_s)):.0f} s"
    print(
        f"job {number} of {seconds} s: {job['state']}, {took}, {len(ranges)} attempts, "
        f"reached second {reached}, {counted - reached} s of work lost"
    )


def _attempt(path: Path) -> int:
    return int(path.parent.name)


def simulate() -> None:
    """Print completion times and lost work of one trace, by what its jobs save and when they are stopped."""
    trace = read("synth:count=400,seed=1").jobs
    cluster = parse_cluster("4xa100:8")
    saves = {"at every stop": 0.0, "every 30 min": 1800.0, "never": -1.0}
    for policy in ("srtf", "priority", "tiresias"):
        for name, checkpoint_s in saves.items():
            for word, code in (("preemptible", PREEMPTIBLE_ALWAYS), ("once saved", PREEMPTIBLE_ONCE_SAVED)):
                count = len(trace)
                jobs = replace(
                    trace,
                    checkpoint_s=np.full(count, checkpoint_s),
                    preemptible=np.full(count, code),
                    priority=np.arange(count) % 3.0,
                )
                log = run(Sim(jobs, cluster), parse_policy(policy))
                stops = int((log.actions[:, ACTION_VERB] == STOP).sum())
                mean_h = _mean_completion_h(log)
                print(
                    f"{policy:9} saves {name:13} {word:11}: mean completion {mean_h:5.2f} h, "
                    f"{stops:4} stops, {_lost_gpu_h(log):6.1f} GPU-hours lost"
                )


def _mean_completion_h(log: Log) -> float:
    ended = log.events[log.events[:, EVENT_VERB] == FINISHED]
    took_s = ended[:, EVENT_AT_S] - log.jobs.submit_s[ended[:, EVENT_JOB].astype(int)]
    return float(took_s.mean()) / 3600


def _lost_gpu_h(log: Log) -> float:
    lost, runs = 0.0, dict[int, tuple[float, float, float]]()
    for step in log:
        for event in step.events:
            if event.verb == RAN:
                runs[event.job] = event.steps, event.at_s, event.rate
            elif event.verb == STOPPED:
                steps, since_s, rate = runs.pop(event.job)
                reached = max(steps + rate * (event.at_s - since_s), event.steps)
                work_s = (reached - event.steps) * float(log.jobs.step_s[event.job])
                lost += work_s * float(log.jobs.gpus[event.job]) / 3600
    return lost


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    case = sys.argv[1] if len(sys.argv) == 2 else ""
    if case == "simulated":
        simulate()
    elif case in CASES:
        run_case(CASES[case])
    else:
        raise SystemExit(__doc__)

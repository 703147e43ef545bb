"""JCT and energy of the same small workload as real processes and in the simulator.

    python benchmarks/real_vs_simulated.py [--seeds 3]

Real: the service runs scripts with a session on simulated GPUs; time and power of a step are those
of the library. Simulated: the same jobs, arrivals, policy and placer in `Sim`, with the library as the truth
and one further number: the seconds of a process before its first step, measured with one job alone. Figures
come from the run logs of both.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np

from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.core.events import EVENT_VERB, FINISHED, METERED
from wattline.core.jobs import Jobs
from wattline.jobfile import read_document
from wattline.loop.log_reader import read_log
from wattline.loop.run import run
from wattline.models.library import library
from wattline.service.controller import Controller

GPUS = "simulated:4xv100"
MODELS = ("resnet50", "shufflenetv2", "bert-sentiment", "deepspeech2")
BATCH = 64
SCRIPT = f"""
import sys, wattline
steps = int(sys.argv[1])
with wattline.Session(aim='none', batch_size={BATCH}) as run:
    for _ in run.epochs(1):
        for _ in run.steps(range(steps)):
            pass
"""


def draw_jobs(seed: int, count: int) -> list[tuple[float, str, int, float]]:
    """Return arrival, model, steps and seconds of each job."""
    rng = np.random.default_rng(seed)
    models = library()
    jobs = []
    for at_s in np.cumsum(rng.exponential(2.0, count)).tolist():
        model = MODELS[int(rng.integers(len(MODELS)))]
        step_s = BATCH / float(models.predict(model, "v100", gpus=1, batch=BATCH).samples_s[0])
        steps = max(int(rng.uniform(6.0, 20.0) / step_s), 1)
        jobs.append((at_s, model, steps, steps * step_s))
    return jobs


def run_service(jobs: list[tuple[float, str, int, float]], policy: str, folder: Path) -> Path:
    """Submit jobs when they arrive; return the log of the service."""
    served = Controller(folder, gpus=GPUS, policy=policy, place="pack")
    served.start()
    began_s = time.monotonic()
    for at_s, model, steps, seconds in jobs:
        time.sleep(max(began_s + at_s - time.monotonic(), 0.0))
        command = [sys.executable, "-c", SCRIPT, str(steps)]
        resources = {"gpus": 1, "time": f"{seconds + 30:.3f}s"}
        document = {"run": command, "model": model, "batch_size": BATCH, "resources": resources}
        served.submit(read_document({**document, "env": {"OMP_NUM_THREADS": "1"}}, model), "", "/")
    return finish_run(served, folder)


def finish_run(served: Controller, folder: Path) -> Path:
    """Wait until all jobs have succeeded, stop the service, and return its log."""
    while served.store.has_live_jobs():
        time.sleep(0.1)
    while (step := served.view().step) is None or len(step.state.queue):
        time.sleep(0.1)
    path = folder / "run.jsonl"
    path.write_text("".join(served.run_log()))
    counts = served.store.count_by_state()
    wrong = sum(counts.values()) - counts.get("SUCCEEDED", 0)
    served.stop()
    assert not wrong, f"{wrong} jobs did not succeed"
    return path


def read_figures(log: object, jobs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return seconds from arrival to end, and joules, of each job."""
    jct_s, energy_j = np.zeros(jobs), np.zeros(jobs)
    events = log.events  # type: ignore[attr-defined]
    for verb, job, at_s, _, _, used_j in events[events[:, EVENT_VERB] != METERED].tolist():
        if verb == FINISHED:
            jct_s[int(job)] = at_s - log.jobs.submit_s[int(job)]  # type: ignore[attr-defined]
            energy_j[int(job)] = used_j
    return jct_s, energy_j


def compare(seed: int, policy: str, count: int) -> tuple[float, float, float, float]:
    """Return the median and largest error of JCT, the share of pairs in another order, and that of energy."""
    from wattline.placement.parser import parse_placer
    from wattline.policy.parser import parse_policy

    jobs = draw_jobs(seed, count)
    with tempfile.TemporaryDirectory() as folder:
        alone = run_service(jobs[:1], policy, Path(folder) / "alone")
        start_s = float(read_figures(read_log(alone), 1)[0][0]) - jobs[0][3]
        log = read_log(run_service(jobs, policy, Path(folder) / "all"))
    is_s, is_j = read_figures(log, count)
    table = Jobs.of(
        submit_s=log.jobs.submit_s - log.jobs.submit_s[0],
        gpus=[1] * count,
        duration_s=[seconds for *_, seconds in jobs],
        model=[model for _, model, *_ in jobs],
        batch=[BATCH] * count,
    )
    sim = Sim(replace(table, cpus=log.jobs.cpus, mem_gib=log.jobs.mem_gib), log.nodes, library(),
              overheads=Overheads(start_s=start_s))  # fmt: skip
    would_s, would_j = read_figures(
        run(sim, parse_policy(policy), library(), place=parse_placer("pack")), count
    )
    off = np.abs(would_s / is_s - 1)
    pairs = list(combinations(range(count), 2))
    apart = [(a, b) for a, b in pairs if abs(is_s[a] - is_s[b]) > 0.05 * is_s.max()]
    other = np.mean([(is_s[a] < is_s[b]) != (would_s[a] < would_s[b]) for a, b in apart])
    energy = float(would_j.sum() / is_j.sum() - 1)
    parts = (
        f"JCT off {100 * np.median(off):.1f} % (median), {100 * off.max():.1f} % (most)",
        f"mean JCT {100 * (would_s.mean() / is_s.mean() - 1):+.1f} %",
        f"other order {100 * other:.1f} % of pairs",
        f"energy {100 * energy:+.1f} %",
        f"a process starts in {start_s:.2f} s",
    )
    print(f"seed {seed} {policy:<22}", "; ".join(parts), flush=True)
    return float(np.median(off)), float(off.max()), float(other), energy


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--count", type=int, default=12)
    args = parser.parse_args()
    for policy in ("fifo", "sjf+cap:slowdown=1.1"):
        for seed in range(args.seeds):
            compare(seed, policy, args.count)


if __name__ == "__main__":
    main()

"""Closed-form check: the mean wait of M/M/c queues against Erlang's C formula, with its interval.

python benchmarks/queueing.py
"""

from __future__ import annotations

import math
import sys

import numpy as np

import wattline as wl
from wattline import policy as p
from wattline.core.actions import ACTION_JOB, ACTION_VERB, START

SERVICE_S, JOBS, SEEDS = 1000.0, 4000, 10
STUDENT_95 = 2.262  # 9 degrees of freedom


def compute_erlang_c_wait_s(load: float, servers: int) -> float:
    offered = load * servers
    below = math.fsum(offered**k / math.factorial(k) for k in range(servers))
    top = offered**servers / math.factorial(servers) / (1 - load)
    return top / (below + top) * SERVICE_S / (servers * (1 - load))


def simulate_wait_s(load: float, servers: int, seed: int) -> float:
    rng = np.random.default_rng((seed, servers, int(100 * load)))  # every queue has its own random numbers
    submit_s = np.cumsum(rng.exponential(SERVICE_S / (servers * load), JOBS))
    jobs = wl.Jobs.of(submit_s=submit_s, gpus=[1] * JOBS, duration_s=rng.exponential(SERVICE_S, JOBS))
    log = wl.run(wl.Sim(jobs, wl.nodes("v100", gpus=servers)), p.fifo)
    starts = log.actions[:, ACTION_VERB] == START
    waits = np.zeros(JOBS)
    waits[log.actions[starts, ACTION_JOB]] = log.action_s[starts]
    return float((waits - jobs.submit_s)[JOBS // 4 :].mean())


def main() -> int:
    print(f"M/M/c, {SEEDS} seeds of {JOBS} jobs, the first quarter left out; waits in seconds, 95 % interval")
    missed = 0
    for servers, load in ((1, 0.5), (1, 0.8), (4, 0.7), (8, 0.8), (16, 0.9)):
        waits = [simulate_wait_s(load, servers, seed) for seed in range(SEEDS)]
        mean, half = float(np.mean(waits)), STUDENT_95 * float(np.std(waits, ddof=1)) / math.sqrt(SEEDS)
        expected = compute_erlang_c_wait_s(load, servers)
        inside = abs(mean - expected) <= half
        missed += not inside
        print(
            f"c={servers:2} load={load}: simulated {mean:7.1f} ± {half:5.1f}, Erlang C {expected:7.1f}, "
            f"{'inside' if inside else 'outside'}"
        )
    print("one in twenty is expected outside")
    return int(missed > 1)


if __name__ == "__main__":
    sys.exit(main())

"""Synergy's LAS with its tune in plain Python: a simulator without logs, energy or checks.

Written from a description of the published code, for one-GPU jobs only; `benchmarks/synergy.py --only speed`
runs it next to Wattline. It also confirms the published figure (18.969 h).
"""

from __future__ import annotations

import math
from typing import Any

from wattline.core.jobs import Jobs
from wattline.papers.synergy_speedups import DEMANDS

ROUND_S, GPUS, CORES, GIB = 300.0, 8, 24.0, 500.0
SHARE = (CORES / GPUS, GIB / GPUS)


def simulate_mean_jct_h(jobs: Jobs, servers: int) -> float:
    """Return the mean JCT in hours."""
    left: list[dict[str, Any]] = []
    for row in range(len(jobs)):
        cores, gib, gain = DEMANDS[jobs.model.word(row)]
        left.append(
            {
                "submit": float(jobs.submit_s[row]),
                "step": float(jobs.step_s[row]),
                "steps": float(jobs.steps[row]),
                "wants": (cores, gib),
                "gain": gain,
                "done": 0.0,
                "served": 0.0,
            }
        )
    now = math.ceil(left[0]["submit"] / ROUND_S) * ROUND_S
    total = 0.0
    while left:
        ready = [job for job in left if job["submit"] <= now]
        ready.sort(key=lambda job: (job["served"], job["submit"]))
        for job in _allocate(ready[: servers * GPUS], servers):
            job["done"] = min(job["steps"], job["done"] + math.floor(ROUND_S / (job["step"] / job["speed"])))
            job["served"] += ROUND_S
            if job["done"] >= job["steps"]:
                total += now + ROUND_S - job["submit"]
        now += ROUND_S
        left = [job for job in left if job["done"] < job["steps"]]
    return total / len(jobs) / 3600


def _allocate(chosen: list[dict[str, Any]], servers: int) -> list[dict[str, Any]]:
    """Give each job its demand on the first server that has it, else its share, which others return."""
    free, cores, gib = [GPUS] * servers, [CORES] * servers, [GIB] * servers
    on: list[list[dict[str, Any]]] = [[] for _ in range(servers)]

    def fits(job: dict[str, Any], wants: tuple[float, float]) -> bool:
        for s in range(servers):
            if free[s] and cores[s] >= wants[0] and gib[s] >= wants[1]:
                free[s] -= 1
                cores[s] -= wants[0]
                gib[s] -= wants[1]
                on[s].append(job)
                job["has"] = wants
                return True
        return False

    for job in chosen:
        wants = job["wants"]
        job["speed"] = job["gain"]
        if fits(job, wants):
            continue
        if wants[0] > SHARE[0] or wants[1] > SHARE[1]:
            wants = SHARE
            job["speed"] = 1.0
            if fits(job, wants):
                continue
        s = min((s for s in range(servers) if free[s]), key=lambda s: (free[s], s))
        short = [max(0.0, wants[0] - cores[s]), max(0.0, wants[1] - gib[s])]
        for other in sorted(on[s], key=lambda other: (-other["has"][0], -other["has"][1])):
            if not any(short):
                break
            back = other["has"][0] - SHARE[0], other["has"][1] - SHARE[1]
            short = [max(0.0, lack - more) for lack, more in zip(short, back, strict=True)]
            cores[s] += back[0]
            gib[s] += back[1]
            other["has"], other["speed"] = SHARE, 1.0
        fits(job, wants)
    return chosen

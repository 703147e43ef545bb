"""All levers together: one synthetic trace, one more lever at a time, and each lever alone.

A step adds a lever to the step before it; "alone" is the same lever added to FIFO only. A lever interferes
with those before it if it gains less on top of them than alone, beyond the 95 % interval over paired seeds;
it reinforces them if it gains more; else it adds up.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes as build_nodes
from wattline.energy.prices import Price
from wattline.errors import PlanError
from wattline.loop.run import run
from wattline.models.library import library
from wattline.papers.results import (
    SYNTHETIC,
    CaseResult,
    Experiments,
    PaperResult,
    Sample,
    bootstrap_interval,
    group_samples,
)
from wattline.placement.parser import parse_placer
from wattline.policy.knobs import has_knob, set_knob
from wattline.policy.parser import parse_policy
from wattline.reports import report
from wattline.trace.combined import combined
from wattline.units import pluralize

METRICS = ("JCT", "energy", "cost")
PER_KWH = 0.17


class AblationStep(NamedTuple):
    """A step of the ablation: the policy of all levers so far, and of this lever alone on FIFO."""

    lever: str
    policy: str
    alone: str = ""


STEPS = (
    AblationStep("FIFO", "fifo@pack+power"),
    AblationStep("+ demand", "demand+fifo@tune+power", "demand+fifo@tune+power"),
    AblationStep("+ caps", "demand+fifo+cap@tune+power", "fifo+cap@pack+power"),
    AblationStep("+ fusion", "demand+fifo+fuse+cap@tune+power", "fifo+fuse@pack+power"),
    AblationStep("+ elasticity", "demand+afs+fuse+cap@tune+power", "afs@pack+power"),
    AblationStep("+ due dates", "demand+elasticflow+fuse+cap@tune+power", "elasticflow@pack+power"),
    AblationStep("market", "market@buddy+host+power", "market@pack+power"),
    AblationStep("market, cost", "market:aim=cost@buddy+host+power", "market:aim=cost@pack+power"),
)
"""The last two are the joint policy, for time and for cost: GPUs, caps, batches and arrays at once, and hosts
split by need."""


class LeverTask(NamedTuple):
    """A policy on *jobs* jobs of the trace of one seed."""

    policy: str
    seed: int
    jobs: int


def simulate_policy(task: LeverTask) -> tuple[str, tuple[float, float, float, float]]:
    """Return mean JCT in hours, kWh, cost, and the share of deadlines missed."""
    text, _, place = task.policy.partition("@")
    policy = parse_policy(text)
    price = Price.flat(PER_KWH)
    if has_knob(policy, "price"):
        policy = set_knob(policy, "price", price)
    jobs = combined(count=task.jobs, seed=task.seed)
    cluster = build_nodes("v100", count=4, gpus=8)
    sim = Sim(jobs, cluster, truth=library(), overheads=Overheads(restart_s=30.0))
    found = report(run(sim, policy, library(), place=parse_placer(place, "easy"), price=price))
    if found.unfinished:
        raise PlanError(f"{task.policy}: {found.unfinished} jobs are unfinished, expected none")
    missed = found.deadline_misses / max(found.deadline_jobs, 1)
    return task.policy, (found.jct_mean_s / 3600, found.energy_kwh, found.cost, missed)


def reproduce_together(experiments: Experiments) -> PaperResult:
    """Add one lever after another, and compare what each gains there with what it gains alone."""
    count = 30 if experiments.quick else 300
    policies = dict.fromkeys(text for step in STEPS for text in (step.policy, step.alone) if text)
    tasks = [LeverTask(text, seed, count) for text in policies for seed in range(experiments.seeds)]
    samples = group_samples(experiments.run(simulate_policy, tasks))
    base = samples[STEPS[0].policy]
    cases = []
    for step in STEPS[1:]:
        for number, metric in enumerate(METRICS):
            ratio = _divide(base[number], samples[step.policy][number])
            cases.append(CaseResult(f"{step.lever}: {metric}", SYNTHETIC, ratio, baseline=1.0))
    effects = [_compare_gains(samples, *pair) for pair in pairwise(STEPS[1:-1])]
    return PaperResult(
        "together",
        "All levers together: one more at a time",
        "none: no paper has all of them",
        "x",
        math.nan,
        math.nan,
        "none",
        f"synthetic trace combined:count={count}, 32 V100s in 4 nodes, library models as truth, restarts of"
        f" 30 s; {PER_KWH:g} per kWh and the trace's prices of lateness; idle nodes are switched off in every"
        f" step; FIFO's figure over that of the step, {pluralize(experiments.seeds, 'seed')}",
        tuple(cases),
        tuple(effect["text"] for effect in effects),
        figure="steps",
        extra={
            "steps": [_describe_step(step, samples[step.policy]) for step in STEPS],
            "effects": [{key: value for key, value in one.items() if key != "text"} for one in effects],
        },
    )


def _divide(base: Sample, own: Sample) -> Sample:
    return Sample(tuple(a / b for a, b in zip(base.values, own.values, strict=True)))


def _describe_step(step: AblationStep, samples: list[Sample]) -> dict[str, Any]:
    names = ("jct_mean_h", "energy_kwh", "cost", "deadlines_missed")
    return {
        "lever": step.lever,
        "policy": step.policy,
        **{
            name: {"mean": sample.mean, "interval": list(sample.interval), "values": list(sample.values)}
            for name, sample in zip(names, samples, strict=True)
        },
    }


def _compare_gains(
    samples: dict[str, list[Sample]], before: AblationStep, step: AblationStep
) -> dict[str, Any]:
    """Return what a lever gains on top of the step before it, alone, and the interval of their ratio."""
    found: dict[str, Any] = {"lever": step.lever}
    texts = []
    for number, metric in enumerate(METRICS):
        on_top = _divide(samples[before.policy][number], samples[step.policy][number])
        alone = _divide(samples[STEPS[0].policy][number], samples[step.alone][number])
        apart = np.log(np.array(on_top.values) / np.array(alone.values))
        low, high = bootstrap_interval(apart.tolist())
        word = "reinforces" if low > 1e-9 else "interferes" if high < -1e-9 else "adds up"
        found[metric] = {
            "on_top": on_top.mean,
            "on_top_interval": list(on_top.interval),
            "alone": alone.mean,
            "alone_interval": list(alone.interval),
            "effect": word,
        }
        texts.append(f"{metric} {on_top.mean:.2f}x (alone {alone.mean:.2f}x) {word}")
    found["text"] = f"{step.lever.removeprefix('+ ')}: {'; '.join(texts)}"
    return found

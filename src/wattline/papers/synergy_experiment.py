"""Synergy (Mohan et al., OSDI 2022): mean JCT with host resources by demand, against proportional shares."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes as build_nodes
from wattline.core.events import EVENT_AT_S, EVENT_JOB, EVENT_VERB, FINISHED
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.protocols import Models, Placer, Policy
from wattline.core.table import Floats, Ints
from wattline.loop.run import run
from wattline.models.library import library
from wattline.papers.results import PUBLIC, SYNTHETIC, CaseResult, Experiments, PaperResult, group_samples
from wattline.papers.synergy_placers import TunePublished
from wattline.papers.synergy_speedups import SynergyModels
from wattline.placement.host.synergy_tune import Tune
from wattline.placement.pack import Pack
from wattline.policy.chain import Stage, chain
from wattline.policy.ordering import Las, fifo, preempt, srtf
from wattline.policy.stages.demand import Demand
from wattline.public_data.cache import find_folder
from wattline.trace.formats.synergy import STEP_S
from wattline.trace.reader import read_trace
from wattline.units import pluralize

TASKS = {
    "image": ("alexnet", "shufflenet", "res18", "mobilenet", "res50"),
    "language": ("gnmt", "transformer", "lstm"),
    "speech": ("m5", "deepspeech"),
}
MIXES = {"20/70/10": (0.2, 0.7, 0.1), "33/33/33": (1 / 3, 1 / 3, 1 / 3), "50/0/50": (0.5, 0.0, 0.5)}
"""Shares of image, language and speech models."""
SIZES = {"one GPU": ((1,), (1.0,)), "1-8 GPUs": ((1, 2, 4, 8), (0.70, 0.10, 0.15, 0.05))}
RATES = (7.0, 8.0, 9.0, 10.0)
"""Jobs per hour on 128 GPUs: below and above what proportional shares can serve."""
GPU_HOURS = 16.8
"""Mean GPU hours of a one-GPU job of Synergy's generator."""
ORDERS: dict[str, tuple[Stage, ...]] = {"fifo": (fifo, preempt), "srtf": (srtf,), "las": (Las(),)}

_FULL = {"res18": "synergy/resnet18", "res50": "synergy/resnet50"}
_SERVERS = 16
_TRACES = {"static_100job_6_3_1100.0": "fifo", "srtf.log": "srtf"}  # of the physical cluster, 4 servers
_SETUPS = {
    "rounds": "as published, rounds of 300 s, one speed-up or none, free restarts",
    "exact": "jobs end between rounds, speeds by the whole matrix, restarts of 30 s",
}


class HostTask(NamedTuple):
    """A run of one workload: drawn at *rate* jobs per hour (0: read from *path*)."""

    case: str
    setup: str
    path: str
    rate: float
    seed: int
    jobs: int


def draw_workload(mix: str, sizes: str, load: float, count: int, gpus: int, seed: int) -> Jobs:
    """Return jobs like those of Synergy's generator; *load* is of the capacity with proportional shares."""
    rng = np.random.default_rng(seed)
    long = rng.random(count) >= 0.8
    duration_s = 60 * 10 ** np.where(long, rng.uniform(3, 4, count), rng.uniform(1.5, 3, count))
    wide = rng.choice(SIZES[sizes][0], count, p=SIZES[sizes][1])
    gap_s = float((duration_s * wide).mean()) / (gpus * load)
    submit_s = np.cumsum(np.ceil(rng.exponential(gap_s, count)))
    task = rng.choice(list(TASKS), count, p=MIXES[mix])
    count_of: defaultdict[str, int] = defaultdict(int)
    names = []
    for word in task.tolist():
        names.append(TASKS[word][count_of[word] % len(TASKS[word])])
        count_of[word] += 1
    step_s = np.array([STEP_S[name] for name in names])
    return Jobs.of(
        submit_s=submit_s,
        gpus=wide,
        steps=np.maximum(1, np.floor(duration_s / step_s)),
        step_s=step_s,
        model=[_FULL.get(name, name) for name in names],
        cpus=3.0 * wide,
        mem_gib=62.5 * wide,
    )


def build_policy(order: str, rounds: bool) -> Policy:
    """Return an order of the queue with demands; *rounds*: as published, demands of the best speed."""
    return chain(Demand(keep=1.0 if rounds else 0.98), *ORDERS[order])


def simulate_ends(
    jobs: Jobs, cluster: Nodes, policy: Policy, place: Placer, models: Models, rounds: bool
) -> tuple[Ints, Floats]:
    """Return the rows of the jobs in the order of their ends, and when; *rounds*: of 300 s, as published."""
    sim = Sim(
        jobs,
        cluster,
        truth=models,
        quantum_s=300.0 if rounds else None,
        overheads=Overheads(restart_s=0.0 if rounds else 30.0),
    )
    log = run(sim, policy, models, place=place)
    done = log.events[log.events[:, EVENT_VERB] == FINISHED]
    return done[:, EVENT_JOB].astype(np.int64), done[:, EVENT_AT_S]


def reproduce_synergy(experiments: Experiments) -> PaperResult:
    """Compare proportional shares with Synergy-Tune as published and with ours."""
    folder = find_folder(experiments.folders, "synergy", *_TRACES)
    count = 300 if experiments.quick else 6000
    rates = RATES[1:2] if experiments.quick else RATES
    tasks = [
        HostTask(f"{rate:g} jobs/h, {setup}", setup, "", rate, seed, count)
        for setup in _SETUPS
        for rate in rates
        for seed in range(experiments.seeds)
    ]
    if folder is not None:
        tasks += [
            HostTask(f"{_name_trace(name)}, {setup}", setup, str(folder / name), 0.0, 0, 0)
            for name in _TRACES
            for setup in _SETUPS
        ]
    samples = group_samples(experiments.run(compare_mechanisms, tasks))
    read = {task.case for task in tasks if task.path}
    setups = "; ".join(f"{name}: {text}" for name, text in _SETUPS.items())
    loads = ", ".join(f"{rate:g} jobs/h {rate * GPU_HOURS / (8 * _SERVERS):.2f}" for rate in rates)
    notes = [f"offered load over the capacity with proportional shares: {loads}"]
    if folder is None:
        notes.append("the two traces of the physical cluster are left out: wattline data fetch synergy")
    return PaperResult(
        "synergy",
        "Synergy (OSDI'22): mean JCT against GPU-proportional host shares",
        "up to 3.4x",
        "x",
        float("nan"),
        3.4,
        "Synergy-Tune as published, run here in the same set-up",
        f"FIFO, one-GPU jobs 20/70/10 as Synergy's generator draws them, {_SERVERS}x8 V100, {count} jobs, of"
        f" which the fifth sixth counts; {setups}; {pluralize(experiments.seeds, 'seed')}; the traces of"
        " the physical cluster (one run, 4x8 V100): last end instead of mean JCT",
        tuple(
            CaseResult(case, PUBLIC if case in read else SYNTHETIC, ours, published)
            for case, (published, ours) in samples.items()
        ),
        tuple(notes),
    )


def _name_trace(file: str) -> str:
    return "static FIFO" if file.startswith("static") else "dynamic SRTF"


def compare_mechanisms(task: HostTask) -> tuple[str, tuple[float, float]]:
    """Return the gain over proportional shares of the published tune and of ours."""
    rounds = task.setup == "rounds"
    models: Models = SynergyModels() if rounds else library()
    if task.path:
        jobs, servers = read_trace(task.path), 4
        order = _TRACES[Path(task.path).name]
    else:
        gpus = 8 * _SERVERS
        load = task.rate * GPU_HOURS / gpus
        jobs = draw_workload("20/70/10", "one GPU", load, task.jobs, gpus, task.seed)
        servers, order = _SERVERS, "fifo"
    cluster = build_nodes("v100", count=servers, gpus=8, cpus=24.0, mem_gib=500.0)
    tune = Tune("greedy", move=0.0 if rounds else 0.1)
    with_demands = build_policy(order, rounds)
    figures = []
    for policy, place in (
        (chain(*ORDERS[order]), Pack("greedy")), (with_demands, TunePublished()), (with_demands, tune),
    ):  # fmt: skip
        row, at_s = simulate_ends(jobs, cluster, policy, place, models, rounds)
        if task.path:
            figures.append(float(at_s.max()))
        else:
            counted = (row >= 4 * task.jobs // 6) & (row < 5 * task.jobs // 6)
            figures.append(float(np.mean(at_s[counted] - jobs.submit_s[row[counted]])))
    return task.case, (figures[0] / figures[1], figures[0] / figures[2])

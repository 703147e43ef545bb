"""PowerFlow (Gu et al., arXiv 2304.06381): mean JCT at equal energy against other policies.

The paper's text, its cluster and its baselines were not available, and no code of it is public: the policy
is a reconstruction (docs/papers.md), and so is the set-up here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes as build_nodes
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.protocols import Policy
from wattline.errors import PlanError
from wattline.loop.run import run
from wattline.models.library import library
from wattline.models.model_assignment import assign_models
from wattline.papers.results import PUBLIC, SYNTHETIC, CaseResult, Experiments, PaperResult, group_samples
from wattline.placement.parser import parse_placer
from wattline.policy.elastic.powerflow import PowerFlow
from wattline.policy.parser import parse_policy
from wattline.public_data.cache import find_folder
from wattline.reports import Report, report
from wattline.reports.knob_search import find_knob_value
from wattline.trace.reader import read
from wattline.trace.synthetic import synth
from wattline.units import pluralize

CELLS = (
    ("philly", "0e4a51"), ("philly", "103959"), ("philly", "ee9e8c"),
    ("itp", "cluster01"), ("itp", "cluster03"), ("itp", "cluster06"),
)  # fmt: skip
"""Traces and virtual clusters, chosen by their numbers of jobs."""

PLAIN = ("fifo", "gandiva", "tiresias", "afs", "pollux")
BASELINES = (*PLAIN, *(f"{name}+cap" for name in PLAIN))
GRID = (0.0, 0.15, 0.3, 0.5, 0.75, 1.0)
"""Values of PowerFlow's `eta` that are tried before bisection."""

LOAD = 1.5  # offered load of the experiment
_FILES = {
    "philly": (("philly_jobs.csv.gz", None), ("philly.csv", "submit=timestamp,gpus=num_gpus,team=cluster")),
    "itp": (("elasticflow-traces.tar.gz", None),),
}


class CellTask(NamedTuple):
    """A virtual cluster of a trace (empty *path*: a synthetic one), and what is run on it."""

    name: str
    path: str
    columns: str | None
    team: str
    seed: int
    load: float
    jobs: int
    baselines: tuple[str, ...]


@cache
def read_jobs(path: str, columns: str | None = None) -> Jobs:
    """Return the jobs of a trace in the order of submission; read once in a process."""
    jobs = read(path, columns=columns).jobs
    return jobs.take(np.argsort(jobs.submit_s, kind="stable"))


def draw_stretch(every: Jobs, team: str, seed: int, load: float, count: int) -> tuple[Jobs, Nodes, float]:
    """Return *count* jobs in a row of a team, nodes of 8 A100s for them, and the offered load.

    There are as many nodes as give *load*, but enough for the largest job. Jobs that name no model get one.
    """
    jobs = every.take(np.flatnonzero(every.team.codes == every.team.names.index(team))) if team else every
    first = int(np.random.default_rng([seed, 1]).integers(0, max(1, len(jobs) - count + 1)))
    jobs = jobs.take(slice(first, first + count))
    jobs = replace(jobs, submit_s=jobs.submit_s - jobs.submit_s[0], deadline_s=np.full(len(jobs), np.inf))
    jobs = assign_models(jobs, library(), "a100", seed)
    busy = float(jobs.gpus @ jobs.duration_s) / float(np.ptp(jobs.submit_s))
    nodes = max(math.ceil(busy / load / 8), math.ceil(int(jobs.gpus.max()) / 8))
    return jobs, build_nodes("a100", count=nodes), busy / (8 * nodes)


def simulate(policy: Policy, place: str, jobs: Jobs, nodes: Nodes) -> Report:
    """Return the report of a run to the end, with restarts of 30 s."""
    sim = Sim(jobs, nodes, truth=library(), overheads=Overheads(restart_s=30.0))
    found = report(run(sim, policy, library(), place=parse_placer(place, "easy")))
    if found.unfinished:
        raise PlanError(f"{policy}: {found.unfinished} jobs are unfinished, expected none")
    return found


def measure_cell(
    jobs: Jobs, nodes: Nodes, baselines: tuple[str, ...]
) -> tuple[dict[str, dict[str, Any]], list[tuple[float, float, float]]]:
    """Return what is compared with each baseline, and PowerFlow's front: eta, kWh and mean JCT in hours."""

    @cache
    def ours(eta: float) -> Report:
        return simulate(PowerFlow(eta=eta), "buddy+power", jobs, nodes)

    rows: dict[str, dict[str, Any]] = {}
    for text in baselines:
        policy, _, powered = text.partition("@")
        base = simulate(parse_policy(policy), "buddy+power" if powered else "pack", jobs, nodes)
        same_energy = find_knob_value(ours, base.energy_j, "energy_j", grid=GRID)
        rows[text] = {
            "jct_h": base.jct_mean_s / 3600,
            "kwh": base.energy_kwh,
            "better": base.jct_mean_s / same_energy.report.jct_mean_s,
            "energy": same_energy.report.energy_j / base.energy_j,
            "side": same_energy.side,
        }
        if policy == "tiresias":
            same_jct = find_knob_value(ours, base.jct_mean_s, "jct_mean_s", grid=GRID)
            rows[text]["saves"] = 1 - same_jct.report.energy_j / base.energy_j
    return rows, [(eta, ours(eta).energy_kwh, ours(eta).jct_mean_s / 3600) for eta in GRID]


def reproduce_powerflow(experiments: Experiments) -> PaperResult:
    """Compare PowerFlow with ten baselines, each at the baseline's own energy."""
    count = 40 if experiments.quick else 200
    baselines = PLAIN[:2] if experiments.quick else BASELINES
    found = [(name, team, *_find_trace(experiments.folders, name)) for name, team in CELLS]
    cells = [(f"{name} {team}", path, columns, team) for name, team, path, columns in found if path]
    data = PUBLIC if cells else SYNTHETIC
    if not cells:
        cells = [(f"synth {size} GPUs", "", str(size), "") for size in (32, 64, 128)]
    if experiments.quick:
        cells = cells[:1]
    tasks = [
        CellTask(name, path, columns, team, seed, LOAD, count, baselines)
        for name, path, columns, team in cells
        for seed in range(experiments.seeds)
    ]
    results = experiments.run(measure_task, tasks)
    samples = group_samples(
        (text, (row["better"], row["energy"])) for _, rows, _ in results for text, row in rows.items()
    )
    loads = [load for _, _, load in results]
    energies = [row["energy"] for _, rows, _ in results for row in rows.values()]
    by_cell = group_samples(
        (f"{cell} {text}", (row["better"],)) for cell, rows, _ in results for text, row in rows.items()
    )
    best = max(by_cell, key=lambda name: by_cell[name][0].mean)
    saved = [100 * rows["tiresias"]["saves"] for _, rows, _ in results if "tiresias" in rows]
    notes = [
        f"energy of PowerFlow over that of the baseline: {min(energies):.2f} to {max(energies):.2f}",
        f"largest mean gain of a cluster and a baseline: {by_cell[best][0].mean:.2f}x, {best}",
    ]
    if saved:
        text = f"{np.mean(saved):.0f} % less energy ({min(saved):.0f} to {max(saved):.0f})"
        notes.append(f"at the mean JCT of tiresias: {text}")
    where = ", ".join(dict.fromkeys(name for name, *_ in cells))
    return PaperResult(
        "powerflow",
        "PowerFlow (arXiv 2304.06381): mean JCT at equal energy",
        "1.57 to 3.39x, the most against each baseline",
        "x",
        1.57,
        3.39,
        "none: its code and text are not public; ours is a reconstruction",
        f"{where}; stretches of {count} jobs on 8-GPU A100 nodes, offered load {min(loads):.2f} to"
        f" {max(loads):.2f}, restarts of 30 s, modelled power; {pluralize(experiments.seeds, 'seed')} of"
        " each; PowerFlow switches idle nodes off (buddy+power), the baselines do not (pack)",
        tuple(
            CaseResult(f"against {text}", data, better, baseline=1.0) for text, (better, _) in samples.items()
        ),
        tuple(notes),
    )


def measure_task(task: CellTask) -> tuple[str, dict[str, dict[str, Any]], float]:
    """Return the cell, its rows and the offered load of one seed."""
    if task.path:
        every = read_jobs(task.path, task.columns)
    else:
        size = int(task.columns or 64)
        every = synth(count=task.jobs, seed=task.seed, load=task.load, gpus_total=size)
    jobs, nodes, offered = draw_stretch(every, task.team, task.seed, task.load, task.jobs)
    return task.name, measure_cell(jobs, nodes, task.baselines)[0], offered


def _find_trace(folders: tuple[Path, ...], name: str) -> tuple[str, str | None]:
    """Return the path of a trace and the names of its columns; empty: it is not there."""
    for file, columns in _FILES[name]:
        folder = find_folder(folders, name, file)
        if folder is not None:
            return str(folder / file), columns
    return "", None

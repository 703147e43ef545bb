"""ANDREAS (Filippini et al., arXiv 2105.05080): cost of energy and lateness of whole traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.loop.run import run
from wattline.papers.andreas_scenarios import (
    FILES,
    PRICES,
    TableModels,
    build_cluster,
    draw_jobs,
    draw_times,
    read_times,
)
from wattline.papers.results import PUBLIC, SYNTHETIC, CaseResult, Experiments, PaperResult, group_samples
from wattline.placement.power import Power
from wattline.policy.andreas import Andreas
from wattline.policy.first_principle import FirstPrinciple
from wattline.public_data.cache import find_folder
from wattline.reports import Report, report
from wattline.units import pluralize

CASES = (
    ("servers", 10, 100, 0.25, 1.0), ("servers", 10, 100, 0.5, 1.0), ("servers", 10, 100, 0.8, 1.0),
    ("servers", 10, 100, 1.1, 1.0), ("servers", 10, 100, 0.8, 100.0), ("servers", 10, 100, 1.1, 100.0),
    ("datacenter", 10, 60, 0.1, 100.0), ("datacenter", 10, 60, 0.2, 100.0),
    ("datacenter", 10, 60, 0.3, 100.0),
)  # fmt: skip
"""Scenario, nodes, jobs, load, and the weight of lateness over that of the authors' service."""

_WITH_RESTARTS = ((0.5, 1.0), (0.8, 1.0))  # load and weight of "servers" that are also run with dear restarts
_RESTART_S = 60.0
_ORDERS = ("fifo", "edf", "priority")


class CostTask(NamedTuple):
    """One scenario and seed; *folder* is empty for made-up run times."""

    case: str
    folder: str
    scenario: str
    nodes: int
    jobs: int
    load: float
    weight: float
    restart_s: float
    seed: int


def simulate(
    scenario: str, jobs: Jobs, models: TableModels, nodes: Nodes, policy: Any, restart_s: float
) -> Report:
    """Return the report of a run, with its costs."""
    price = PRICES[scenario]
    if hasattr(policy, "price"):
        policy = replace(policy, price=price)
    sim = Sim(jobs, nodes, truth=models, overheads=Overheads(restart_s=restart_s))
    return report(run(sim, policy, models, place=Power(), price=price))


def reproduce_andreas(experiments: Experiments) -> PaperResult:
    """Compare the costs of ANDREAS' randomised greedy and of ours with FIFO, EDF and priority."""
    homes = {name: find_folder(experiments.folders, "andreas", *files) for name, files in FILES.items()}
    data = PUBLIC if homes["servers"] else SYNTHETIC
    cases = [case for case in CASES if case[0] == "servers" or homes["datacenter"]]
    if experiments.quick:
        cases = [("servers", 4, 12, 0.5, 1.0)]
    runs = [(case, 0.0) for case in cases]
    runs += [(case, _RESTART_S) for case in cases if case[0] == "servers" and case[3:] in _WITH_RESTARTS]
    tasks = [
        CostTask(
            _name_case(scenario, load, weight, restart_s),
            str(homes[scenario] or ""), scenario, nodes, jobs, load, weight, restart_s, seed,
        )
        for (scenario, nodes, jobs, load, weight), restart_s in runs
        for seed in range(experiments.seeds)
    ]  # fmt: skip
    samples = group_samples(experiments.run(measure_costs, tasks))
    alone = [sample.mean for _, _, sample in samples.values()]
    notes = [f"ours against the same orders on exclusive nodes: {min(alone):.0f} to {max(alone):.0f} % less"]
    if not homes["datacenter"]:
        notes.append("the scenario datacenter is left out: wattline data fetch andreas --accept")
    nodes, jobs = cases[0][1], cases[0][2]
    times = "the authors' run times" if data == PUBLIC else "made-up run times on the authors' servers"
    return PaperResult(
        "andreas",
        "ANDREAS (arXiv 2105.05080): cost of energy and lateness",
        "30 to 62 % less cost",
        " %",
        30.0,
        62.0,
        "ANDREAS' randomised greedy as published, 1,000 tries, run here",
        f"{times}; {nodes} nodes, {jobs} jobs (datacenter 60); cost against the mean of FIFO, EDF and"
        " priority on shared nodes, which choose configurations as ANDREAS' baselines do; a case is"
        " scenario, load, weight of lateness, and seconds of a restart (else restarts are free);"
        f" {pluralize(experiments.seeds, 'seed')}",
        tuple(CaseResult(case, data, ours, published) for case, (published, ours, _) in samples.items()),
        tuple(notes),
    )


def _name_case(scenario: str, load: float, weight: float, restart_s: float) -> str:
    late = f" x{weight:g}" if weight != 1 else ""
    return f"{scenario} {load:g}{late}" + (f", {restart_s:g} s" if restart_s else "")


def measure_costs(task: CostTask) -> tuple[str, tuple[float, float, float]]:
    """Return % of cost saved by the published method and by ours, and by ours against exclusive nodes."""
    folder = Path(task.folder) if task.folder else None
    nodes = build_cluster(task.scenario, task.nodes, folder)
    known = draw_times(task.seed) if folder is None else read_times(folder, task.scenario)
    jobs, models = draw_jobs(known, nodes, task.jobs, task.load, task.weight, task.seed)

    def cost_of(policy: object) -> float:
        return float(simulate(task.scenario, jobs, models, nodes, policy, task.restart_s).cost)

    shared, alone = (
        float(np.mean([cost_of(FirstPrinciple(order, exclusive)) for order in _ORDERS]))
        for exclusive in (0, 1)
    )
    published = cost_of(Andreas("randomised", "to_the_end", tries=1000, restart_s=task.restart_s))
    ours = cost_of(Andreas(restart_s=task.restart_s))
    return task.case, (100 * (1 - published / shared), 100 * (1 - ours / shared), 100 * (1 - ours / alone))

"""The parts of `benchmarks/market.py`."""

from __future__ import annotations

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import andreas_traces
import numpy as np
import powerflow
import references
from field_runs import DATA, Ratios, Scene, estimate_by_history, print_ratios, take_lever

import wattline as wl
from wattline.backend.sim.faults import Overheads
from wattline.cli.simulation.policy_argument import parse_policy_and_placer
from wattline.energy.budgets import parse_budget
from wattline.models.batch_assignment import allow_published_batches, draw_batches
from wattline.models.library import library
from wattline.models.model_assignment import assign_models
from wattline.models.throughput_table import read_throughput_table
from wattline.models.trace_model import Misjudged
from wattline.papers import andreas_scenarios
from wattline.papers.powerflow_experiment import CELLS
from wattline.papers.results import bootstrap_interval
from wattline.reports.summary import build_run_tables
from wattline.trace import read_trace

CHAINS = (
    "fifo@buddy+power", "las@buddy+power", "srtf@buddy+power", "fifo+cap@buddy+power",
    "fifo+fuse@buddy+power", "fifo+fuse+batch+cap@buddy+power", "demand+fifo+fuse+cap@tune+power",
    "demand+srtf+fuse+batch+cap@tune+power", "afs@buddy+power", "afs+cap@buddy+power",
    "pollux@buddy+power", "powerflow:eta=0.5@buddy+power", "powerflow:eta=0.25+fuse@buddy+power",
    "srtf+fuse+batch+cap@buddy+host+power", "afs+fuse+cap@buddy+host+power", "andreas@pack+power",
)  # fmt: skip
"""Chains of stages that the combined trace compares with, each with the placer that suits it."""

FOR_COST = "market:aim=cost@buddy+host+power"
"""Our policy where chains of stages are compared in cost."""

FASTEST = (
    "afs@buddy+power", "afs:lengths=known@buddy+power", "pollux@buddy+power", "srtf@buddy+power",
    "srsf@buddy+power", "tiresias@buddy+power", "powerflow@buddy+power",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    policy: str
    durations: str
    seeds: tuple[int, ...]
    count: int
    loads: tuple[float, ...]
    cells: tuple[str, ...]


def list_stretches(options: Options, batches: bool = False) -> Iterator[tuple[str, Scene]]:
    """Yield the cell and the scene of every cell, load and seed."""
    for trace, team in CELLS:
        if options.cells and f"{trace}:{team}" not in options.cells:
            continue
        for load in options.loads:
            for seed in options.seeds:
                jobs, nodes, _ = powerflow.build_case(trace, team, seed, load, options.count)
                if batches:
                    jobs = draw_batches(jobs, library(), "a100", seed)
                name = f"{trace}:{team} load {load:g} seed {seed}"
                yield f"{trace}:{team}", Scene(name, jobs, nodes, durations=options.durations)


def compare_energy(options: Options) -> bool:
    """Compare with PowerFlow at its own energy, and with the fastest policies without a budget."""
    etas = (0.1, 0.25, 0.5)
    equal = {eta: Ratios(f"JCT, powerflow:eta={eta:g}", 1.15) for eta in etas}
    by_cell: defaultdict[str, Ratios] = defaultdict(lambda: Ratios("", 1.0))
    others = {text: Ratios(f"JCT without budget, {text.partition('@')[0]}", math.inf) for text in FASTEST}
    best, tail = Ratios("JCT without budget, the best", 0.98), Ratios("p99 JCT, afs", 1.0)
    restarts, gaps = Ratios("restarts, powerflow over ours", 1.0), []
    for cell, scene in list_stretches(options):
        for eta in etas:
            base = scene.simulate(f"powerflow:eta={eta:g}@buddy+power")
            match = scene.match_energy(options.policy, base.energy_j)
            ratio = base.jct_mean_s / match.report.jct_mean_s
            equal[eta].values.append(ratio)
            by_cell[cell].values.append(ratio)
            restarts.values.append((base.restarts + 1) / (match.report.restarts + 1))
            if not match.reached:
                equal[eta].notes.append(f"{scene.name}: energy not equal ({match.side})")
        fast = scene.simulate_fastest(options.policy)
        found = {text: scene.simulate(text) for text in FASTEST}
        for text, one in found.items():
            others[text].values.append(one.jct_mean_s / fast.jct_mean_s)
        best.values.append(min(one.jct_mean_s for one in found.values()) / fast.jct_mean_s)
        tail.values.append(found["afs@buddy+power"].jct_p99_s / fast.jct_p99_s)
        gaps.append(find_gap(scene, fast.jct_mean_s))
    for cell, row in by_cell.items():
        row.name = f"JCT at equal energy, {cell}"
    print(f"mean JCT over the lower bound, without budget: {np.mean(gaps):.3f} ({max(gaps):.3f} at most)")
    return print_ratios([*equal.values(), *by_cell.values(), best, tail, restarts, *others.values()])


def find_gap(scene: Scene, jct_mean_s: float) -> float:
    """Return a mean JCT over the lower bound of its scene."""
    from wattline.optimize.bound.lower_bound import find_lower_bound

    return jct_mean_s / find_lower_bound(scene.models, scene.jobs, scene.nodes).jct_mean_s


def compare_batches(options: Options) -> bool:
    """Compare with AFS and Pollux at no more than their energy, where batch sizes may change."""
    bars = {"afs@buddy+power": 1.4, "pollux@buddy+power": 1.15}
    rows = {text: Ratios(f"JCT with batches, {text.partition('@')[0]}", bar) for text, bar in bars.items()}
    energy = {text: Ratios(f"energy, {text.partition('@')[0]}", 1.0) for text in bars}
    for _, scene in list_stretches(options, batches=True):
        for text in bars:
            base = scene.simulate(text)
            match = scene.match_energy(options.policy, 0.99 * base.energy_j)
            rows[text].values.append(base.jct_mean_s / match.report.jct_mean_s)
            energy[text].values.append(base.energy_j / match.report.energy_j)
    return print_ratios([*rows.values(), *energy.values()])


def compare_pollux(options: Options) -> bool:
    """Run Pollux' workloads 1 to 8 on 16 nodes of 4 T4s; every allocation costs 30 s, as there.

    Pollux knows no speeds at first (`explore=2`). A policy without such a knob knows them; that is printed.
    """
    costs = Overheads(start_s=30.0, restart_s=30.0)
    ours, theirs = [], []
    for workload in references.WORKLOADS:
        jobs = allow_published_batches(references.read_elastic(workload))
        scene = Scene(
            f"workload {workload}", jobs, wl.parse_cluster(references.T4), durations=options.durations,
            overheads=costs, quantum_s=60.0,
        )  # fmt: skip
        theirs.append(scene.simulate("pollux:explore=2@pack"))
        ours.append(scene.match_energy(options.policy, 0.99 * theirs[-1].energy_j).report)
    jct_s, base_s = ([one.jct_mean_s for one in runs] for runs in (ours, theirs))
    published = 2751.0
    good = float(np.mean(jct_s)) < published
    print(f"mean JCT s: ours {np.mean(jct_s):,.0f}, Pollux here {np.mean(base_s):,.0f}, published 2,751")
    print(f"  bar: below 2,751: {'met' if good else 'MISSED'}; ours by workload: {np.round(jct_s).tolist()}")
    if "explore" not in options.policy:
        print("  ours knows the speeds beforehand: not Pollux' own knowledge model")
    less = Ratios(
        "energy, pollux over ours", 1.0, [b.energy_j / a.energy_j for a, b in zip(ours, theirs, strict=True)]
    )
    return print_ratios([less]) and good


def compare_gavel(options: Options) -> bool:
    """Run Gavel's trace on its cluster of three kinds; restarts are free there and speeds known."""
    table = read_throughput_table(str(DATA / "gavel/simulation_throughputs.json.gz"))
    jobs = table.time_jobs(read_trace(DATA / "gavel/traces/max_min_fairness.trace"))
    scene = Scene(
        "gavel", jobs, wl.parse_cluster(references.MIXED), table, options.durations, references.FREE
    )
    ours = scene.simulate_fastest(options.policy)
    theirs = {
        text: scene.simulate(text)
        for text in ("gavel@pack", "gavel:objective=ftf@pack", "gavel:speeds=equal@pack", "afs@pack")
    }
    best = min(one.jct_mean_s for text, one in theirs.items() if text.startswith("gavel"))
    for text, one in theirs.items():
        print(f"  {text:28} {one.jct_mean_s:10,.0f} s  ratio {one.jct_mean_s / ours.jct_mean_s:.3f}")
    good = ours.jct_mean_s < min(best, 14_623.0)
    print(
        f"  ours {ours.jct_mean_s:,.0f} s, bar below {min(best, 14_623):,.0f}: {'met' if good else 'MISSED'}"
    )
    return good


def compare_cost(options: Options) -> bool:
    """Compare the money of ANDREAS' scenarios with its exact and search methods; restarts cost 60 s."""
    rows = []
    for scenario, count, many, load, weight in andreas_traces.CASES:
        nodes = andreas_traces.build_cluster(scenario, count)
        row = {name: Ratios(f"{scenario} {load:g} x{weight:g}, {name}", 1.0) for name in ("exact", "search")}
        for seed in options.seeds:
            jobs, models = andreas_traces.draw_jobs(scenario, nodes, many, load, weight, seed)
            scene = Scene(
                f"{scenario} {load:g}", jobs, nodes, models, options.durations, Overheads(restart_s=60.0),
                price=andreas_scenarios.PRICES[scenario],
            )  # fmt: skip
            ours = scene.simulate(options.policy).cost
            for name in row:
                base = scene.simulate(f"andreas:method={name},restart_s=60@pack+power")
                row[name].values.append(base.cost / ours)
        rows += row.values()
        print_ratios(list(row.values()))
    return all(row.met for row in rows)


def compare_combined(options: Options) -> bool:
    """Compare with chains of stages on the combined trace: JCT at equal energy, cost, value of levers."""
    price = wl.Price.flat(0.17)
    rows = {text: Ratios(f"JCT, {text.partition('@')[0]}", 1.0) for text in CHAINS}
    cost = {text: Ratios(f"cost, {text.partition('@')[0]}", 1.0) for text in CHAINS}
    levers: dict[str, list[float]] = {lever: [] for lever in ("gpus", "batch", "fuse")}
    for seed in options.seeds:
        jobs = read_trace(f"combined:count={options.count},seed={seed}")
        scene = Scene(
            f"seed {seed}", jobs, wl.parse_cluster("4xv100:8,cpus=24,mem=500G"), durations=options.durations,
            price=price,
        )  # fmt: skip
        for text in CHAINS:
            base = scene.simulate(text)
            match = scene.match_energy(options.policy, base.energy_j)
            rows[text].values.append(base.jct_mean_s / match.report.jct_mean_s)
            cost[text].values.append(base.cost / scene.simulate(FOR_COST).cost)
        fast = scene.simulate_fastest(options.policy)
        print(
            f"seed {seed}: mean JCT {find_gap(scene, fast.jct_mean_s):.3f} times the lower bound", flush=True
        )
        for lever, lost in levers.items():
            without = replace(scene, jobs=take_lever(jobs, lever), _known={})
            lost.append(without.simulate_fastest(options.policy).jct_mean_s / fast.jct_mean_s - 1)
    for lever, lost in levers.items():
        low, high = bootstrap_interval(lost)
        word = "neutral" if low <= 0 <= high else "gains" if low > 0 else "HURTS"
        print(f"without {lever:6} mean JCT {np.mean(lost):+.1%} (95 % {low:+.1%} to {high:+.1%}): {word}")
    return print_ratios([*rows.values(), *cost.values()])


def check_starvation(options: Options) -> bool:
    """Check waits at load 0.95 over 30 simulated days, and a job of 40 h among short ones."""
    good = True
    for seed in options.seeds:
        jobs = read_trace(f"synth:count=2000,seed={seed},load=0.95,gpus_total=64,deadlines=0")
        jobs = jobs.take(np.flatnonzero(jobs.submit_s < 30 * 86400.0))
        scene = Scene(f"seed {seed}", jobs, wl.parse_cluster("8xv100:8"), durations=options.durations)
        ours, fifo = (find_waits_s(scene, text) for text in (options.policy, "fifo@buddy+power"))
        over_s = ours - (5 * fifo + 3600)
        days, starved = float(np.ptp(jobs.submit_s)) / 86400, int((over_s > 0).sum())
        print(
            f"seed {seed}: {len(jobs)} jobs of {days:.0f} days, {starved} wait too long; the worst is"
            f" {over_s.max():,.0f} s over five times its wait under FIFO and an hour"
        )
        long = read_trace(f"combined:count={options.count},seed={seed},long_h=40,tail=0")
        one = Scene("long", long, wl.parse_cluster("4xv100:8"), durations=options.durations)
        row = int(long.duration_s.argmax())
        for text in (options.policy, "fifo@buddy+power", "afs@buddy+power", "powerflow:eta=0.25@buddy+power"):
            tables = build_run_tables(one.run_log(text))
            print(f"  the 40 h job under {text}: {float(tables.outcomes.jct_s[row]) / 3600:.1f} h")
        good = good and not starved
    return good


def find_waits_s(scene: Scene, text: str) -> np.ndarray:
    """Return for each job its time without GPUs between submission and end."""
    outcomes = build_run_tables(scene.run_log(text)).outcomes
    return np.maximum(outcomes.jct_s - outcomes.service_s, 0.0)


_LONG_WAIT_S = 3600.0


class _Enough(Exception):
    """Ends a run after the decisions that are timed."""


def measure_speed(options: Options) -> bool:
    """Measure the CPU time of a decision with 2,000 and 20,000 jobs, and of the whole of Philly.

    With estimated durations waits on paper are computed in every decision once jobs have waited for long, so
    only such decisions count.
    """
    bars, seen = {500: math.inf, 2_000: 0.05, 20_000: 0.5}, {}
    for count, bar in bars.items():
        seen[count] = time_decisions(options, count)
        print(
            f"  {count:6} jobs: {1000 * seen[count]:8.1f} ms per decision, bar {1000 * bar:g} ms", flush=True
        )
    growth = math.log(seen[20_000] / seen[2_000]) / math.log(10)
    print(f"  growth: n^{growth:.2f} from 2,000 to 20,000 jobs (n log n is n^1.11)")
    jobs = read_trace(DATA / "philly/philly_jobs.csv.gz")
    scene = Scene(
        "philly", jobs, wl.parse_cluster("320xv100:8"), wl.TraceModels(), options.durations, quantum_s=60.0
    )
    before = time.process_time()
    scene.run_log(options.policy)
    rate = len(jobs) / (time.process_time() - before)
    print(f"  Philly, {len(jobs):,} jobs, a decision a minute: {rate:,.0f} jobs per CPU-second, bar 500")
    return all(seen[count] <= bar for count, bar in bars.items()) and rate >= 500


def time_decisions(options: Options, count: int, wanted: int = 5) -> float:
    """Return the median CPU seconds of a decision with nearly *count* jobs in the queue."""
    policy, place = parse_policy_and_placer(options.policy, "buddy+power", "easy")
    is_known = options.durations == "clairvoyant"
    jobs = read_trace(f"combined:count={count},seed=1,gpus_total={max(32, count // 10)}")
    jobs = replace(jobs, submit_s=np.linspace(0.0, 1e-3, count))
    nodes = wl.parse_cluster(f"{max(4, count // 80)}xv100:8")
    times: list[float] = []

    def decide(snapshot: wl.Snapshot, models: object) -> object:
        before = time.process_time()
        plan = policy(snapshot, models)  # type: ignore[arg-type]
        if len(snapshot.queue) > 0.9 * count and (is_known or snapshot.now_s > _LONG_WAIT_S):
            times.append(time.process_time() - before)
        if len(times) == wanted + 1:
            raise _Enough
        return plan

    sim = wl.Sim(jobs, nodes, truth=library(), quantum_s=60.0 if is_known else 600.0)
    with contextlib.suppress(_Enough):
        wl.run(sim, decide, library(), place=place, durations=None if is_known else estimate_by_history)
    return float(np.median(times[1:]))


def check_budget(options: Options) -> bool:
    """Check that a budget of watts holds with models wrong by a factor of two."""
    good = True
    for seed in options.seeds:
        jobs = read_trace(f"combined:count={options.count},seed={seed}")
        nodes = wl.parse_cluster("4xv100:8")
        for kw in (4.0, 5.5):
            scene = Scene(
                f"seed {seed}", jobs, nodes, durations=options.durations,
                believed=Misjudged(library(), error=math.log(2), seed=seed),
                budgets=(parse_budget(f"{kw:g}kW"),),
            )  # fmt: skip
            over_j = measure_excess_j(scene, options.policy, 1000 * kw)
            allowed_j = 300.0 * float((nodes.gpus * 300.0).sum())  # one interval of meters at all cap limits
            good = good and over_j <= allowed_j
            print(
                f"seed {seed}, {kw:g} kW: {over_j / 1e6:.2f} MJ above it in one stretch,"
                f" {allowed_j / 1e6:.2f} allowed"
            )
    return good


def compare_budgets(options: Options) -> bool:
    """Compare the mean JCT and the energy with PowerFlow's under budgets of watts, and of kWh a day."""
    rows = []
    for text in ("12kW", "20kW", "100kWh/day"):
        jct, energy = Ratios(f"JCT under {text}, powerflow", 1.0), Ratios(f"energy under {text}", math.inf)
        for seed in options.seeds:
            jobs = read_trace(f"synth:count={options.count},load=0.9,gpus_total=64,seed={seed}")
            scene = Scene(
                f"seed {seed}", assign_models(jobs, library(), "a100", seed), wl.parse_cluster("8xa100:8"),
                durations=options.durations, budgets=(parse_budget(text),),
            )  # fmt: skip
            base, ours = scene.simulate("powerflow@buddy+power"), scene.simulate(options.policy)
            jct.values.append(base.jct_mean_s / ours.jct_mean_s)
            energy.values.append(base.energy_j / ours.energy_j)
        rows += [jct, energy]
    return print_ratios(rows)


def measure_excess_j(scene: Scene, text: str, budget_w: float) -> float:
    """Return the most joules above *budget_w* in one stretch of time above it."""
    timeline = build_run_tables(scene.run_log(text)).timeline
    span_s = np.diff(timeline.at_s)
    excess = np.maximum(timeline.power_w[:-1] - budget_w, 0.0) * span_s
    worst = total = 0.0
    for one in excess.tolist():
        total = total + one if one > 0 else 0.0
        worst = max(worst, total)
    return worst

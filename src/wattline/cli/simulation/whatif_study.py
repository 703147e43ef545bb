"""A what-if study: which simulations it needs, and the answer from their results."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattline.cli.output import notify, progress_bar, warn_skipped_rows
from wattline.cli.simulation.assume_argument import has_limits
from wattline.cli.simulation.policy_argument import warn_fixed_sizes
from wattline.cli.simulation.pool import SimulationPool
from wattline.cli.simulation.scenario import SimulationCase
from wattline.cli.simulation.whatif_calibration import START_PARTS, Calibration, calibrate, list_draws
from wattline.cli.simulation.whatif_runs import (
    WorldRun,
    build_blocks,
    find_end_s,
    measure_run,
    simulate_world,
)
from wattline.cli.simulation.whatif_sensitivity import check_assumptions, count_checks
from wattline.cluster import parse_cluster
from wattline.core.jobs import Jobs
from wattline.core.table import Floats
from wattline.errors import ConfigError, did_you_mean
from wattline.policy import ELASTIC, ORDERS
from wattline.policy.knobs import has_knob
from wattline.trace import Trace
from wattline.trace.formats.sacct_energy import METHOD as RECORDED_METHOD
from wattline.trace.recorded_nodes import count_recorded_nodes
from wattline.units import format_joules, pluralize
from wattline.whatif.bootstrap import average_seeds, compare_energy, compare_jct
from wattline.whatif.digest import ScheduleDigest
from wattline.whatif.intervals import METHOD, digest_intervals, find_most_held
from wattline.whatif.metrics import ScheduleMetrics, measure_schedule
from wattline.whatif.never_started import describe_never_started
from wattline.whatif.owners import compare_owners
from wattline.whatif.recurrence import estimate_potential
from wattline.whatif.reproduction import has_enough_records, list_candidates
from wattline.whatif.result import PolicyRow, WhatIf, World, average_metrics
from wattline.whatif.window import PreparedTrace, Window, parse_window_time, prepare_trace


@dataclass(frozen=True)
class Contestant:
    """A policy of the study: its name in tables, and how it is simulated."""

    name: str
    case: SimulationCase
    by_partition: bool = False


def answer_question(args: argparse.Namespace) -> WhatIf:
    """Simulate what *args* ask for and return the answer."""
    cases = _build_cases(args)
    trace = cases[0].read_trace()
    window = _read_window(args, trace)
    warn_skipped_rows(trace)
    rules = cases[0].describe_rules(trace)
    for message in (*cases[0].describe_outages(trace), *rules):
        notify(message)
    if args.durations is None:
        durations = "limit" if has_limits(trace) else "history"
        cases = [replace(case, durations=durations) for case in cases]
    _check_policies(cases)
    _check_user(args.user, trace)
    prepared = prepare_trace(trace, window)
    worlds = [(cluster, load) for cluster in args.cluster for load in args.load]
    can_calibrate = has_enough_records(prepared.trace)
    tried = len(list_candidates(prepared.trace)) * (1 + len(START_PARTS)) if can_calibrate else 0
    tried *= len(list_draws(prepared))
    runs = (
        tried
        + len(worlds) * args.seeds * (len(cases) + int(can_calibrate))
        + count_checks(cases[0].list_assumptions(prepared.trace))
    )
    with (
        progress_bar(f"{runs} simulations of {trace.name}", runs) as update,
        SimulationPool(trace, min(args.jobs, runs), update) as pool,
    ):
        calibration = calibrate(pool, prepared, window, cases[0]) if can_calibrate else None
        contestants = _list_contestants(cases, calibration)
        results = [
            _simulate_world(pool, contestants, trace, window, *world, seeds=args.seeds) for world in worlds
        ]
        best = _find_best(results[0][0])
        assumptions = check_assumptions(
            pool, [contestants[0], contestants[best]], prepared, window, results[0][0]
        )
    first_world, digests = results[0]
    nodes = cases[0].read_nodes()
    baseline, others = digests[0], digests[1:]
    user = None
    if args.user is not None:
        changes = compare_owners(
            prepared.jobs.user, prepared.jobs, prepared.counted, baseline, others, args.user
        )
        user = changes[0] if changes else None
    recorded = _measure_recorded(prepared, window, cases[0])
    return WhatIf(
        trace=trace.name,
        jobs=len(prepared.jobs),
        counted=int(prepared.counted.sum()),
        span_s=float(np.ptp(prepared.jobs.submit_s)),
        seeds=args.seeds,
        block=build_blocks(prepared).name,
        recorded=recorded,
        reproduction=None if calibration is None else calibration.result,
        worlds=(first_world, *(world for world, _ in results[1:])),
        teams=compare_owners(prepared.jobs.team, prepared.jobs, prepared.counted, baseline, others),
        user=user,
        potential=estimate_potential(prepared.jobs, prepared.trace.recorded, prepared.counted, nodes),
        assumptions=assumptions,
        energy_methods=_list_methods(recorded, digests),
        notes=(
            *rules,
            *_list_notes(prepared, cases, recorded, calibration),
            *describe_never_started(prepared.jobs, prepared.counted, baseline, nodes),
        ),
    )


def _read_window(args: argparse.Namespace, trace: Trace) -> Window:
    """Return the part of *trace* to simulate; a begin before the first submission is that."""
    begin_s = 0.0 if args.window_from is None else max(0.0, parse_window_time(args.window_from, trace))
    end_s = math.inf if args.window_to is None else parse_window_time(args.window_to, trace)
    return Window(begin_s, end_s, args.warmup, args.cooldown)


def split_policies(words: Sequence[str]) -> list[str]:
    """Return the policies of `--policies`: `fifo,las`, `fifo las:quantum=10m`, or `all`.

    A word with knobs is one policy, because knobs are joined by commas, too.
    """
    texts = [text for word in words for text in ([word] if ":" in word else word.split(","))]
    listed = [text.strip() for text in texts if text.strip()]
    every = (*ORDERS, *ELASTIC)
    return list(dict.fromkeys(name for text in listed for name in (every if text == "all" else (text,))))


def _build_cases(args: argparse.Namespace) -> list[SimulationCase]:
    texts = split_policies(args.policies)
    if not texts:
        raise ConfigError("no policy given", hint="--policies fifo,las,powerflow")
    known = {
        "trace": args.sacct or args.trace,
        "format": "sacct" if args.sacct else args.format,
        "cluster": args.cluster[0],
    }
    arguments = argparse.Namespace(**(vars(args) | known))
    return [replace(SimulationCase.from_arguments(arguments, text), keep_nodes=True) for text in texts]


def _check_policies(cases: Sequence[SimulationCase]) -> None:
    """Parse all policies before the first run, and announce what they will not do."""
    for case in cases:
        case.check_turns()
        warn_fixed_sizes(case.policy, case.models, case.assume)
    can_hold = [has_knob(case.build_policy_and_placer()[0], "budgets") for case in cases]
    if cases[0].budgets and not all(can_hold):
        without = ", ".join(case.policy for case, can in zip(cases, can_hold, strict=True) if not can)
        notify(f"simulated without the budget, because they cannot hold one: {without}")


def _check_user(user: str | None, trace: Trace) -> None:
    users = set(trace.jobs.user.words()) - {""}
    if user is not None and user not in users:
        shown = f"expected one of {', '.join(sorted(users)[:20])}" if users else "which names no users"
        raise ConfigError(f"--user {user}: no such user in {trace.name}, {shown}", did_you_mean(user, users))


def _list_contestants(cases: Sequence[SimulationCase], calibration: Calibration | None) -> list[Contestant]:
    """Return the policies to simulate; the first is the baseline."""
    if calibration is None:
        return [Contestant(case.policy, case) for case in cases]
    baseline = Contestant("reproduction", calibration.case, calibration.candidate.by_partition)
    delay_s = calibration.case.start_s
    return [baseline, *(Contestant(case.policy, replace(case, start_s=delay_s)) for case in cases)]


def _simulate_world(
    pool: SimulationPool,
    contestants: Sequence[Contestant],
    trace: Trace,
    window: Window,
    cluster: str,
    load: float,
    *,
    seeds: int,
) -> tuple[World, list[ScheduleDigest]]:
    """Return the policies in one world, and their schedules with the first seed."""
    prepared = prepare_trace(trace, window, load)
    blocks, gpus = build_blocks(prepared), int(parse_cluster(cluster).gpus.sum())
    runs = [
        WorldRun(
            replace(one.case, cluster=cluster, seed=one.case.seed + seed), window, load, one.by_partition
        )
        for one in contestants
        for seed in range(seeds)
    ]
    digests = list(pool.map(simulate_world, [(run,) for run in runs]))
    by_policy = [digests[n * seeds : (n + 1) * seeds] for n in range(len(contestants))]
    rows = []
    for one, ours in zip(contestants, by_policy, strict=True):
        pairs = list(zip(ours, by_policy[0], strict=True))
        rows.append(
            PolicyRow(
                one.name,
                average_metrics([measure_run(digest, prepared, gpus) for digest in ours]),
                average_seeds(
                    [compare_jct(*pair, prepared.jobs, prepared.counted, blocks) for pair in pairs]
                ),
                average_seeds([compare_energy(*pair) for pair in pairs]),
                "" if ours[0].estimates is None else str(ours[0].estimates),
            )
        )
    return World(cluster, gpus, load, tuple(rows)), [schedules[0] for schedules in by_policy]


def _find_best(world: World) -> int:
    """Return the row of the policy with the least mean JCT on the front, other than the baseline."""
    rows = [n for n, on_front in enumerate(world.front) if on_front and n] or list(range(1, len(world.rows)))
    return min(rows, key=lambda n: world.rows[n].metrics.jct_mean_s, default=0)


def _measure_recorded(
    prepared: PreparedTrace, window: Window, case: SimulationCase
) -> ScheduleMetrics | None:
    recorded = prepared.trace.recorded
    if recorded is None or not recorded.has_times:
        return None
    nodes, blocks = case.read_nodes(), build_blocks(prepared)
    end_s = find_end_s(prepared, window)
    digest = digest_intervals(prepared.jobs, recorded.start_s, recorded.end_s, nodes, blocks, end_s)
    return measure_schedule(digest, prepared.jobs, prepared.counted, int(nodes.gpus.sum()), blocks)


def _list_methods(recorded: ScheduleMetrics | None, digests: Sequence[ScheduleDigest]) -> tuple[str, ...]:
    simulated = dict.fromkeys(digest.energy_method for digest in digests)
    shown = [f"simulated: {method}" for method in simulated]
    return (*((f"as recorded: {METHOD}",) if recorded is not None else ()), *shown)


def _describe_energy(energy_j: Floats, jobs: Jobs) -> str:
    """Return the energy that the records have, beside which no simulated figure may be put unseen."""
    metered = np.isfinite(energy_j)
    mean_w = energy_j[metered].sum() / max(float((jobs.duration_s * jobs.gpus)[metered].sum()), 1.0)
    return (
        f"recorded energy: {format_joules(float(energy_j[metered].sum()))} of"
        f" {pluralize(int(metered.sum()), 'job')}, {mean_w:.0f} W for each GPU held ({RECORDED_METHOD});"
        f" {pluralize(int((~metered).sum()), 'job')} unmetered; the table's energy is not calibrated by it"
    )


def _list_notes(
    prepared: PreparedTrace,
    cases: Sequence[SimulationCase],
    recorded: ScheduleMetrics | None,
    calibration: Calibration | None,
) -> tuple[str, ...]:
    notes = []
    if recorded is None:
        notes.append(
            "the trace records no start and end of jobs: there is no row of the recorded schedule and no"
            f" reproduction of it, and {cases[0].policy} is the baseline"
        )
    elif calibration is None:
        notes.append("too few recorded jobs to reproduce the schedule: at least 40 are needed")
    records, gpus = prepared.trace.recorded, int(cases[0].read_nodes().gpus.sum())
    if records is not None and records.has_times:
        most = find_most_held(prepared.jobs, records.start_s, records.end_s)
        if most > gpus:
            notes.append(
                f"beware: the records hold up to {most:,} GPUs at once, {cases[0].cluster} has {gpus:,}; is"
                " --cluster the cluster of the records?"
            )
    freely = [case.policy for case in cases if not case.uses_pack]
    if freely and records is not None and count_recorded_nodes(records).any():
        notes.append(
            f"{', '.join(freely)}: jobs may hold more nodes than recorded, because only the placer pack, and"
            " policies that leave nodes to it, keep to that number"
        )
    if records is not None and np.isfinite(records.energy_j).any():
        notes.append(_describe_energy(records.energy_j, prepared.jobs))
    if prepared.running_first or prepared.waiting_first:
        notes.append(
            f"{pluralize(prepared.running_first, 'job')} ran and {prepared.waiting_first} waited when the"
            " window began; they are simulated, and not counted"
        )
    return tuple(notes)

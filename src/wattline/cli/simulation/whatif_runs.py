"""Simulations of a what-if study, each in one world, as calls that another process can make."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wattline.cli.simulation.scenario import SimulationCase, set_checkpoints
from wattline.core.jobs import Jobs
from wattline.core.table import Floats
from wattline.trace import Trace
from wattline.whatif.digest import Blocks, ScheduleDigest, digest_log
from wattline.whatif.metrics import ScheduleMetrics, measure_schedule
from wattline.whatif.reproduction import learn_priorities, split_halves
from wattline.whatif.rounding import add_fractions
from wattline.whatif.window import PreparedTrace, Window, prepare_trace


@dataclass(frozen=True)
class WorldRun:
    """One simulation of a part of the trace; text and numbers only."""

    case: SimulationCase
    window: Window
    load: float = 1.0
    by_partition: bool = False  # jobs have the priorities that were learnt from the records
    draw: int = 0  # of the fractions of a second that records leave out; 0: none


def simulate_world(trace: Trace, run: WorldRun) -> ScheduleDigest:
    """Simulate *run* and return its schedule, reduced; drawn fractions of submissions are taken off again."""
    prepared = prepare_trace(trace, run.window, run.load)
    jobs = set_checkpoints(prepared.jobs, run.case.checkpoint_s, run.case.min_runtime_s)
    if run.by_partition:
        jobs = replace(jobs, priority=_learn_priorities(trace, run.window, jobs))
    fraction_s = np.zeros(len(jobs))
    if run.draw:
        jobs, fraction_s = add_fractions(jobs, run.draw)
    log, _ = run.case.run(replace(prepared.trace, jobs=jobs))
    digest = digest_log(log, build_blocks(prepared), find_end_s(prepared, run.window))
    if not run.draw:
        return digest
    return replace(digest, start_s=digest.start_s - fraction_s, end_s=digest.end_s - fraction_s)


def _learn_priorities(trace: Trace, window: Window, jobs: Jobs) -> Floats:
    prepared = prepare_trace(trace, window)  # at the recorded load: other loads have no recorded times
    recorded = prepared.trace.recorded
    if recorded is None:
        return jobs.priority
    first, _ = split_halves(prepared.jobs, prepared.counted)
    return learn_priorities(prepared.jobs, recorded, first)


def build_blocks(prepared: PreparedTrace) -> Blocks:
    """Return the blocks of the time in which the counted jobs were submitted."""
    return Blocks.between(*prepared.counted_span_s)


def find_end_s(prepared: PreparedTrace, window: Window) -> float:
    """Return the time until which use counts: the last counted submission if there is a cool-down."""
    return prepared.counted_span_s[1] if window.cooldown_s else math.inf


def measure_run(digest: ScheduleDigest, prepared: PreparedTrace, gpus: int) -> ScheduleMetrics:
    """Return the figures of a simulated schedule."""
    recorded = prepared.trace.recorded
    limit_s = None if recorded is None else recorded.time_limit_s
    return measure_schedule(digest, prepared.jobs, prepared.counted, gpus, build_blocks(prepared), limit_s)

"""The scheduler that reproduces the first half of a recorded schedule best, and its error on the second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from wattline.cli.simulation.pool import SimulationPool
from wattline.cli.simulation.scenario import SimulationCase
from wattline.cli.simulation.whatif_runs import WorldRun, measure_run, simulate_world
from wattline.core.table import Bools
from wattline.errors import ConfigError
from wattline.whatif.digest import ScheduleDigest
from wattline.whatif.reproduction import (
    Candidate,
    ReproductionError,
    average_errors,
    list_candidates,
    measure_error,
    measure_start_delay_s,
    score,
    split_halves,
)
from wattline.whatif.result import Reproduction, average_metrics
from wattline.whatif.rounding import count_draws
from wattline.whatif.window import PreparedTrace, Window

_GOOD_FIT = 0.02  # relative error of the mean wait in the first half
_NEAR = 2.0  # a candidate with so many times the best score may be the best with longer starts
START_PARTS = (0.01, 0.02, 0.04, 0.06, 0.08, 0.12, 0.16)
"""Times that starts are tried to take, as parts of the median duration."""


class _Trial(NamedTuple):
    candidate: Candidate
    case: SimulationCase
    digests: list[ScheduleDigest]  # one for each draw of the fractions of a second
    error: ReproductionError  # mean over the draws
    score: float  # on the first half; less is better


@dataclass(frozen=True)
class Calibration:
    """The scheduler that was chosen, and how well it reproduces the records."""

    candidate: Candidate
    case: SimulationCase
    result: Reproduction


def list_draws(prepared: PreparedTrace) -> range:
    """Return the numbers of the draws of fractions of a second that calibration needs; 0: as recorded."""
    recorded = prepared.trace.recorded
    count = 0 if recorded is None else count_draws(prepared.jobs, recorded)
    return range(1, count + 1) if count else range(1)


def calibrate(
    pool: SimulationPool, prepared: PreparedTrace, window: Window, case: SimulationCase
) -> Calibration:
    """Simulate every candidate and return the one that fits the first half of the jobs best.

    All jobs are simulated once for each candidate; only those of the first half decide. With the good ones
    under which jobs wait less than recorded, longer starts are tried: between the end of one job and the
    start of the next a real scheduler loses time that records with whole seconds do not show. Where whole
    seconds matter, every candidate is simulated with several draws of the fractions, and their mean counts.
    """
    jobs, recorded = prepared.jobs, prepared.trace.recorded
    if recorded is None:
        raise ConfigError(f"{prepared.trace.name} records no schedule to reproduce")
    nodes = case.read_nodes()
    first, second = split_halves(jobs, prepared.counted)
    mean_jct_s = float(np.nanmean(np.append((recorded.end_s - jobs.submit_s)[first], np.nan)))
    draws = list_draws(prepared)
    plain = replace(case, place="pack", budgets=(), quotas=(), energy_knob=None)

    def try_out(tried: Sequence[tuple[Candidate, float]]) -> list[_Trial]:
        """Simulate candidates, each with the time that its starts take."""
        runs = [
            WorldRun(
                replace(plain, policy=one.policy, backfill=one.backfill, start_s=delay_s),
                window,
                by_partition=one.by_partition,
                draw=draw,
            )
            for one, delay_s in tried
            for draw in draws
        ]
        done = list(pool.map(simulate_world, [(run,) for run in runs]))
        trials = []
        for at, (one, delay_s) in zip(range(0, len(runs), len(draws)), tried, strict=True):
            digests = done[at : at + len(draws)]
            error = average_errors(measure(digests, delay_s, first))
            trials.append(_Trial(one, runs[at].case, digests, error, score(error, mean_jct_s)))
        return trials

    def measure(digests: Sequence[ScheduleDigest], delay_s: float, rows: Bools) -> list[ReproductionError]:
        # The simulated start is that of the lease; the recorded one follows when the job has started up.
        return [
            measure_error(jobs, recorded, digest.start_s + delay_s, digest.end_s, rows, nodes)
            for digest in digests
        ]

    measured_s = measure_start_delay_s(jobs, recorded, first, int(nodes.gpus.sum()))
    candidates = list_candidates(prepared.trace)
    trials = try_out([(candidate, measured_s) for candidate in candidates])
    best = min(trials, key=lambda trial: trial.score)
    usual_s = float(np.median(jobs.duration_s[first]))
    slower = [
        (trial.candidate, measured_s + usual_s * part)
        for trial in trials
        if trial.score <= _NEAR * best.score and trial.error.wait_error < -_GOOD_FIT  # nan: no job waited
        for part in START_PARTS
    ]
    best = min([best, *try_out(slower)], key=lambda trial: trial.score)
    delay_s = best.case.start_s
    held_out = measure(best.digests, delay_s, second)
    result = Reproduction(
        scheduler=str(best.candidate),
        candidates=tuple((str(trial.candidate), trial.score) for trial in trials),
        start_delay_s=delay_s,
        metrics=average_metrics(
            [measure_run(digest, prepared, int(nodes.gpus.sum())) for digest in best.digests]
        ),
        first=best.error,
        second=average_errors(held_out),
        draws=tuple(error.wait_s for error in held_out) if len(draws) > 1 else (),
    )
    return Calibration(best.candidate, best.case, result)

"""The scheduler that reproduces the first half of a recorded schedule best, and its error on the second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from wattline.cli.simulation.pool import SimulationPool
from wattline.cli.simulation.scenario import SimulationCase
from wattline.cli.simulation.whatif_runs import WorldRun, measure_run, simulate_world
from wattline.errors import ConfigError
from wattline.whatif.digest import ScheduleDigest
from wattline.whatif.reproduction import (
    Candidate,
    ReproductionError,
    list_candidates,
    measure_error,
    measure_start_delay_s,
    score,
    split_halves,
)
from wattline.whatif.result import Reproduction
from wattline.whatif.window import PreparedTrace, Window

_GOOD_FIT = 0.02  # relative error of the mean wait in the first half
START_PARTS = (0.01, 0.02, 0.04, 0.06, 0.08, 0.12, 0.16)
"""Times that starts are tried to take, as parts of the median duration."""


class _Trial(NamedTuple):
    candidate: Candidate
    case: SimulationCase
    digest: ScheduleDigest
    error: ReproductionError
    score: float  # on the first half; less is better


@dataclass(frozen=True)
class Calibration:
    """The scheduler that was chosen, and how well it reproduces the records."""

    candidate: Candidate
    case: SimulationCase
    result: Reproduction


def calibrate(
    pool: SimulationPool, prepared: PreparedTrace, window: Window, case: SimulationCase
) -> Calibration:
    """Simulate every candidate and return the one that fits the first half of the jobs best.

    All jobs are simulated once for each candidate; only those of the first half decide. If even the best
    one waits otherwise than recorded, longer starts are tried with it: between the end of one job and the
    start of the next a real scheduler loses time that records with whole seconds do not show.
    """
    jobs, recorded = prepared.jobs, prepared.trace.recorded
    if recorded is None:
        raise ConfigError(f"{prepared.trace.name} records no schedule to reproduce")
    nodes = case.read_nodes()
    first, second = split_halves(jobs, prepared.counted)
    mean_jct_s = float(np.nanmean(np.append((recorded.end_s - jobs.submit_s)[first], np.nan)))
    plain = replace(case, place="pack", budgets=(), quotas=(), eta=None)

    def try_out(tried: Sequence[tuple[Candidate, float]]) -> list[_Trial]:
        """Simulate candidates, each with the time that its starts take."""
        runs = [
            WorldRun(
                replace(plain, policy=one.policy, backfill=one.backfill, start_s=delay_s),
                window,
                by_partition=one.by_partition,
            )
            for one, delay_s in tried
        ]
        trials = []
        for (one, delay_s), run, digest in zip(
            tried, runs, pool.map(simulate_world, [(run,) for run in runs]), strict=True
        ):
            # The simulated start is that of the lease; the recorded one follows when the job has started up.
            start_s = digest.start_s + delay_s
            error = measure_error(jobs, recorded, start_s, digest.end_s, first, nodes)
            trials.append(_Trial(one, run.case, digest, error, score(error, mean_jct_s)))
        return trials

    measured_s = measure_start_delay_s(jobs, recorded, first, int(nodes.gpus.sum()))
    candidates = list_candidates(prepared.trace)
    trials = try_out([(candidate, measured_s) for candidate in candidates])
    best = min(trials, key=lambda trial: trial.score)
    if abs(best.error.wait_error) > _GOOD_FIT:  # nan, if no job waited, is a good fit
        usual_s = float(np.median(jobs.duration_s[first]))
        slower = [(best.candidate, measured_s + usual_s * part) for part in START_PARTS]
        best = min([best, *try_out(slower)], key=lambda trial: trial.score)
    digest, delay_s = best.digest, best.case.start_s
    result = Reproduction(
        scheduler=str(best.candidate),
        candidates=tuple((str(trial.candidate), trial.score) for trial in trials),
        start_delay_s=delay_s,
        metrics=measure_run(digest, prepared, int(nodes.gpus.sum())),
        first=best.error,
        second=measure_error(jobs, recorded, digest.start_s + delay_s, digest.end_s, second, nodes),
    )
    return Calibration(best.candidate, best.case, result)

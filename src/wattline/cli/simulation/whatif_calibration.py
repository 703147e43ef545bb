"""The scheduler that reproduces the first half of a recorded schedule best, and its error on the second."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wattline.cli.simulation.pool import SimulationPool
from wattline.cli.simulation.scenario import SimulationCase
from wattline.cli.simulation.whatif_runs import WorldRun, measure_run, simulate_world
from wattline.errors import ConfigError
from wattline.whatif.reproduction import (
    Candidate,
    list_candidates,
    measure_error,
    measure_start_delay_s,
    score,
    split_halves,
)
from wattline.whatif.result import Reproduction
from wattline.whatif.window import PreparedTrace, Window


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

    All jobs are simulated once for each candidate; only those of the first half decide.
    """
    jobs, recorded = prepared.jobs, prepared.trace.recorded
    if recorded is None:
        raise ConfigError(f"{prepared.trace.name} records no schedule to reproduce")
    nodes = case.read_nodes()
    first, second = split_halves(jobs, prepared.counted)
    delay_s = measure_start_delay_s(jobs, recorded, first, int(nodes.gpus.sum()))
    plain = replace(case, place="pack", budgets=(), quotas=(), eta=None, start_s=delay_s)
    candidates = list_candidates(prepared.trace)
    runs = [
        WorldRun(
            replace(plain, policy=candidate.policy, backfill=candidate.backfill),
            window,
            by_partition=candidate.by_partition,
        )
        for candidate in candidates
    ]
    digests = list(pool.map(simulate_world, [(run,) for run in runs]))
    # The simulated start is that of the lease; the recorded one follows when the job has started up.
    errors = [
        measure_error(jobs, recorded, digest.start_s + delay_s, digest.end_s, first, nodes)
        for digest in digests
    ]
    mean_jct_s = float(np.nanmean(np.append((recorded.end_s - jobs.submit_s)[first], np.nan)))
    scores = [score(error, mean_jct_s) for error in errors]
    best = int(np.argmin(scores))
    digest = digests[best]
    result = Reproduction(
        scheduler=str(candidates[best]),
        candidates=tuple((str(one), value) for one, value in zip(candidates, scores, strict=True)),
        start_delay_s=delay_s,
        metrics=measure_run(digest, prepared, int(nodes.gpus.sum())),
        first=errors[best],
        second=measure_error(jobs, recorded, digest.start_s + delay_s, digest.end_s, second, nodes),
    )
    return Calibration(candidates[best], runs[best].case, result)

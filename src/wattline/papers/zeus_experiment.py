"""Zeus (You et al., NSDI 2023): energy of recurring trainings, by batch size and power limit."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wattline.batch_size.bandit import Optimizer, Zeus
from wattline.batch_size.bayesian import BayesianTuner
from wattline.batch_size.recorded_runs import read_tables
from wattline.batch_size.replay import Score, TuningCase, build_cases, default_regret, replay, score
from wattline.errors import ConfigError
from wattline.papers.results import PUBLIC, SYNTHETIC, CaseResult, Experiments, PaperResult, group_samples
from wattline.public_data.cache import find_folder
from wattline.testing.recurring import build_random_case
from wattline.units import pluralize

_STAND_INS = 8  # random jobs where there is no data


class _Task(NamedTuple):
    case: TuningCase
    seed: int
    recurrences: int | None


def score_seeds(
    case: TuningCase, optimizer: Optimizer[Any], seeds: int, count: int | None = None
) -> list[Score]:
    """Return the scores of *count* recurrences (None: as many as the paper has) with seeds from 0."""
    return [score(case, replay(case, optimizer, seed, count)) for seed in range(seeds)]


def reproduce_zeus(experiments: Experiments) -> PaperResult:
    """Replay recorded trainings under Zeus' optimiser as published and under ours."""
    folder = find_folder(experiments.folders, "zeus", "summary_train.csv")
    if folder is None:
        cases, data = [build_random_case(10_000 + k) for k in range(_STAND_INS)], SYNTHETIC
        setting = "random recurring jobs in place of the recorded trainings"
    else:
        tables = read_tables(folder)
        cases, data = [case for gpu in tables.gpus for case in build_cases(tables, gpu)[0]], PUBLIC
        setting = f"the recorded trainings of {', '.join(tables.gpus)}"
    count = 20 if experiments.quick else None
    tasks = [
        _Task(case, seed, count)
        for case in (cases[:2] if experiments.quick else cases)
        for seed in range(experiments.seeds)
    ]
    results = experiments.run(_replay_both, tasks)
    kept = [(name, figures) for name, figures in results if figures is not None]
    samples = group_samples(kept)
    regrets = np.array([figures[2:] for _, figures in kept]).reshape(-1, 3)
    theirs, ours, default = regrets.mean(axis=0) if len(regrets) else np.full(3, np.nan)
    notes = [
        f"mean regret in runs of the oracle: Zeus {theirs:.1f}, ours {ours:.1f}, the default {default:.1f}",
        f"more regret than the default: Zeus in {(regrets[:, 0] > regrets[:, 2]).sum()},"
        f" ours in {(regrets[:, 1] > regrets[:, 2]).sum()} of {pluralize(len(regrets), 'replay')}",
    ]
    if len(kept) < len(results):
        notes.append(
            f"left out: {pluralize(len(results) - len(kept), 'replay')}, on which Zeus ends with an error"
        )
    return PaperResult(
        "zeus",
        "Zeus (NSDI'23): energy of a recurring training",
        "15.3 to 75.8 % less energy",
        " %",
        15.3,
        75.8,
        "Zeus' pruning and Thompson sampling as published, run here",
        f"{setting}; energy of the last five recurrences against the default batch size at full power;"
        f" weight of energy 0.5; {count or 'twice as many'} recurrences"
        f"{'' if count else ' as settings'}, {pluralize(experiments.seeds, 'seed')}",
        tuple(CaseResult(name, data, own, other) for name, (other, own, *_) in samples.items()),
        tuple(notes),
    )


def _replay_both(task: _Task) -> tuple[str, tuple[float, ...] | None]:
    """Return energy saved in %, regrets, and the default's regret; None: Zeus ends with an error."""
    case = task.case
    name = f"{case.gpu} {case.name}"
    try:
        theirs = score(case, replay(case, Zeus(), task.seed, task.recurrences))
    except ConfigError:  # all batch sizes that survived its pruning fail later
        return name, None
    ours = score(case, replay(case, BayesianTuner(), task.seed, task.recurrences))
    bound = default_regret(case, task.recurrences)
    return name, (theirs.last_energy, ours.last_energy, theirs.regret, ours.regret, bound)

"""Batch-size tuner against Zeus on every target level of the published tables.

python benchmarks/tuner_matrix.py [--seeds 50] [--eta 0 0.3 0.5 1] [--recurrences 5 10 20 140] [--processes 2]
                                  [--gpu v100] [--workload imagenet] [--cells]

A cell is a workload, a kind of GPU and a target level that every recorded run at the default reaches; Zeus
ends with an error where the default fails. Needs the published tables in `$WATTLINE_DATA/zeus`.

- regret: what the first N recurrences really cost, failed tries included, beyond N expected runs of the
  oracle (the cheapest batch size that always reaches the target, at its best limit), in runs of the oracle.
- ratio: geometric mean over cells of the mean regret of Wattline over that of Zeus. The k-th run at a batch
  size is the same for both with the same seed. Both stop a run at twice the best cost at the latest.
- above the default: mean cost of N recurrences less N expected runs at the default and full power, in runs
  of the default.
- Seeds for which Zeus ends with an error are left out for both, and counted.
- last-5 energy: saved by the last five of N recurrences, in % of a run at the default, Wattline less Zeus,
  with the 95 % interval of the paired seeds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wattline.batch_size.bandit import Zeus
from wattline.batch_size.bayesian import BayesianTuner
from wattline.batch_size.recorded_runs import read_tables
from wattline.batch_size.replay import TuningCase, build_cases, replay
from wattline.errors import ConfigError

DATA = Path(os.environ.get("WATTLINE_DATA", "../shared/data")) / "zeus"


class CellResult(NamedTuple):
    """Cost and energy of each recurrence (columns) and seed (rows) for both optimisers."""

    case: TuningCase
    zeus_j: np.ndarray
    ours_j: np.ndarray
    energy_apart_j: np.ndarray  # Zeus less ours
    failed: int  # seeds for which Zeus ends without a result; left out


class CellFigures(NamedTuple):
    """Figures of one cell for one number of recurrences."""

    workload: str
    name: str
    zeus: float
    ours: float
    above: float
    energy: float
    error: float

    @property
    def ratio(self) -> float:
        """Regret of Wattline over that of Zeus."""
        return self.ours / self.zeus

    @property
    def saves_less(self) -> bool:
        """True if less energy is saved than by Zeus, beyond the interval."""
        return self.energy < -1.96 * self.error - 1e-9


def list_cases(eta: float, gpus: list[str], workloads: list[str]) -> list[TuningCase]:
    tables = read_tables(DATA)
    found = [c for gpu in tables.gpus for c in build_cases(tables, gpu, eta, all_targets=True)[0]]
    return [
        case
        for case in found
        if np.isfinite(case.epochs[case.default_index]).all()
        and (not gpus or case.gpu in gpus)
        and (not workloads or case.name in workloads)
    ]


def replay_cell(case: TuningCase, seeds: int, count: int) -> CellResult:
    zeus, ours = [], []
    for seed in range(seeds):
        try:
            theirs = replay(case, Zeus(), seed, count)
        except ConfigError:  # Zeus finds no batch size that reaches the target; ours must
            replay(case, BayesianTuner(), seed, count)
            continue
        zeus.append(theirs)
        ours.append(replay(case, BayesianTuner(), seed, count))
    return CellResult(
        case,
        np.array([each.cost_j for each in zeus]),
        np.array([each.cost_j for each in ours]),
        np.array([a.energy_j - b.energy_j for a, b in zip(zeus, ours, strict=True)]),
        seeds - len(zeus),
    )


def compute_figures(cell: CellResult, count: int) -> CellFigures:
    case, best_j = cell.case, cell.case.oracle_j
    default_energy_j, _, default_j = case.default_run
    zeus, ours = ((of[:, :count] - best_j).sum(axis=1).mean() / best_j for of in (cell.zeus_j, cell.ours_j))
    above = cell.ours_j[:, :count].sum(axis=1).mean() / default_j - count
    last = 100 * cell.energy_apart_j[:, max(count - 5, 0) : count].mean(axis=1) / default_energy_j
    error = float(last.std(ddof=1) / np.sqrt(len(last)))
    name = f"{case.gpu} {case.name} {case.target:g}"
    return CellFigures(case.name, name, float(zeus), float(ours), float(above), float(last.mean()), error)


def mean_ratio(figures: list[CellFigures]) -> float:
    return float(np.exp(np.mean([np.log(each.ratio) for each in figures])))


def print_eta(eta: float, cells: list[CellResult], counts: list[int], each_cell: bool) -> None:
    for count in counts:
        figures = [compute_figures(cell, count) for cell in cells]
        positive = [each for each in figures if each.zeus > 0 and each.ours > 0]
        by_workload = {
            name: mean_ratio([each for each in positive if each.workload == name])
            for name in dict.fromkeys(each.workload for each in positive)
        }
        above = sorted((each for each in figures if each.above > 1), key=lambda each: -each.above)
        less = [each for each in figures if each.saves_less]
        energy, error = np.mean([(each.energy, each.error**2) for each in figures], axis=0)
        half = 1.96 * np.sqrt(error / len(figures))
        print(
            f"eta {eta:g} N {count:3}: ratio {mean_ratio(positive):.3f}"
            f" ({len(positive)} of {len(figures)} cells)"
            f" [{', '.join(f'{name} {ratio:.2f}' for name, ratio in by_workload.items())}]"
            f" | above the default by more than a run: {len(above)},"
            f" most {max(each.above for each in figures):.2f}"
            f" | last-5 energy {energy:+.2f} ± {half:.2f} %, less than Zeus' in {len(less)} cells"
            f" | Zeus failed for {sum(cell.failed for cell in cells)} seeds"
        )
        for each in above:
            print(f"    {each.name}: {each.above:.2f} runs above the default")
        if each_cell:
            for each in figures:
                print(
                    f"    {each.name}: regret zeus {each.zeus:.2f} ours {each.ours:.2f}"
                    f" above {each.above:.2f} last-5 {each.energy:+.2f} ± {1.96 * each.error:.2f}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--eta", type=float, nargs="+", default=[0.0, 0.3, 0.5, 1.0])
    parser.add_argument("--recurrences", type=int, nargs="+", default=[5, 10, 20, 140])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--gpu", nargs="+", default=[])
    parser.add_argument("--workload", nargs="+", default=[])
    parser.add_argument("--cells", action="store_true")
    args = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"{DATA} is missing: set WATTLINE_DATA")
    before_s = time.perf_counter()
    with ProcessPoolExecutor(args.processes) as pool:
        for eta in args.eta:
            cases = list_cases(eta, args.gpu, args.workload)
            longest = max(args.recurrences)
            jobs = [pool.submit(replay_cell, case, args.seeds, longest) for case in cases]
            print_eta(eta, [job.result() for job in jobs], args.recurrences, args.cells)
            sys.stdout.flush()
    print(f"{args.seeds} seeds, {time.perf_counter() - before_s:.0f} s with {args.processes} processes")


if __name__ == "__main__":
    main()

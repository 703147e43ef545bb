"""Batch sizes of recurring jobs: Zeus' rules and ours, on the published trainings and on random ones.

python benchmarks/zeus.py [--seeds 20] [--made-up 150]

Needs the published tables in `$WATTLINE_DATA/zeus`. Regrets are in runs of the oracle. The k-th run at a
batch size is the same for both optimisers with the same seed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

from wattline.batch_size.bandit import Zeus
from wattline.batch_size.bayesian import BayesianTuner
from wattline.batch_size.recorded_runs import read_tables
from wattline.batch_size.replay import Score, TuningCase, build_cases, default_regret, replay, score
from wattline.errors import ConfigError
from wattline.papers.zeus_experiment import score_seeds
from wattline.testing.recurring import build_random_case

DATA = Path(os.environ.get("WATTLINE_DATA", "../shared/data")) / "zeus"
ZEUS = {  # results of Zeus' own simulator: last-5 energy saved, regret, its least and most
    "v100": {
        "cifar100": (74.8, 10.0, 7.5, 11.8), "imagenet": (19.1, 4.4, 3.3, 5.5),
        "squad": (18.1, 1.7, -0.6, 4.0),
        "librispeech": (38.2, 8.1, 5.2, 13.3), "movielens-1m": (65.2, 14.0, 9.7, 18.6),
        "sentiment140": (20.9, 1.7, 1.7, 1.7),
    },
    "a40": {
        "cifar100": (66.9, 10.6, 8.7, 12.6), "imagenet": (14.0, 5.1, 4.1, 7.4),
        "squad": (15.7, 3.2, 1.5, 5.9),
        "librispeech": (66.3, 8.2, 7.7, 8.9), "movielens-1m": (61.2, 12.0, 9.4, 14.5),
        "sentiment140": (20.6, 4.4, 4.4, 4.5),
    },
}  # fmt: skip


def take_column(scores: list[Score], name: str) -> np.ndarray:
    return np.array([getattr(each, name) for each in scores])


def format_spread(values: np.ndarray) -> str:
    return f"{np.nanmean(values):.1f} ({np.nanmin(values):.1f}..{np.nanmax(values):.1f})"


def print_anchors(found: list[TuningCase]) -> None:
    print("7a: gpu, dataset, default J and s, oracle b and W, its J and s, % of energy, time and cost saved")
    for case in found:
        base = case.default_run
        at, cap = case.oracle, int(case.best_cap[case.oracle])
        best = case.expected_run(at, cap)
        saved = " ".join(f"{100 * (1 - a / b):5.1f}" for a, b in zip(best, base, strict=True))
        print(
            f"{case.gpu:>5} {case.name:13} {base[0]:9.0f} {base[1]:9.2f} {case.task.batches[at]:6}"
            f" {case.caps_w[cap]:4.0f} {best[0]:9.0f} {best[1]:9.2f}  {saved}"
        )


def print_published(found: list[TuningCase], seeds: int) -> None:
    print(f"\n7b and ours, {seeds} seeds: last-5 energy saved in %, regret, within 10 % from, default regret")
    means: list[tuple[float, ...]] = []
    took_s, recurrences = 0.0, 0
    for case in found:
        zeus = score_seeds(case, Zeus(), seeds)
        before_s = time.process_time()
        ours = score_seeds(case, BayesianTuner(), seeds)
        took_s += time.process_time() - before_s
        recurrences += seeds * case.recurrences
        known = ZEUS.get(case.gpu, {}).get(case.name)
        spec = "" if known is None else f" [spec {known[0]:.1f}, {known[1]:.1f} ({known[2]}..{known[3]})]"
        apart = take_column(ours, "last_energy") - take_column(zeus, "last_energy")
        error = apart.std() / np.sqrt(seeds)
        bound = default_regret(case)
        figures = [
            float(np.nanmean(take_column(of, name)))
            for name in ("regret", "settles10")
            for of in (zeus, ours)
        ]
        never = int(np.isnan(take_column(ours, "settles10")).sum())
        marks = [" LESS ENERGY SAVED"] * bool(apart.mean() < -2 * error - 1e-9)
        marks += [" MORE REGRET THAN ZEUS"] * (figures[1] > figures[0])
        marks += [" WORSE THAN THE DEFAULT"] * (figures[1] > bound + 1)
        print(
            f"{case.gpu:>5} {case.name:13} zeus {format_spread(take_column(zeus, 'last_energy')):>20}"
            f" ours {format_spread(take_column(ours, 'last_energy')):>20} ({apart.mean():+.2f} ± {error:.2f})"
            f" | zeus {format_spread(take_column(zeus, 'regret')):>18}{spec}"
            f" ours {format_spread(take_column(ours, 'regret')):>18}"
            f" | zeus {figures[2]:5.1f} ours {figures[3]:5.1f} never {never}"
            f" | default {bound:.1f}{''.join(marks)}"
        )
        means.append(tuple(figures))
    z, o, zc, oc = np.mean(means, axis=0)
    print(f"mean regret {z:.2f} and {o:.2f}: ratio {o / z:.2f}")
    print(f"within 10 % from {zc:.1f} and {oc:.1f}: ratio {oc / zc:.2f}")
    print(f"1,000 recurrences of ours: {1000 * took_s / recurrences:.2f} CPU s")


def print_random_cases(count: int) -> None:
    rows, failed = [], 0
    for seed in range(count):
        case = build_random_case(10_000 + seed)
        try:
            zeus = score(case, replay(case, Zeus(), 0))
        except ConfigError:
            failed += 1  # Zeus ends with an error where all that survived pruning fails later
            continue
        ours = score(case, replay(case, BayesianTuner(), 0))
        rows.append((zeus.regret, ours.regret, zeus.settles10, ours.settles10, zeus.settled, ours.settled,
                     default_regret(case)))  # fmt: skip
    zr, our, zc, oc, zs, os_, bound = np.array(rows).T
    print(f"\n{len(rows)} random jobs ({failed} on which Zeus ends with an error left out)")
    for name, regret, settles, settled in (("zeus", zr, zc, zs), ("ours", our, oc, os_)):
        print(
            f"{name}: regret mean {regret.mean():.2f} median {np.median(regret):.2f}; within 10 % from"
            f" {np.nanmean(settles):.1f}, never {np.isnan(settles).mean():.1%}; settled at"
            f" {settled.mean():.4f} of the oracle; more than a run worse than the default:"
            f" {(regret > bound + 1).mean():.1%}, most {np.max(regret - bound):.1f}"
        )
    print(f"ours has more regret on {(our > zr).mean():.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--made-up", type=int, default=150)
    args = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"{DATA} is missing: set WATTLINE_DATA")
    tables = read_tables(DATA)
    found = [case for gpu in tables.gpus for case in build_cases(tables, gpu)[0]]
    print_anchors(found)
    print_published(found, args.seeds)
    print_random_cases(args.made_up)


if __name__ == "__main__":
    main()

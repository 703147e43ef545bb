"""Compare the ordinary model of `wattline fuse check` with a plain loop written by hand.

    python benchmarks/fuse_check.py                     the models of wattline.papers.hfta.models
    python benchmarks/fuse_check.py --models MLP,CNN --threads 2 --compile

Steps of the two are timed in turn, one of each, in one process: the ratio of the medians should be 1. Also
printed: the gain that `wattline fuse check` reports.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch

from wattline import fusion
from wattline.fusion.gain import measure_training
from wattline.fusion.ordinary_training import OrdinaryTraining
from wattline.fusion.step_recorder import RecordedStep, StepRecorder
from wattline.papers.hfta.models import CASES, FusionCase


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default=",".join(CASES), help="comma-separated")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=300, help="steps of each of the two loops")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="let the array compile its steps")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    for name in args.models.split(","):
        case = CASES[name]
        hand, alone = compare_loops(case, args.width, args.steps)
        gain = measure_training(
            lambda config, case=case: case.build(),
            lambda array, configs, case=case: train(array, case, args.compile),
            [{}] * args.width,
            args.seconds,
        )
        print(
            f"{name:14s} by hand {describe(hand)}, fuse check {describe(alone)}, "
            f"ratio {statistics.median(alone) / statistics.median(hand):.3f}; gain {gain.gain:.2f}",
            flush=True,
        )


def compare_loops(case: FusionCase, width: int, steps: int) -> tuple[list[float], list[float]]:
    """Return the seconds of steps of a plain loop, and of the ordinary model of `wattline fuse check`."""
    array = fusion.fuse([case.build() for _ in range(width)])
    recorded: list[RecordedStep] = []
    step = fusion.train_step(array, case.loss, getattr(fusion, case.optimiser)(array), compile=False)
    x, y = case.batch(torch.Generator().manual_seed(0))
    with StepRecorder(array, time.perf_counter, recorded.append).record():
        step(x, y)
    ordinary = OrdinaryTraining(array, recorded, 0)
    model = array.member(0)
    optimiser = case.make_optimiser(model.parameters())

    def run_by_hand() -> None:
        optimiser.zero_grad()
        case.loss(model(x), y).backward()
        optimiser.step()

    hand, alone = [], []
    for _ in range(steps):
        hand.append(time_call(run_by_hand))
        alone.append(time_call(ordinary.run_step))
    return hand[5:], alone[5:]


def time_call(call: Callable[[], None]) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


def train(array: fusion.FusedArray, case: FusionCase, compiled: bool) -> None:
    step = fusion.train_step(array, case.loss, getattr(fusion, case.optimiser)(array), compile=compiled)
    x, y = case.batch(torch.Generator().manual_seed(0))
    while True:
        step(x, y)


def describe(times: list[float]) -> str:
    low, middle, high = (1e3 * t for t in statistics.quantiles(times, n=4))
    return f"{middle:8.3f} ms a step ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()

"""Time of hyper-parameter search with trials as one array, against one trial at a time.

python benchmarks/fusion_tuning.py [--trials 32] [--epochs 27] [--seeds 3] [--width 8]

An MLP that separates two moons: learning rate, weight decay and the scale of its first weights are tuned by
random search and by ASHA, one trial at a time and in arrays, both with compiled steps, alternately. Seconds
are of the whole call; the ratio in parentheses is without compiling, as in a longer search. In random search
the best value must be the same; the trials that ASHA stops depend on the order of arrival.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from wattline import fusion
from wattline.fusion.search.result import Result, TrialState
from wattline.fusion.step.train_step import Step

SPACE = {
    "lr": fusion.Float(1e-4, 1e-1, log=True),
    "weight_decay": fusion.Float(0, 0.05),
    "scale": fusion.Float(0.5, 2.0),
}


def draw_moons(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return points of two half circles, one inside the other, with noise."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.arange(count) % 2
    angle = math.pi * torch.rand(count, generator=generator)
    x = torch.where(label == 0, angle.cos(), 1 - angle.cos())
    y = torch.where(label == 0, angle.sin(), 0.5 - angle.sin())
    return torch.stack([x, y], 1) + 0.2 * torch.randn(count, 2, generator=generator), label


def build(config: dict[str, Any]) -> nn.Module:
    """Build a small MLP, its first weights scaled."""
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    with torch.no_grad():
        model[0].weight.mul_(config["scale"])
    return model


def objective(shared: Mapping[str, Any]) -> fusion.Objective:
    """Return the objective: training on one half of the points, evaluated on the other."""
    inputs, labels = draw_moons(1024, 0)
    held_inputs, held_labels = draw_moons(1024, 1)

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for part in torch.randperm(len(inputs)).split(32):
            yield inputs[part], labels[part]

    def evaluate(array: fusion.FusedArray) -> Tensor:
        return array.loss(F.cross_entropy, array(held_inputs), held_labels)

    return fusion.Objective(
        build, batches, F.cross_entropy, evaluate, fusion.AdamW, ("lr", "weight_decay"), ("scale",)
    )


def measure(sampler: str, width: int, seed: int, trials: int, epochs: int) -> tuple[Result, float, float]:
    """Return the result, its seconds, and the seconds of compiling among them."""
    compile_s = 0.0
    get_step_function = Step.get_step_function

    def measured(self: Step, *args: Any) -> Any:
        nonlocal compile_s
        before_s = self.compile_s
        call = get_step_function(self, *args)
        compile_s += self.compile_s - before_s
        return call

    Step.get_step_function = measured  # type: ignore[method-assign]
    try:
        start_s = time.perf_counter()
        result = fusion.tune(
            objective, SPACE, epochs=epochs, sampler=sampler, trials=trials, width=width, seed=seed
        )
        return result, time.perf_counter() - start_s, compile_s
    finally:
        Step.get_step_function = get_step_function  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=27)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--width", type=int, default=8)
    args = parser.parse_args()
    print(f"{args.trials} trials of up to {args.epochs} epochs, {torch.get_num_threads()} threads")
    print("sampler  seed  alone s  array s  ratio  (compiled)  epochs       best value")
    measure("random", 1, 0, 1, 1)  # load the compiler
    for sampler in ("random", "asha"):
        for seed in range(args.seeds):
            one, one_s, one_compile_s = measure(sampler, 1, seed, args.trials, args.epochs)
            many, many_s, many_compile_s = measure(sampler, args.width, seed, args.trials, args.epochs)
            steady = (one_s - one_compile_s) / (many_s - many_compile_s)
            epochs = [sum(trial.epochs for trial in result.trials) for result in (one, many)]
            off = max(
                (
                    abs(a.value - b.value)
                    for a, b in zip(one.trials, many.trials, strict=True)
                    if a.state is b.state is TrialState.COMPLETE
                ),
                default=math.nan,
            )
            print(
                f"{sampler:7}  {seed:4}  {one_s:7.1f}  {many_s:7.1f}  {one_s / many_s:5.2f}  ({steady:8.2f})"
                f"  {epochs[0]:4} {epochs[1]:4}   {one.best.value:.6f} {many.best.value:.6f}"
                f"  furthest apart {off:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()

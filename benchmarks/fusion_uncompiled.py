"""Steps of a tiny MLP without a compiler: an array against the serial loop of ordinary models.

python benchmarks/fusion_uncompiled.py [--widths 2 4 8 16] [--rounds 30] [--threads 1]

"loop" is a loop of the user's own (`array`, `array.loss`, `backward`, `step`), "replay" the same loop under
`fusion.compile(backend="graph")`, "step" is `train_step` with compile=False, "graph" with compile="graph".
"rates" is "step" with another learning rate for each member. All ways take turns of 20 steps; printed are
medians with quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from wattline import fusion

STEPS = 20  # of a way in its turn
X, Y = torch.randn(32, 16), torch.randint(0, 4, (32,))


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def make_serial(width: int) -> Callable[[], object]:
    models = [build() for _ in range(width)]
    optimisers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in models]

    def step() -> None:
        for model, optimiser in zip(models, optimisers, strict=True):
            optimiser.zero_grad()
            F.cross_entropy(model(X), Y).backward()
            optimiser.step()

    return step


def make_loop(width: int) -> Callable[[], object]:
    array = fusion.fuse([build() for _ in range(width)])
    optimiser = fusion.Adam(array, lr=1e-3)

    def step() -> None:
        optimiser.zero_grad()
        array.loss(F.cross_entropy, array(X), Y).sum().backward()
        optimiser.step()

    return step


def make_replay(width: int) -> Callable[[], object]:
    array = fusion.fuse([build() for _ in range(width)])
    optimiser = fusion.Adam(array, lr=1e-3)

    @fusion.compile(backend="graph")
    def step(x: Tensor, y: Tensor) -> None:
        optimiser.zero_grad()
        array.loss(F.cross_entropy, array(x), y).sum().backward()
        optimiser.step()

    return lambda: step(X, Y)


def make_step(width: int, compile: bool | str, lr: float | list[float] = 1e-3) -> Callable[[], object]:
    array = fusion.fuse([build() for _ in range(width)])
    step = fusion.train_step(array, F.cross_entropy, fusion.Adam(array, lr=lr), compile=compile)
    return lambda: step(X, Y)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time uncompiled steps of arrays.")
    parser.add_argument("--widths", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for width in args.widths:
        ways = {
            "serial": make_serial(width),
            "loop": make_loop(width),
            "replay": make_replay(width),
            "step": make_step(width, False),
            "rates": make_step(width, False, [1e-3 * (1 + member) for member in range(width)]),
            "graph": make_step(width, "graph"),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(args.rounds + 2):
            for name, run in ways.items():
                start_s = time.perf_counter()
                for _ in range(STEPS):
                    run()
                if number >= 2:
                    times[name].append((time.perf_counter() - start_s) / STEPS * 1e6)
        base = statistics.median(times["serial"])
        for name, own in times.items():
            low, middle, high = statistics.quantiles(own, n=4)
            ratio = base / middle
            print(
                f"width {width:2} {name:6} {middle:6.0f} us ({low:.0f} to {high:.0f}), {ratio:.2f} x serial"
            )


if __name__ == "__main__":
    main()

"""Cost of the session in a training loop, for each step.

python benchmarks/session.py [--rounds 15]

An empty loop with and without it, alternately, because steps of a real job differ by more than its cost; and
the share of a real PyTorch step on the CPU. Without a meter it is the cost of the session itself; a simulated
GPU computes at every step, which no real one does.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch

import wattline
from wattline.profiler.cap_window import WindowLength


def build_step(width: int, batch: int) -> Callable[[], None]:
    """Return a function that trains one step."""
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(batch, width)

    def step() -> None:
        loss = (model(inputs) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def measure_step_s(width: int, batch: int) -> float:
    """Return the median seconds of a step."""
    step, found = build_step(width, batch), []
    for _ in range(60):
        before = time.perf_counter()
        step()
        found.append(time.perf_counter() - before)
    return statistics.median(found)


def measure_overhead_s(run: wattline.Session, rounds: int, steps: int = 5000) -> list[float]:
    """Return the added seconds of a step of an empty loop with the session, for each round."""
    loader = [torch.zeros(64, 1)] * steps
    epochs, found = run.epochs(10**6), []
    for _ in range(rounds):
        before = time.process_time()
        for _ in loader:
            pass
        middle = time.process_time()
        next(epochs)
        for _ in run.steps(loader):
            pass
        found.append((time.process_time() - middle - (middle - before)) / steps)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["WATTLINE_STATE"] = tempfile.mkdtemp()
    real_s = {name: measure_step_s(*size) for name, size in (("small", (256, 64)), ("larger", (768, 256)))}
    simulated = f"simulated:1xv100,model=resnet50,batch=64,time=virtual,state={tempfile.mkdtemp()}"
    cases = (
        ("without a meter", "none", WindowLength()),
        ("simulated, cap found", simulated, WindowLength()),
        ("simulated, trying caps", simulated + "b", WindowLength(steps=10**9)),
    )
    for name, meter, window in cases:
        with wattline.Session(meter=meter, batch_size=64, window=window) as run:
            found = measure_overhead_s(run, args.rounds)
        middle, (low, _, high) = statistics.median(found), statistics.quantiles(found)
        shares = ", ".join(
            f"{middle / s:.2%} of a {what} step of {1e3 * s:.1f} ms" for what, s in real_s.items()
        )
        print(f"{name}: {1e6 * middle:.1f} us a step ({1e6 * low:.1f} to {1e6 * high:.1f}): {shares}")


if __name__ == "__main__":
    main()

"""Searches for the best power cap with a counter that is renewed every 100 ms, and steps of 4 ms.

python benchmarks/cap_windows.py [--searches 12] [--counter 100] [--model resnet50]

Simulated GPUs in virtual time. Each search begins at another phase of the counter. A search is right if the
cap that it sets costs at most 2 % more than the best one, by the exact energy of one step under each cap,
and if the share of energy that it claims to save is within 2 points of the exact one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np

import wattline
from wattline.meter import open_meter
from wattline.profiler.cap_aim import Aim, CapMeasurement, find_best
from wattline.profiler.cap_window import list_caps

_STEP_S = 0.004
_NOISE = 1.02  # times the least cost


def measure_exactly(kind: str, model: str, samples: int) -> list[CapMeasurement]:
    """Return a step under each cap, by a counter without a period."""
    meter = open_meter(f"simulated:1x{kind},model={model},time=virtual")
    gpu, measurements = meter.gpus[0], []
    for cap_w in list_caps(*gpu.cap_range_w()):
        gpu.set_cap(cap_w)
        start = meter.now_s(), gpu.energy_j()
        meter.stepped(samples)
        measurements.append(CapMeasurement(cap_w, 1, meter.now_s() - start[0], gpu.energy_j() - start[1]))
    meter.close()
    return measurements


def choose_samples(kind: str, model: str) -> int:
    """Return the samples of a step of about 4 ms."""
    return max(round(_STEP_S / measure_exactly(kind, model, 1)[0].seconds), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=12)
    parser.add_argument("--counter", type=int, default=100, help="period in ms")
    parser.add_argument("--kind", default="v100")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--aim", default="energy")
    args = parser.parse_args()
    os.environ["WATTLINE_STATE"] = tempfile.mkdtemp()
    aim, samples = Aim.parse(args.aim), choose_samples(args.kind, args.model)
    exact = measure_exactly(args.kind, args.model, samples)
    max_w = exact[0].cap_w
    costs = dict(zip((one.cap_w for one in exact), aim.costs(exact, max_w, 1), strict=True))
    best = find_best(exact, aim, max_w)
    energy = {one.cap_w: one.joules for one in exact}
    right = 0
    for number in range(args.searches):
        state = tempfile.mkdtemp()
        spec = f"simulated:1x{args.kind},model={args.model},time=virtual,state={state},counter={args.counter}"
        batch = np.zeros((samples, 1))
        with wattline.Session(meter=spec, aim=args.aim, memory=Path(state) / "memory.db") as run:
            for _ in range(7 * number):  # another phase of the counter
                run._meter.stepped(samples)
            for _ in run.epochs(1):
                for _ in run.steps([batch] * 20_000):
                    if not run.caps.is_searching:
                        break
            cap_w, claimed = run.gpus[0].cap_w(), run.caps.saves or 0.0
        saved = 1 - energy[cap_w] / energy[max_w]
        is_right = costs[cap_w] <= _NOISE * min(costs.values()) and abs(claimed - saved) <= _NOISE - 1
        right += is_right
        print(
            f"search {number + 1}: {cap_w:g} W, {'right' if is_right else 'wrong'},"
            f" says it saves {claimed:.1%}, saves {saved:.1%}"
        )
    print(
        f"{right} of {args.searches} right; steps of {1e3 * exact[0].seconds:.1f} ms,"
        f" counter renewed every {args.counter} ms; the best cap is {best.cap_w:g} W"
        f" and saves {1 - best.joules / energy[max_w]:.1%}"
    )


if __name__ == "__main__":
    main()

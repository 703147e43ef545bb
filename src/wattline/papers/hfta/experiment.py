"""HFTA (Wang et al., MLSys 2021): samples per second of an array, by its width, on the CPU."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence

import torch

from wattline.papers.hfta.hand_models import build_hand_fused_run
from wattline.papers.hfta.models import CASES
from wattline.papers.hfta.steps import Run, build_array_step, build_serial_run, time_rounds
from wattline.papers.results import Experiments, Sample

MODELS = ("tiny MLP", "CNN", "PointNet", "transformer")
WIDTHS = (2, 4, 8)
WIDER = {"tiny MLP": (16,)}  # compiles fast
THREADS = 1
"""With one thread CPU seconds can be counted, which other processes on this machine disturb least."""


def measure_widths(experiments: Experiments) -> dict[tuple[str, int], tuple[Sample, Sample]]:
    """Return for each model and width the gains over a plain loop: fused by hand as in HFTA, and ours.

    A gain is of samples per second summed over members; each is of one of several interleaved rounds, of
    which the first warms up and does not count.
    """
    todo = [(name, width) for name in MODELS for width in (*WIDTHS, *WIDER.get(name, ()))]
    rounds = max(experiments.seeds, 7)
    if experiments.quick:
        todo, rounds = todo[:1], experiments.seeds
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch.compile
            found = {}
            for number, (name, width) in enumerate(todo):
                experiments.progress(number, len(todo))
                found[name, width] = _measure(name, width, rounds)
            experiments.progress(len(todo), len(todo))
            return found
    finally:
        torch.set_num_threads(threads)


def _measure(name: str, width: int, rounds: int) -> tuple[Sample, Sample]:
    case = CASES[name]
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    models = [case.build() for _ in range(width)]
    batches = [case.batch(generator) for _ in models]
    xs, ys = (torch.stack(column) for column in zip(*batches, strict=True))
    step = build_array_step(models, case, None)
    runs: dict[str, Run] = {
        "loop": build_serial_run(models, case, xs, ys),
        "by hand": build_hand_fused_run(name, models, xs, ys),
        "fused": lambda: step(xs, ys, members=True),
    }
    times = {name: seen[1:] for name, seen in time_rounds(runs, rounds + 1, time.process_time).items()}
    return _divide(times["loop"], times["by hand"]), _divide(times["loop"], times["fused"])


def _divide(base_s: Sequence[float], own_s: Sequence[float]) -> Sample:
    return Sample(tuple(a / b for a, b in zip(base_s, own_s, strict=True)))

"""HFTA (Wang et al., MLSys 2021): many models trained as one array. Needs the extra `torch`."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

from wattline.papers.results import MEASURED, CaseResult, Experiments, PaperResult, Sample
from wattline.units import pluralize

_GPU = "on a GPU: python benchmarks/fusion_gpu.py, of the repository, trains PointNet and DCGAN"


def reproduce_hfta(experiments: Experiments) -> PaperResult:
    """Measure the samples per second of arrays of 1 to 16 members on this machine's CPU."""
    result = PaperResult(
        "hfta",
        "HFTA (MLSys'21): samples per second of one array against separate trainings",
        "up to 15.1x, on GPUs and TPUs",
        "x",
        float("nan"),
        15.1,
        "operators and optimisers fused by hand by the rules of the paper, eager, run here",
        "",
        figure="widths",
    )
    if find_spec("torch") is None:
        return replace(
            result,
            left_out="PyTorch is not installed: pip install torch==2.13.0 and 'wattline[torch]'",
        )
    from wattline.papers.hfta.experiment import THREADS, measure_widths

    found = measure_widths(experiments)
    rounds = len(next(iter(found.values()))[1].values)
    slower = [f"{name} at {width}" for (name, width), (_, ours) in found.items() if ours.mean < 1]
    notes = [_GPU]
    if slower:
        notes.append(f"slower than the plain loop: {', '.join(slower)}")
    return replace(
        result,
        conditions=f"CPU seconds of {pluralize(THREADS, 'thread')}, float32; forward, backward and Adam;"
        " each member its own batches; against a plain loop over the members on the same CPU, not against"
        f" one job per GPU; the spread is of {rounds} interleaved rounds in one process",
        cases=tuple(
            CaseResult(f"{name} x{width}", MEASURED, ours, by_hand)
            for (name, width), (by_hand, ours) in found.items()
        ),
        notes=tuple(notes),
        extra={"widths": _list_curves(found)},
    )


def _list_curves(found: dict[tuple[str, int], tuple[Sample, Sample]]) -> dict[str, list[tuple[int, float]]]:
    """Return the mean gain of ours by width, for each model."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for (name, width), (_, ours) in found.items():
        curves.setdefault(name, []).append((width, ours.mean))
    return curves

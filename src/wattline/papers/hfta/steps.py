"""Training steps to compare: a plain loop, compiled, under vmap, and as one array."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from wattline import fusion
from wattline.papers.hfta.models import FusionCase

Run = Callable[[], object]


def time_interleaved(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """Return the median seconds of a call of each run, interleaved, of at least 7 rounds."""
    times = time_rounds(runs, max(7, rounds))
    return {label: statistics.median(seen) for label, seen in times.items()}


def time_rounds(
    runs: dict[str, Run], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Return the mean seconds of a call of each run in each of *rounds*, interleaved, by *clock*."""
    counts = {}
    for label, run in runs.items():
        for _ in range(4):
            run()
        start_s = clock()
        run()
        counts[label] = max(1, int(0.2 / (clock() - start_s)))
    times: dict[str, list[float]] = {label: [] for label in runs}
    for _ in range(rounds):
        for label, run in runs.items():
            start_s = clock()
            for _ in range(counts[label]):
                run()
            times[label].append((clock() - start_s) / counts[label])
    return times


def build_serial_run(models: list[nn.Module], case: FusionCase, xs: Tensor, ys: Tensor) -> Run:
    """Return a step of all members, one after another."""
    pairs = [(model, case.make_optimiser(model.parameters())) for model in models]

    def run() -> None:
        for (model, optimiser), x, y in zip(pairs, xs, ys, strict=True):
            optimiser.zero_grad()
            case.loss(model(x), y).backward()
            optimiser.step()

    return run


def build_compiled_run(case: FusionCase, xs: Tensor, ys: Tensor) -> Run:
    """Compile the whole step of one member, and call it for each."""
    model = case.build()
    optimiser = case.make_optimiser(model.parameters())

    @torch.compile
    def step(x: Tensor, y: Tensor) -> None:
        optimiser.zero_grad()
        case.loss(model(x), y).backward()
        optimiser.step()

    def run() -> None:
        for x, y in zip(xs, ys, strict=True):
            step(x, y)

    return run


def build_compiled_parts_run(case: FusionCase, xs: Tensor, ys: Tensor) -> Run:
    """Compile forward with backward, and the update, separately, as most users do."""
    model = case.build()
    optimiser = case.make_optimiser(model.parameters())
    loss = torch.compile(lambda x, y: case.loss(model(x), y), fullgraph=True)
    update = torch.compile(optimiser.step)

    def run() -> None:
        for x, y in zip(xs, ys, strict=True):
            loss(x, y).backward()
            update()
            optimiser.zero_grad()

    return run


def build_vmap_run(
    models: list[nn.Module], case: FusionCase, xs: Tensor, ys: Tensor, *, shared: bool = False
) -> Run:
    """Return the step of PyTorch's own documentation of ensembles; *shared*: one batch for all members."""
    params, buffers = torch.func.stack_module_state(models)
    leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
    optimiser = case.make_optimiser(leaves.values())

    def one(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return case.loss(torch.func.functional_call(models[0], (p, b), (x,)), y)

    axes = (0, 0, None, None) if shared else (0, 0, 0, 0)

    def run() -> None:
        optimiser.zero_grad()
        torch.vmap(one, in_dims=axes, randomness="different")(leaves, buffers, xs, ys).sum().backward()
        optimiser.step()

    return run


def build_array_step(models: list[nn.Module], case: FusionCase, width: int | str | None) -> fusion.Step:
    """Return the step of all members as one array; *width* as in `fusion.train_step`."""
    array = fusion.fuse(models)
    return fusion.train_step(array, case.loss, getattr(fusion, case.optimiser)(array), width=width)

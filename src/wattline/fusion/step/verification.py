"""Comparison of a compiled step with the uncompiled one, now and then, in case a trace is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from wattline.fusion.lowering.error_kinds import is_out_of_memory
from wattline.fusion.step.traced import CompiledGraph

EVERY = 1_000  # steps between two comparisons, after the first few
_LOSS_TOLERANCE = 1e-3
_HALF_FACTOR = 50.0  # for 16-bit types


class Verification:
    """Decides when to compare, and compares.

    The first, second, fourth, ... step of a version is compared, later every `EVERY` steps. A version from
    the compile cache was compared when it was compiled, so its first step is not.
    """

    def __init__(self) -> None:
        self._steps: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self.unverified = 0  # steps since the last comparison

    def is_due(self, version: CompiledGraph) -> bool:
        """Count a step of *version* and return whether it is to be compared."""
        count = self._steps[version] = self._steps.get(version, 0) + 1
        due = count % EVERY == 0 if count >= EVERY else count & (count - 1) == 0
        due &= count > 1 or not version.is_cached
        self.unverified = 0 if due else self.unverified + 1
        return due


def run_and_compare(
    compiled: CompiledGraph,
    plain: Callable[[Sequence[Tensor]], Tensor],
    tensors: Sequence[Tensor],
    trained: Sequence[int],
    update_tolerance: float,
    lowering: AbstractContextManager[None],
) -> tuple[Tensor, bool | None]:
    """Make a step by *compiled*; if the one by *plain* differs beyond rounding, its results are used.

    So they are if memory runs out in *compiled*, which may have written to some of the tensors. *trained*
    are the indices of parameters in *tensors*, which may differ by *update_tolerance* of the norm of the
    update. *lowering* is the context in which operators are computed as by *compiled*. Return the losses and
    whether both agree; None: memory has run out. Both may write to captured tensors, which *plain* gets as
    they are.
    """
    before = [tensors[at].clone() for at in trained]
    copies = [tensor.clone() for tensor in tensors]
    captured = compiled.captured.current_tensors()
    captured_before = [tensor.detach().clone() for tensor in captured]
    with preserved_generators(), lowering:
        expected = plain(copies)
    copies += [tensor.detach().clone() for tensor in captured]
    write_tensors(captured, captured_before)
    agree: bool | None = None
    try:
        losses = compiled(tensors)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    else:
        params, others = [tensors[at] for at in trained], [copies[at] for at in trained]
        factor = tolerance_factor([*params, expected])
        agree = outputs_agree(losses, expected, factor) and updates_agree(
            params, others, before, update_tolerance, factor
        )
        if agree:
            return losses, True
    write_tensors([*tensors, *captured], copies)
    return expected, agree


def write_tensors(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Write *values* into *tensors*, except for those that nothing may write to."""
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            if not tensor.is_inference():
                tensor.copy_(value)


def tolerance_factor(tensors: Sequence[Tensor]) -> float:
    """Return the factor by which tolerances are wider for the types of *tensors*."""
    return _HALF_FACTOR if any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors) else 1.0


def outputs_agree(ours: Tensor, theirs: Tensor, factor: float) -> bool:
    """Return whether two outputs are equal up to rounding."""
    tolerance = factor * _LOSS_TOLERANCE
    return torch.allclose(ours.double(), theirs.double(), tolerance, tolerance * 0.1, equal_nan=True)


def updates_agree(
    params: Sequence[Tensor],
    others: Sequence[Tensor],
    before: Sequence[Tensor],
    tolerance: float,
    factor: float,
) -> bool:
    """Return whether two updates of *before* differ by at most *tolerance* of the norm of the second."""
    difference = update = size = 0.0
    for ours, theirs, old in zip(params, others, before, strict=True):
        difference += float((ours.double() - theirs.double()).nan_to_num().square().sum())
        update += float((theirs.double() - old.double()).nan_to_num().square().sum())
        size += float(theirs.double().nan_to_num().square().sum())
    return difference <= min(factor * tolerance, 1.0) ** 2 * update + 1e-10 * factor**2 * size


@contextmanager
def preserved_generators() -> Iterator[None]:
    """Restore PyTorch's generators after the `with` block."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        yield

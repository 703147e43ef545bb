"""Steps with fewer members at a time after an allocation has failed."""

from __future__ import annotations

import dataclasses
import gc
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wattline.fusion.lowering.error_kinds import is_out_of_memory
from wattline.fusion.lowering.fallback import FusionWarning
from wattline.fusion.lowering.host_random import host_rng_state, set_host_rng_state

if TYPE_CHECKING:
    from wattline.fusion.step.train_step import Step


class StepBackup:
    """Copies of all that a failed step may have changed: buffers and the states of random generators.

    Weights and the other *updated* tensors, those of the optimiser, change only in the update at its end; if
    that has begun, the step cannot be repeated.
    """

    def __init__(self, buffers: Iterable[Tensor], updated: Iterable[Tensor]) -> None:
        self._buffers = [(buffer, buffer.clone()) for buffer in buffers]
        self._updated = [(tensor, tensor._version) for tensor in updated]
        self._rng_state = torch.get_rng_state()
        self._cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self._host_rng_state = host_rng_state()

    def can_restore(self) -> bool:
        """Return whether no weight has changed."""
        return all(tensor._version == version for tensor, version in self._updated)

    def restore(self) -> None:
        """Undo the changes of the step."""
        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
        torch.set_rng_state(self._rng_state)
        if self._cuda_states:
            torch.cuda.set_rng_state_all(self._cuda_states)
        set_host_rng_state(self._host_rng_state)


def run_in_parts(step: Step, run: Callable[[slice], Tensor], width: Callable[[], int | None]) -> Tensor:
    """Return the losses of all members, *width* at a time (None: all).

    *run* makes the step of some members. When memory runs out, the width is halved and the part repeated;
    parts before it are complete.
    """
    size, first = len(step.array), 0
    losses: list[Tensor] = []
    while first < size:
        part = slice(first, min(first + (width() or size), size))
        try:
            losses.append(run(part))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            _undo(step, part.stop - part.start, error)
        else:
            first = part.stop
            continue
        _free_memory()  # outside of the handler: the error holds the tensors of the failed step
        narrow(step, part.stop - part.start)
    return losses[0] if len(losses) == 1 else torch.cat(losses)


def _undo(step: Step, width: int, error: Exception) -> None:
    """Restore what the failed step has changed; raise *error* if it must not be repeated."""
    step.optimiser.zero_grad()
    if step.backup is None or not step.backup.can_restore():
        error.add_note(
            "(memory ran out while an array was being updated, so that its weights may be those of half a "
            "step: resume from a checkpoint, with a smaller width)"
        )
        raise error
    step.backup.restore()
    if width == 1 or step.array.carries:
        raise error


def narrow(step: Step, width: int) -> None:
    """Train half of *width* members at a time from now on, and warn of it."""
    if width == 1:
        return
    step.memory_width = width // 2
    step.way = dataclasses.replace(step.way, width=step.memory_width)
    warnings.warn(
        f"out of memory with {width} members at a time; {width // 2} are trained at a time from now on",
        FusionWarning,
        stacklevel=6,
    )


def _free_memory() -> None:
    """Free what the failed step has left."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()

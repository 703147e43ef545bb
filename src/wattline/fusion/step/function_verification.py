"""Comparison of a call of a compiled function with a call as written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from wattline.fusion.module_state import flatten_tree, named_tensors
from wattline.fusion.step.function_state import FunctionState
from wattline.fusion.step.verification import (
    outputs_agree,
    preserved_generators,
    tolerance_factor,
    updates_agree,
    write_tensors,
)
from wattline.fusion.torch_internals import tree_map_only

_UPDATE_TOLERANCE = 0.1  # without an optimiser


def run_and_compare_function(
    compiled: Callable[[], Any],
    plain: Callable[[], Any],
    state: FunctionState,
    others: Sequence[Tensor],
    lowering: AbstractContextManager[None],
) -> tuple[Any, bool]:
    """Call *compiled*; if the result of *plain* differs beyond rounding, use that one.

    Both read and write the tensors of *state* and *others*. *lowering* is the context in which
    operators are computed as by *compiled*. Return the result and whether both agree.
    """
    tensors = list({id(t): t for t in (*state.tensors, *others)}.values())
    before = [t.detach().clone() for t in tensors]
    with preserved_generators(), lowering:
        expected = tree_map_only(Tensor, lambda t: t.detach().clone(), plain())
    values = [t.detach().clone() for t in tensors]
    grads = [None if p.grad is None else p.grad.detach() for p in state.parameters]
    kept = [p.grad is old for p, old in zip(state.parameters, state.grads, strict=True)]
    grads = [g if g is None or not same else g.clone() for g, same in zip(grads, kept, strict=True)]
    write_tensors(tensors, before)
    for param, grad in zip(state.parameters, state.grads, strict=True):
        param.grad = grad
    result = compiled()
    after = [t.detach() for t in tensors]
    if _agree(result, expected, state, others, tensors, (after, values, before), grads):
        return result, True
    write_tensors(tensors, values)
    for param, grad, old, same in zip(state.parameters, grads, state.grads, kept, strict=True):
        param.grad = old if same else grad
    return expected, False


def _agree(
    result: Any,
    expected: Any,
    state: FunctionState,
    others: Sequence[Tensor],
    tensors: list[Tensor],
    copies: tuple[list[Tensor], list[Tensor], list[Tensor]],
    grads: list[Tensor | None],
) -> bool:
    after, values, before = copies
    ours, theirs = ([t for t in flatten_tree(out)[0] if isinstance(t, Tensor)] for out in (result, expected))
    now = [p.grad for p in state.parameters]
    if [t.shape for t in ours] != [t.shape for t in theirs] or [g is None for g in now] != [
        g is None for g in grads
    ]:
        return False
    factor = tolerance_factor([*after, *theirs])
    tolerance = max([o.update_tolerance for o in state.reached.optimisers], default=_UPDATE_TOLERANCE)
    changes = {id(t): row for t, row in zip(tensors, zip(after, values, before, strict=True), strict=True)}
    # Rounding may change all of the update of a weight with a gradient of zero, so norms are of many tensors;
    # a wrong state of an optimiser shows in the weights.
    groups = [
        [changes[id(t)] for t in group]
        for group in (
            state.parameters,
            [t for array in state.reached.arrays for t in named_tensors(array.body).values()],
            [t for scaler in state.reached.scalers for t in (scaler.scales, scaler.streaks)],
            others,
        )
    ]
    groups.append(
        [
            (a, e, torch.zeros_like(e) if old is None else changes[id(old)][2])
            for a, e, old in zip(now, grads, state.grads, strict=True)
            if a is not None and e is not None
        ]
    )
    return all(outputs_agree(a, b, factor) for a, b in zip(ours, theirs, strict=True)) and all(
        updates_agree([r[0] for r in group], [r[1] for r in group], [r[2] for r in group], tolerance, factor)
        for group in groups
        if group
    )

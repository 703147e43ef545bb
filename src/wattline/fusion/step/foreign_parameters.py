"""Refuse losses that are computed from parameters outside the array, which no optimiser of it trains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from wattline.errors import NotFusible
from wattline.fusion.array import FusedArray


def refuse_foreign_parameters(losses: Tensor, array: FusedArray, inputs: Iterable[Tensor]) -> None:
    """Raise `NotFusible` if *losses* have no gradient, or one of a tensor not of the array nor *inputs*."""
    if losses.grad_fn is None:
        raise NotFusible(
            "the loss does not depend on any parameter of the array, so that nothing would be trained",
            "compute it from the array's output, without detach(), no_grad() or frozen parameters only",
        )
    own = {id(t) for t in (*array.parameters(), *inputs)}
    for leaf in _find_leaves(losses):
        if id(leaf) not in own:
            raise NotFusible(
                f"the loss depends on a parameter of the shape {tuple(leaf.shape)} that is not the array's, "
                "such as one of the original models; it would not be trained",
                "pass the array's outputs to the loss only, or use weight_decay of the optimiser",
            )


def _find_leaves(losses: Tensor) -> list[Any]:
    """Return the tensors that the backward pass of *losses* would add gradients to."""
    waiting, seen, leaves = [losses.grad_fn], set(), []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (variable := getattr(node, "variable", None)) is not None:
            leaves.append(variable)
        waiting.extend(following for following, _ in node.next_functions)
    return leaves

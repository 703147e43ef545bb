"""One training step of some members as one function: forward, backward and update together, compiled.

The step is run once on tensors without data, which writes down every operator (`make_fx`), and Inductor
compiles the list: nothing of it is Python any more.
"""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from wattline.fusion.lowering.forward import each, run
from wattline.fusion.lowering.inputs import Inputs
from wattline.fusion.lowering.per_member import bare
from wattline.fusion.lowering.rules import Ways
from wattline.fusion.module_state import call_with, settings_of
from wattline.fusion.optim.clip import clip_norm
from wattline.fusion.optim.loss_scale import adjust, unscale
from wattline.fusion.optim.update import Update

MOST_OPERATORS = 30_000  # beyond, compiling takes minutes: a long recurrence

Call = Callable[[Sequence[Tensor]], Tensor]


class NotTraced(Exception):  # caught where the step is made
    """The step cannot be one compiled function; it says why."""


@dataclass(frozen=True)
class Recipe:
    """What one step is made of, whatever the width."""

    body: nn.Module
    loss: Callable[..., Tensor]
    update: Update
    trained: tuple[str, ...]  # names of the optimiser's parameters, in its order
    amp: torch.dtype | None


@dataclass(frozen=True)
class Rows:
    """The tensors of some members that a step reads and writes; all but *common* are rows of the array's."""

    stacked: dict[str, Tensor]
    common: dict[str, Tensor]
    tensors: list[Tensor]  # the optimiser's
    hyper: list[dict[str, Tensor]]
    max_norm: list[Tensor]  # one, or none where nothing is clipped
    scaling: dict[str, Tensor]  # of a `Scaler`, or nothing

    def flat(self) -> tuple[list[Tensor], Any]:
        """All of them, in one order, and how to put them together again."""
        parts = (self.stacked, self.common, self.tensors, self.hyper, self.max_norm, self.scaling)
        return tree_flatten(parts)


def make_step(recipe: Recipe, rows: Rows, inputs: Inputs, count: int, ways: Ways | None) -> Call:
    """A function of `[*rows.flat()[0], *inputs.tensors]` that makes one step and gives the losses [B].

    The first *count* arguments of *inputs* are the model's, the others the loss'. *ways* None: one member,
    not fused.
    """
    state, spec = rows.flat()

    def step(flat: Sequence[Tensor]) -> Tensor:
        now = Rows(*tree_unflatten(list(flat[: len(state)]), spec))
        args = inputs.build(flat[len(state) :])[0]
        leaves = {name: now.stacked[name].detach().requires_grad_() for name in recipe.trained}
        cast = nullcontext() if recipe.amp is None else torch.autocast(flat[0].device.type, recipe.amp)
        with torch.enable_grad(), cast:
            tensors = {**now.stacked, **leaves}
            if ways is None:
                losses = _one(recipe, tensors, now.common, args, inputs.flags, count)
            else:
                losses = _fused(recipe, tensors, now.common, args, inputs.flags, count, ways)
            whole = (losses * now.scaling["scales"] if now.scaling else losses).sum()
            grads = torch.autograd.grad(whole, list(leaves.values()), allow_unused=True)
        with torch.no_grad():
            there = [g for g in grads if g is not None]
            found = unscale(there, now.scaling["scales"]) if now.scaling else None
            for limit in now.max_norm:
                clip_norm(there, limit)
            params = [now.stacked[name] for name in recipe.trained]
            recipe.update(params, grads, now.tensors, now.hyper, None if found is None else ~found)
            if found is not None:
                adjust(now.scaling["scales"], now.scaling["streaks"], found, now.scaling)
        return losses.detach()

    return step


def compile_step(recipe: Recipe, rows: Rows, inputs: Inputs, count: int, ways: Ways | None) -> Call:
    """`make_step`, compiled; `NotTraced` where the model cannot be written down as operators."""
    flat = [t.detach() for t in [*rows.flat()[0], *inputs.tensors]]
    graph = _written_down(make_step(recipe, rows, inputs, count, ways), flat, recipe.body)
    if len(graph.graph.nodes) > MOST_OPERATORS:
        raise NotTraced(f"it has {len(graph.graph.nodes)} operators, more than {MOST_OPERATORS}")
    compiled = _compiled(graph, flat)

    def call(tensors: Sequence[Tensor]) -> Tensor:
        with torch.no_grad():
            return compiled(*tensors)[0]

    return call


def _fused(
    recipe: Recipe,
    tensors: dict[str, Tensor],
    common: dict[str, Tensor],
    args: tuple[Any, ...],
    flags: Sequence[bool],
    count: int,
    ways: Ways,
) -> Tensor:
    size = next(iter(tensors.values())).shape[0]
    carried: dict[Any, Tensor] = {}
    out = run(recipe.body, tensors, common, carried, Inputs.of(args[:count], {}, flags[:count], size), ways)
    if carried:
        raise NotTraced("modules keep tensors from one call to the next")
    return each(recipe.loss, (out, *args[count:]), [True, *flags[count:]], size, ways)


def _one(
    recipe: Recipe,
    tensors: dict[str, Tensor],
    common: dict[str, Tensor],
    args: tuple[Any, ...],
    flags: Sequence[bool],
    count: int,
) -> Tensor:
    own = [tree_map_only(Tensor, lambda t: t[0], a) if f else a for a, f in zip(args, flags, strict=True)]
    before = {**{name: t[0] for name, t in tensors.items()}, **common}
    after = dict(before)
    with bare(recipe.body):
        out = call_with(recipe.body, after, tuple(own[:count]), {})
    for name, new in after.items():
        if new is not before[name]:
            tensors[name][0].copy_(new)
    return recipe.loss(out, *own[count:]).unsqueeze(0)


def _written_down(step: Call, flat: list[Tensor], body: nn.Module) -> torch.fx.GraphModule:
    """The operators of *step*; `NotTraced` where what it does is more than operators."""
    before, chance = settings_of(body), random.getstate()
    log = logging.getLogger("torch._subclasses.fake_tensor")  # it tells of what is only tried here
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        graph = make_fx(lambda *tensors: (step(tensors),), tracing_mode="fake")(*flat)
    except NotTraced:
        raise
    except Exception as error:
        raise NotTraced(_said(error)) from error
    finally:
        log.setLevel(level)
    if settings_of(body) != before:
        raise NotTraced("its forward changes attributes of modules")
    if random.getstate() != chance:
        raise NotTraced("its forward draws random numbers of Python")
    graph.graph.eliminate_dead_code()
    return graph


def _compiled(graph: torch.fx.GraphModule, flat: list[Tensor]) -> Callable[..., Any]:
    from torch import _inductor  # takes a second

    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _inductor.compile(graph, list(flat))
    except Exception as error:  # whatever a compiler says
        raise NotTraced(_said(error)) from error


def _said(error: Exception) -> str:
    lines = str(error).strip().split("\n")
    return f"{type(error).__name__}: {lines[0][:200]}"

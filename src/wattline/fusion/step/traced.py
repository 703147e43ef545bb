"""One training step of some members as one compiled function: forward, backward and update.

The step runs once on fake tensors to record every operator (`make_fx`), and Inductor compiles the graph,
which contains no Python code.
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

from wattline.fusion.lowering.forward import map_members, run_forward
from wattline.fusion.lowering.inputs import Inputs
from wattline.fusion.lowering.per_member import original_forwards
from wattline.fusion.lowering.rules import Ways
from wattline.fusion.module_state import call_with_tensors, plain_settings
from wattline.fusion.optim.clip import clip_norm
from wattline.fusion.optim.loss_scale import adjust_scales, unscale
from wattline.fusion.optim.update import Update

MAX_OPERATORS = 30_000  # with more, as in long recurrences, compiling takes minutes

StepFunction = Callable[[Sequence[Tensor]], Tensor]


class TracingError(Exception):  # caught in train_step.py and width_choice.py
    """The step cannot be one compiled function; the message states the reason."""


@dataclass(frozen=True)
class StepSpec:
    """The parts of one step, independent of the width."""

    body: nn.Module
    loss: Callable[..., Tensor]
    update: Update
    trained: tuple[str, ...]  # names of the optimiser's parameters, in its order
    amp: torch.dtype | None


@dataclass(frozen=True)
class MemberRows:
    """The tensors of some members that a step reads and writes; all but *common* are rows of the array's."""

    stacked: dict[str, Tensor]
    common: dict[str, Tensor]
    tensors: list[Tensor]  # the optimiser's
    hyper: list[dict[str, Tensor]]
    max_norm: list[Tensor]  # one tensor, or none without clipping
    scaling: dict[str, Tensor]  # of a `Scaler`, or empty

    def flat(self) -> tuple[list[Tensor], Any]:
        """Return all tensors in a fixed order, and the structure to rebuild them."""
        parts = (self.stacked, self.common, self.tensors, self.hyper, self.max_norm, self.scaling)
        return tree_flatten(parts)


def make_step(
    step_spec: StepSpec, rows: MemberRows, inputs: Inputs, model_arg_count: int, ways: Ways | None
) -> StepFunction:
    """Return a function of `[*rows.flat()[0], *inputs.tensors]` that makes one step and returns losses [B].

    The first *model_arg_count* arguments of *inputs* are the model's, the others the loss function's. *ways*
    None: one member, not fused.
    """
    state, spec = rows.flat()

    def step(flat: Sequence[Tensor]) -> Tensor:
        now = MemberRows(*tree_unflatten(list(flat[: len(state)]), spec))
        args = inputs.build(flat[len(state) :])[0]
        leaves = {name: now.stacked[name].detach().requires_grad_() for name in step_spec.trained}
        cast = nullcontext() if step_spec.amp is None else torch.autocast(flat[0].device.type, step_spec.amp)
        with torch.enable_grad(), cast:
            tensors = {**now.stacked, **leaves}
            if ways is None:
                losses = _single_member_losses(
                    step_spec, tensors, now.common, args, inputs.argument_flags, model_arg_count
                )
            else:
                losses = _fused_losses(
                    step_spec, tensors, now.common, args, inputs.argument_flags, model_arg_count, ways
                )
            total_loss = (losses * now.scaling["scales"] if now.scaling else losses).sum()
            grads = torch.autograd.grad(total_loss, list(leaves.values()), allow_unused=True)
        with torch.no_grad():
            present = [g for g in grads if g is not None]
            overflowed = unscale(present, now.scaling["scales"]) if now.scaling else None
            for limit in now.max_norm:
                clip_norm(present, limit)
            params = [now.stacked[name] for name in step_spec.trained]
            step_spec.update(
                params, grads, now.tensors, now.hyper, None if overflowed is None else ~overflowed
            )
            if overflowed is not None:
                adjust_scales(now.scaling["scales"], now.scaling["streaks"], overflowed, now.scaling)
        return losses.detach()

    return step


def compile_step(
    step_spec: StepSpec, rows: MemberRows, inputs: Inputs, model_arg_count: int, ways: Ways | None
) -> StepFunction:
    """Return `make_step`, compiled; raise `TracingError` if the model cannot be traced."""
    flat = [t.detach() for t in [*rows.flat()[0], *inputs.tensors]]
    graph = _trace(make_step(step_spec, rows, inputs, model_arg_count, ways), flat, step_spec.body)
    if len(graph.graph.nodes) > MAX_OPERATORS:
        raise TracingError(f"it has {len(graph.graph.nodes)} operators, at most {MAX_OPERATORS} are compiled")
    compiled = _compile(graph, flat)

    def call(tensors: Sequence[Tensor]) -> Tensor:
        with torch.no_grad():
            return compiled(*tensors)[0]

    return call


def _fused_losses(
    step_spec: StepSpec,
    tensors: dict[str, Tensor],
    common: dict[str, Tensor],
    args: tuple[Any, ...],
    flags: Sequence[bool],
    model_arg_count: int,
    ways: Ways,
) -> Tensor:
    size = next(iter(tensors.values())).shape[0]
    carried: dict[Any, Tensor] = {}
    out = run_forward(
        step_spec.body,
        tensors,
        common,
        carried,
        Inputs.from_call(args[:model_arg_count], {}, flags[:model_arg_count], size),
        ways,
    )
    if carried:
        raise TracingError("modules keep tensors from one call to the next")
    return map_members(
        step_spec.loss, (out, *args[model_arg_count:]), [True, *flags[model_arg_count:]], size, ways
    )


def _single_member_losses(
    step_spec: StepSpec,
    tensors: dict[str, Tensor],
    common: dict[str, Tensor],
    args: tuple[Any, ...],
    flags: Sequence[bool],
    model_arg_count: int,
) -> Tensor:
    own = [tree_map_only(Tensor, lambda t: t[0], a) if f else a for a, f in zip(args, flags, strict=True)]
    before = {**{name: t[0] for name, t in tensors.items()}, **common}
    after = dict(before)
    with original_forwards(step_spec.body):
        out = call_with_tensors(step_spec.body, after, tuple(own[:model_arg_count]), {})
    for name, new in after.items():
        if new is not before[name]:
            tensors[name][0].copy_(new)
    return step_spec.loss(out, *own[model_arg_count:]).unsqueeze(0)


def _trace(step: StepFunction, flat: list[Tensor], body: nn.Module) -> torch.fx.GraphModule:
    """Return the graph of *step*; raise `TracingError` if it has effects beyond its operators."""
    before, rng_state = plain_settings(body), random.getstate()
    log = logging.getLogger("torch._subclasses.fake_tensor")  # it logs errors that are handled here
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        graph = make_fx(lambda *tensors: (step(tensors),), tracing_mode="fake")(*flat)
    except TracingError:
        raise
    except Exception as error:
        raise TracingError(_first_line(error)) from error
    finally:
        log.setLevel(level)
    if plain_settings(body) != before:
        raise TracingError("its forward changes attributes of modules")
    if random.getstate() != rng_state:
        raise TracingError("its forward draws random numbers from Python")
    graph.graph.eliminate_dead_code()
    return graph


def _compile(graph: torch.fx.GraphModule, flat: list[Tensor]) -> Callable[..., Any]:
    from torch import _inductor  # importing it takes a second

    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _inductor.compile(graph, list(flat))
    except Exception as error:  # compilers raise errors of many types
        raise TracingError(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().split("\n")
    return f"{type(error).__name__}: {lines[0][:200]}"

"""One training step of some members as one compiled function: forward, backward and update.

The step runs once on fake tensors to record every operator (`make_fx`), and Inductor compiles the graph,
which contains no Python code.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from wattline.errors import NotFusible
from wattline.fusion import torch_internals
from wattline.fusion.lowering.forward import map_members, run_forward
from wattline.fusion.lowering.host_random import host_rng_state, is_same_rng_state, set_host_rng_state
from wattline.fusion.lowering.inputs import Inputs
from wattline.fusion.lowering.layout import ModelLayout
from wattline.fusion.lowering.number_mode import has_numbers
from wattline.fusion.lowering.per_member import original_forwards
from wattline.fusion.lowering.recomputation import supported_recomputation
from wattline.fusion.lowering.rules import Ways
from wattline.fusion.member_criteria import MemberCriteria
from wattline.fusion.member_numbers import TRACING_HINT
from wattline.fusion.module_state import call_with_tensors
from wattline.fusion.optim.clip import clip_norm
from wattline.fusion.optim.loss_scale import adjust_scales, unscale
from wattline.fusion.optim.update import Update
from wattline.fusion.step.captured import CapturedValues
from wattline.fusion.step.compile_cache import remove_entry
from wattline.fusion.step.executed_code import NN_MODULES, ExecutedCode, is_recorded, record_code
from wattline.fusion.torch_internals import (
    CompiledCode,
    get_proxy_mode,
    make_fx,
    tree_flatten,
    tree_map_only,
    tree_unflatten,
)

MAX_OPERATORS = 30_000  # with more, as in long recurrences, compiling takes minutes

StepFunction = Callable[[Sequence[Tensor]], Any]  # returns the losses, or a list of tensors


class LossNotScalar(NotFusible, RuntimeError):
    """A loss has more than one number for each member; PyTorch's `backward` raises `RuntimeError` then."""


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


class CompiledGraph:
    """A traced step as a function of its tensors; *captured* values are read at each call.

    *finish* gets the tensors and the results of the graph, and returns those of the call. *fingerprint* is
    the name of its entry in the compile cache, None without one; *is_cached*: it was loaded from there.
    """

    def __init__(
        self,
        compiled: Callable[..., Any],
        captured: CapturedValues,
        *,
        returns_tensor: bool,
        finish: Callable[[Sequence[Tensor], Any], Any] | None = None,
        fingerprint: str | None = None,
        is_cached: bool = False,
    ) -> None:
        self.captured = captured
        self.fingerprint = fingerprint
        self.is_cached = is_cached
        self._compiled = compiled
        self._returns_tensor = returns_tensor
        self._finish = finish

    def forget(self) -> None:
        """Remove it from the compile cache, because it is wrong."""
        if self.fingerprint is not None:
            remove_entry(self.fingerprint)

    @torch.no_grad()
    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        """Return what the traced function returns: a tensor, or a list of tensors."""
        results = self._compiled(*tensors, *self.captured.read())
        results = results[0] if self._returns_tensor else list(results)
        return results if self._finish is None else self._finish(tensors, results)


class MemberStep:
    """One step of some members: a function of `[*rows.flat()[0], *inputs.tensors]` that returns losses [B].

    The first *model_arg_count* arguments of *inputs* are the model's, the others the loss function's. *ways*
    None: one member, not fused.
    """

    def __init__(
        self, step_spec: StepSpec, rows: MemberRows, inputs: Inputs, model_arg_count: int, ways: Ways | None
    ) -> None:
        if ways is None and (has_numbers(step_spec.body) or isinstance(step_spec.loss, MemberCriteria)):
            ways = Ways()  # numbers are inputs of the step, which only the rules take in the place of floats
        state, self._structure = rows.flat()
        self._step_spec = step_spec
        self._inputs = inputs
        self._model_arg_count = model_arg_count
        self._ways = ways
        self._layout = ModelLayout(step_spec.body)
        self._device = state[0].device.type
        self._known: tuple[list[Tensor], MemberRows] = (state, rows)

    def __call__(self, flat: Sequence[Tensor]) -> Tensor:
        """Compute losses and gradients, and update the members."""
        return self.update(flat, self.compute(flat))

    def compute(self, flat: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the losses [B] and the gradients of the trained parameters, None for unused ones."""
        step_spec, now = self._step_spec, self._read_rows(flat)
        call = self._inputs.build(flat[len(self._known[0]) :])
        leaves = {name: now.stacked[name].detach().requires_grad_() for name in step_spec.trained}
        cast = nullcontext() if step_spec.amp is None else torch.autocast(self._device, step_spec.amp)
        with torch.enable_grad(), cast:
            losses = self._compute_losses({**now.stacked, **leaves}, now.common, call)
            grads = _differentiate(losses, now, leaves)
        return [losses.detach(), *grads]

    def update(self, flat: Sequence[Tensor], results: Sequence[Tensor | None]) -> Tensor:
        """Update the members, given the *results* of `compute`; return the losses."""
        losses = results[0]
        assert losses is not None
        _apply_gradients(self._step_spec, self._read_rows(flat), results[1:])
        return losses

    def _read_rows(self, flat: Sequence[Tensor]) -> MemberRows:
        """Return the tensors of the members among *flat*; those of the last call need not be sorted again."""
        state, rows = self._known
        if not all(map(is_, state, flat)):
            state = list(flat[: len(state)])
            rows = MemberRows(*tree_unflatten(state, self._structure))
            if get_proxy_mode() is None:
                self._known = (state, rows)
        return rows

    def _compute_losses(
        self,
        tensors: dict[str, Tensor],
        common: dict[str, Tensor],
        call: tuple[tuple[Any, ...], dict[str, Any]],
    ) -> Tensor:
        step_spec, inputs, count = self._step_spec, self._inputs, self._model_arg_count
        if self._ways is None:
            losses = _single_member_losses(step_spec, tensors, common, call, inputs, count)
        else:
            rng_state = host_rng_state()
            self._layout = self._layout.refresh()
            losses = _fused_losses(step_spec, self._layout, tensors, common, call, inputs, count, self._ways)
            if not is_same_rng_state(rng_state, host_rng_state()):
                set_host_rng_state(rng_state)
                raise TracingError("it draws random numbers from Python or NumPy")
        check_losses(losses, losses.shape[0])
        return losses


def update_members(step_spec: StepSpec, rows: MemberRows, leaves: dict[str, Tensor], losses: Tensor) -> None:
    """Differentiate *losses* with respect to *leaves*, the trained parameters, and update *rows*."""
    _apply_gradients(step_spec, rows, _differentiate(losses, rows, leaves))


def _differentiate(losses: Tensor, rows: MemberRows, leaves: dict[str, Tensor]) -> Sequence[Tensor | None]:
    scaled = losses * rows.scaling["scales"] if rows.scaling else losses
    ones = torch.ones(scaled.shape, dtype=scaled.dtype, device=scaled.device)
    return torch.autograd.grad(scaled, list(leaves.values()), ones, allow_unused=True)


@torch.no_grad()
def _apply_gradients(step_spec: StepSpec, rows: MemberRows, grads: Sequence[Tensor | None]) -> None:
    present = [g for g in grads if g is not None]
    overflowed = unscale(present, rows.scaling["scales"]) if rows.scaling else None
    for limit in rows.max_norm:
        clip_norm(present, limit)
    params = [rows.stacked[name] for name in step_spec.trained]
    step_spec.update(params, grads, rows.tensors, rows.hyper, None if overflowed is None else ~overflowed)
    if overflowed is not None:
        adjust_scales(rows.scaling["scales"], rows.scaling["streaks"], overflowed, rows.scaling)


def trace_step(
    step: Callable[[Sequence[Tensor]], Any],
    flat: Sequence[Tensor],
    captured: CapturedValues,
    executed: ExecutedCode,
) -> tuple[torch.fx.GraphModule, CapturedValues]:
    """Return the graph of *step* for the tensors *flat*, and the captured values that it reads.

    The code that it runs is added to *executed*. Raise `TracingError` if it cannot be traced.
    """
    own = [t.detach() for t in flat]
    graph = _trace(step, own, captured, executed)
    if len(graph.graph.nodes) > MAX_OPERATORS:
        raise TracingError(f"it has {len(graph.graph.nodes)} operators, at most {MAX_OPERATORS} are compiled")
    return graph, captured.select(_drop_unused_inputs(graph, len(own)))


def compile_graph(
    graph: torch.fx.GraphModule, flat: Sequence[Tensor], captured: CapturedValues
) -> CompiledCode:
    """Return a traced step compiled by Inductor; raise `TracingError` if that fails."""
    example = [*(t.detach() for t in flat), *captured.read()]
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch_internals.compile_graph(graph, example)
    except Exception as error:  # compilers raise errors of many types
        raise TracingError(_first_line(error)) from error


def check_losses(losses: Any, size: int) -> None:
    """Raise `LossNotScalar` unless *losses* has one number for each of *size* members."""
    if not isinstance(losses, Tensor):
        raise NotFusible(f"the loss returns a {type(losses).__name__}, expected a tensor with one number")
    if losses.dim() != 1 or len(losses) != size:
        raise LossNotScalar(
            f"the loss of a member has the shape {tuple(losses.shape[1:])}, expected one number",
            'reduce it: reduction="mean", or loss.mean()',
        )
    if not losses.is_floating_point():
        raise LossNotScalar(f"the loss is of type {losses.dtype}, expected a floating-point number")


def _drop_unused_inputs(graph: torch.fx.GraphModule, kept: int) -> list[bool]:
    """Remove inputs after the first *kept* that nothing uses; return for each of them whether it is used."""
    extra = [node for node in graph.graph.nodes if node.op == "placeholder"][kept:]
    used = [bool(node.users) for node in extra]
    for node, is_used in zip(extra, used, strict=True):
        if not is_used:
            graph.graph.erase_node(node)
    graph.recompile()
    return used


def _fused_losses(
    step_spec: StepSpec,
    layout: ModelLayout,
    tensors: dict[str, Tensor],
    common: dict[str, Tensor],
    call: tuple[tuple[Any, ...], dict[str, Any]],
    inputs: Inputs,
    model_arg_count: int,
    ways: Ways,
) -> Tensor:
    (args, kwargs), flags = call, inputs.argument_flags
    size = next(iter(tensors.values())).shape[0]
    carried: dict[Any, Tensor] = {}
    own = inputs.are_keywords_own or flags[:model_arg_count]
    model_inputs = Inputs.from_call(args[:model_arg_count], kwargs, own, size)
    out = run_forward(layout, tensors, common, carried, model_inputs, ways)
    if carried:
        raise TracingError("modules keep tensors from one call to the next")
    loss_args, loss_flags = (out, *args[model_arg_count:]), [True, *flags[model_arg_count:]]
    losses: Tensor = map_members(step_spec.loss, loss_args, loss_flags, size, ways)
    return losses


def _single_member_losses(
    step_spec: StepSpec,
    tensors: dict[str, Tensor],
    common: dict[str, Tensor],
    call: tuple[tuple[Any, ...], dict[str, Any]],
    inputs: Inputs,
    model_arg_count: int,
) -> Tensor:
    args, kwargs = call
    flagged = zip(args, inputs.argument_flags, strict=True)
    own = [tree_map_only(Tensor, lambda t: t[0], a) if f else a for a, f in flagged]
    if inputs.are_keywords_own:
        kwargs = tree_map_only(Tensor, lambda t: t[0], kwargs)
    before = {**{name: t[0] for name, t in tensors.items()}, **common}
    after = dict(before)
    with original_forwards(step_spec.body), supported_recomputation():
        out = call_with_tensors(step_spec.body, after, tuple(own[:model_arg_count]), kwargs)
    for name, new in after.items():
        if new is not before[name]:
            tensors[name][0].copy_(new)
    loss = step_spec.loss(out, *own[model_arg_count:])
    check_losses(loss.unsqueeze(0) if isinstance(loss, Tensor) else loss, 1)
    return loss.unsqueeze(0)


def _trace(
    step: Callable[[Sequence[Tensor]], Any],
    flat: list[Tensor],
    captured: CapturedValues,
    executed: ExecutedCode,
) -> torch.fx.GraphModule:
    """Return the graph of *step*; raise `TracingError` if it has effects beyond its operators."""
    count = len(flat)
    returns_tensor = False

    def run(*tensors: Tensor) -> tuple[Any, ...]:
        nonlocal returns_tensor
        with captured.replaced_by(tensors[count:]), record_code(executed):
            results = step(tensors[:count])
        returns_tensor = isinstance(results, Tensor)
        return (results,) if returns_tensor else tuple(results)

    log = logging.getLogger(torch_internals.FAKE_TENSOR_LOG)  # it logs errors that are handled here
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        graph = make_fx(run, tracing_mode="fake")(*flat, *captured.read())
    except TracingError:
        raise
    except Exception as error:
        raise TracingError(describe_tracing_error(error)) from error
    finally:
        log.setLevel(level)
    graph.graph.eliminate_dead_code()
    graph.meta["returns_tensor"] = returns_tensor
    return graph


def describe_tracing_error(error: Exception) -> str:
    """Return in the user's words why a step cannot be traced, with the line of the user's code."""
    text = str(error)
    for sign, description in (
        ("convert all Tensors to FakeTensors", "it reads a tensor that no variable of the step leads to"),
        ("DataDependent", "its control flow depends on the values of tensors"),
        ("data-dependent", "its control flow depends on the values of tensors"),
        ("_local_scalar_dense", "it reads the value of a tensor (.item(), float() or the like)"),
        (TRACING_HINT, f"a part that runs separately for each member {TRACING_HINT}"),
        ("torchdynamo", "it calls a function that torch.compile has already compiled"),
    ):
        if sign.lower() in f"{type(error).__name__} {text}".lower():
            return description + _user_line(error)
    return _first_line(error) + _user_line(error)


def _user_line(error: Exception) -> str:
    """Return the innermost line of the user's code in the traceback of *error*, in brackets."""
    line, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_recorded(code.co_filename) and not code.co_filename.startswith(NN_MODULES):
            line = f" ({code.co_filename}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return line


def _first_line(error: Exception) -> str:
    lines = str(error).strip().split("\n")
    return f"{type(error).__name__}: {lines[0][:200]}"

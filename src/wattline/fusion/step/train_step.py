"""`train_step`: one training step of all members, compiled as a whole where possible."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from wattline.errors import ConfigError, NotFusible
from wattline.fusion.array import FusedArray
from wattline.fusion.lowering.fallback import FusionWarning
from wattline.fusion.lowering.inputs import Inputs
from wattline.fusion.module_state import plain_settings
from wattline.fusion.optim import ArrayOptimizer
from wattline.fusion.optim.clip import clip_grad_norm_
from wattline.fusion.optim.hyperparameters import vector
from wattline.fusion.optim.loss_scale import Scaler
from wattline.fusion.step import listeners
from wattline.fusion.step.execution_mode import ExecutionMode
from wattline.fusion.step.malloc import keep_freed_memory
from wattline.fusion.step.tensor_views import TensorViews
from wattline.fusion.step.traced import (
    MemberRows,
    StepFunction,
    StepSpec,
    TracingError,
    compile_step,
    make_step,
)
from wattline.fusion.step.width_choice import COMPILE_S, TimedWidth, choose_mode


def train_step(
    array: FusedArray,
    loss: Callable[..., Tensor],
    optimiser: ArrayOptimizer,
    *,
    width: int | str | None = None,
    compile: bool = True,
    amp: torch.dtype | None = None,
    clip_norm: Any = None,
    scaler: Scaler | None = None,
    steps: int | None = None,
) -> Step:
    """Return a `Step`: forward, `loss(output, target)`, backward and update of all members.

    *width* members are trained at a time: all (None), a number, or "auto", which measures several modes,
    including no fusing, and chooses the fastest. *steps*, the expected number of steps, bounds the time spent
    compiling. Without a compiler, or if the model cannot be traced, steps run operator by operator and a
    warning is issued. *amp* is the type to compute in (torch.bfloat16); torch.float16 needs a *scaler*.
    *clip_norm* limits the gradient norm of each member: one number, or one per member.
    """
    if isinstance(width, str) and width != "auto":
        raise ConfigError(f"width is {width!r}, expected a number of members or 'auto'")
    if isinstance(width, int) and width < 1:
        raise ConfigError(f"width must be at least 1, got {width}")
    if amp is torch.float16 and scaler is None:
        raise ConfigError(
            "float16 loses small gradients without a scaler", "pass scaler=wattline.fusion.Scaler(len(array))"
        )
    if {id(p) for p in optimiser.parameters()} - {id(p) for p in array.parameters()}:
        raise ConfigError("the optimiser has parameters that do not belong to the array")
    return Step(array, loss, optimiser, width, compile, amp, clip_norm, scaler, steps)


class Step:
    """A training step made by `train_step`; `step(x, target)` returns the losses [B].

    `way` is the execution mode, `compile_s` the time spent compiling so far, `tried` the modes that "auto"
    has measured. The first step runs operator by operator to detect the parts that can be fused; the second
    compiles. For a batch of another shape, or another number of members, the step is compiled once running it
    uncompiled has taken as long as compiling. Gradients are not kept in `.grad`.
    """

    def __init__(
        self,
        array: FusedArray,
        loss: Callable[..., Tensor],
        optimiser: ArrayOptimizer,
        width: int | str | None,
        compile: bool,
        amp: torch.dtype | None,
        clip_norm: Any,
        scaler: Scaler | None,
        steps: int | None,
    ) -> None:
        self.array = array
        self.loss = loss
        self.optimiser = optimiser
        self.way = ExecutionMode(width if isinstance(width, int) else None, array.ways, compile)
        self.tried: list[TimedWidth] = []
        self.compile_s = 0.0
        self._auto = width == "auto"
        self._amp = amp
        self._clip = clip_norm
        self._scaler = scaler
        self._steps = steps
        self._probed: set[bool] = set()
        self._array_only = False
        self._views: TensorViews | None = None
        self._step_spec: StepSpec | None = None
        self._flags: list[tuple[int, int]] = []
        self._step_functions: dict[Any, StepFunction] = {}
        self._spent_s: dict[Any, float] = {}
        array.follow(self)
        if scaler is not None:
            array.follow(scaler)
        if next(array.parameters()).device.type == "cpu":
            keep_freed_memory()

    def __call__(self, *batch: Any, members: bool | Sequence[bool] = False) -> Tensor:
        """Make one step on a batch: the model's input (a tuple: several), then further arguments of the loss.

        *members*: tensors of the batch have a row for each member; a list sets this per argument.
        """
        model_args = batch[0] if isinstance(batch[0], tuple) else (batch[0],)
        flags = [members] * len(batch) if isinstance(members, bool) else list(members)
        if len(flags) != len(batch):
            raise NotFusible(f"members has {len(flags)} entries, expected one for each of {len(batch)}")
        inputs = Inputs.from_call(
            (*model_args, *batch[1:]), {}, [flags[0]] * len(model_args) + flags[1:], len(self.array)
        )
        if self.array.training not in self._probed:
            before = plain_settings(self.array.body)
            losses = self._run_uncompiled(inputs, len(model_args))
            self._probed.add(self.array.training)
            if plain_settings(self.array.body) != before and not self._array_only:
                self._array_only = True
                why = "its forward changes attributes of modules"
                warnings.warn(f"the step cannot be compiled: {why}", FusionWarning, stacklevel=2)
                self.way = ExecutionMode(None, self.array.ways, compiled=False)
            return losses
        if self._array_only or self.array.carries:  # cannot be traced
            return self._run_uncompiled(inputs, len(model_args))
        if self._auto:
            self._auto = False
            self.way, self.tried = choose_mode(self, inputs, len(model_args), self._steps)
        return self._run(inputs, len(model_args))

    def _run_uncompiled(self, inputs: Inputs, model_arg_count: int) -> Tensor:
        """Make a step of all members through the array itself, which detects modules that cannot be fused."""
        args, flags, opt, scaler = (
            inputs.build(inputs.tensors)[0],
            inputs.argument_flags,
            self.optimiser,
            self._scaler,
        )
        opt.zero_grad()
        device = next(self.array.parameters()).device.type
        with torch.autocast(device, self._amp, enabled=self._amp is not None):
            out = self.array(*args[:model_arg_count], members=flags[:model_arg_count])
            losses: Tensor = self.array.each(
                self.loss, out, *args[model_arg_count:], members=[True, *flags[model_arg_count:]]
            )
        (losses if scaler is None else scaler.scale(losses)).sum().backward()
        if scaler is not None:
            scaler.unscale_(opt)
        if self._clip is not None:
            clip_grad_norm_(opt.parameters(), self._clip)
        if scaler is None:
            opt.step()
        else:
            scaler.step(opt)
            scaler.update()
        opt.zero_grad()
        return losses.detach()

    def _run(self, inputs: Inputs, model_arg_count: int) -> Tensor:
        views, extras = self._refresh_views_and_spec(), tree_flatten(self._extras())[0]
        losses = []
        for part in views.slices(1 if self.way.ways is None else self.way.width):
            own = inputs if part.stop - part.start == views.size else inputs.select_members(part)
            flat = [*views.member_tensors(part), *(t[part] for t in extras), *own.tensors]
            losses.append(self._call(own, model_arg_count, part)(flat))
        listeners.notify_step(views.size)
        return losses[0] if len(losses) == 1 else torch.cat(losses)

    def _refresh_views_and_spec(self) -> TensorViews:
        """Return up-to-date views of tensors; renew the step specification if another update is needed."""
        if self._views is None or not self._views.is_current():
            self._views, self._flags = TensorViews(self.array, self.optimiser), []
        hyper = self.optimiser.hyper_tensors()
        deciding = [h[name] for h in hyper for name in ("weight_decay", "momentum") if name in h]
        flags = [(id(t), t._version) for t in deciding]
        if flags != self._flags:
            self._flags = flags
            update = self.optimiser.build_update()
            if self._step_spec is None or (update, self._views.trained) != (
                self._step_spec.update,
                self._step_spec.trained,
            ):
                self._step_spec = StepSpec(self.array.body, self.loss, update, self._views.trained, self._amp)
                self._step_functions.clear()
        return self._views

    def _extras(self) -> tuple[list[dict[str, Tensor]], list[Tensor], dict[str, Tensor]]:
        """Return the per-member vectors of `MemberRows`: hyper-parameters, maximum norm and loss scales."""
        clip, scaler = self._clip, self._scaler
        return (
            self.optimiser.hyper_tensors(),
            [] if clip is None else [vector("clip_norm", clip, len(self.array))],
            {} if scaler is None else {"scales": scaler.scales, "streaks": scaler.streaks, **scaler.numbers},
        )

    def keep(self, rows: Sequence[int]) -> None:
        """Keep the maximum norms of the members *rows*."""
        if isinstance(self._clip, list | tuple | Tensor) and len(self._clip) > max(rows):
            self._clip = [self._clip[row] for row in rows]

    def extend(self, count: int) -> None:
        """Give *count* new members the last member's maximum norm, if each member has its own."""
        if isinstance(self._clip, list | tuple | Tensor):
            self._clip = [*self._clip, *[self._clip[-1]] * count]

    def member_rows(self, part: slice) -> MemberRows:
        """Return the tensors of some members."""
        views = self._refresh_views_and_spec()
        own = (views.stacked, views.tensors, *self._extras())
        stacked, tensors, *extras = tree_map(lambda t: t[part], own)
        return MemberRows(stacked, views.common, tensors, *extras)

    def get_step_function(
        self, way: ExecutionMode, inputs: Inputs, model_arg_count: int, part: slice
    ) -> StepFunction:
        """Return the step of these members in this mode, building or compiling it if needed.

        Raise `TracingError` if it cannot be compiled.
        """
        self._refresh_views_and_spec()
        key = self._key(way, inputs, part)
        if key not in self._step_functions:
            assert self._step_spec is not None
            make = compile_step if way.compiled else make_step
            start_s = time.perf_counter()
            self._step_functions[key] = make(
                self._step_spec, self.member_rows(part), inputs, model_arg_count, way.ways
            )
            if way.compiled:
                self.compile_s += time.perf_counter() - start_s
        return self._step_functions[key]

    def _key(self, way: ExecutionMode, inputs: Inputs, part: slice) -> Any:
        shapes = tuple((t.shape, t.dtype) for t in inputs.tensors)
        assert self._views is not None
        settings = self._views.settings  # such as training mode and the p of dropout
        return part.stop - part.start, way.ways, way.compiled, shapes, inputs.per_member, settings

    def _call(self, inputs: Inputs, model_arg_count: int, part: slice) -> StepFunction:
        key = self._key(self.way, inputs, part)
        function = self._step_functions.get(key)
        if function is not None:
            return function
        if not self.way.compiled:
            return self.get_step_function(self.way, inputs, model_arg_count, part)
        compiled = sum(k[2] for k in self._step_functions)
        threshold_s = self.compile_s / compiled if compiled else COMPILE_S
        if not compiled or self._spent_s.get(key, 0.0) >= threshold_s:
            try:
                return self.get_step_function(self.way, inputs, model_arg_count, part)
            except TracingError as why:
                warnings.warn(f"the step cannot be compiled: {why}", FusionWarning, stacklevel=4)
                self.way = ExecutionMode(self.way.width, self.way.ways, compiled=False)
                return self.get_step_function(self.way, inputs, model_arg_count, part)
        plain = self.get_step_function(
            ExecutionMode(self.way.width, self.way.ways, compiled=False), inputs, model_arg_count, part
        )

        def timed(tensors: Sequence[Tensor]) -> Tensor:
            start_s = time.perf_counter()
            losses = plain(tensors)
            self._spent_s[key] = self._spent_s.get(key, 0.0) + time.perf_counter() - start_s
            return losses

        return timed

"""`train_step`: one training step of all members, compiled as a whole where possible."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from wattline.errors import NotFusible
from wattline.fusion.array import FusedArray
from wattline.fusion.lowering.error_kinds import is_fusing_error
from wattline.fusion.lowering.fallback import FusionWarning
from wattline.fusion.lowering.inputs import Inputs
from wattline.fusion.lowering.recomputation import refused_recomputation
from wattline.fusion.member_criteria import MemberCriteria
from wattline.fusion.member_numbers import find_device
from wattline.fusion.module_state import named_tensors
from wattline.fusion.optim import ArrayOptimizer
from wattline.fusion.optim.hyperparameters import vector
from wattline.fusion.optim.loss_scale import Scaler
from wattline.fusion.step.execution_mode import ExecutionMode
from wattline.fusion.step.function_state import describe_array
from wattline.fusion.step.malloc import MappedMemory
from wattline.fusion.step.memory_limit import StepBackup, narrow, run_in_parts
from wattline.fusion.step.options import check_gradients_enabled, check_options, read_torch_settings
from wattline.fusion.step.places import Root
from wattline.fusion.step.replay_choice import ReplayChoice
from wattline.fusion.step.tensor_views import TensorViews
from wattline.fusion.step.traced import (
    CompiledGraph,
    MemberRows,
    MemberStep,
    StepFunction,
    StepSpec,
    TracingError,
)
from wattline.fusion.step.tracer import CacheCounters, Tracer
from wattline.fusion.step.uncompiled import run_all_members, run_some_members
from wattline.fusion.step.verification import Verification, run_and_compare
from wattline.fusion.step.width_choice import COMPILE_S, TimedWidth, choose_mode
from wattline.fusion.step.wrong_use import explain_errors, warn_of_stacked
from wattline.fusion.torch_internals import tree_map


def train_step(
    array: FusedArray,
    loss: Callable[..., Tensor] | Sequence[nn.Module],
    optimiser: ArrayOptimizer,
    *,
    width: int | str | None = None,
    compile: bool | str = True,
    amp: torch.dtype | None = None,
    clip_norm: Any = None,
    scaler: Scaler | None = None,
    steps: int | None = None,
) -> Step:
    """Return a `Step`: forward, `loss(output, target)`, backward and update of all members.

    *width* members are trained at a time: all (None), a number, or "auto", which measures several modes,
    including no fusing, and chooses the fastest. *steps*, the expected number of steps, bounds the time spent
    compiling. Without a compiler, or if the model cannot be traced, steps run operator by operator and a
    warning is issued; *compile* False asks for that. Forward and backward of short steps are then traced too
    and replayed, which saves the time of Python; "graph" does so from the second step on. *amp* is the type
    to compute in (torch.bfloat16); torch.float16 needs a *scaler*. *clip_norm* limits the gradient norm of
    each member: one number, or one per member. *loss* may be a list with one criterion, a module, for each
    member; they are read anew in every step.
    """
    check_options(array, loss, optimiser, width, compile, amp, scaler)
    if isinstance(loss, list | tuple):
        loss = MemberCriteria(loss, len(array))
    assert callable(loss)
    return Step(array, loss, optimiser, width, compile, amp, clip_norm, scaler, steps)


class Step(CacheCounters):
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
        compile: bool | str,
        amp: torch.dtype | None,
        clip_norm: Any,
        scaler: Scaler | None,
        steps: int | None,
    ) -> None:
        self.array = array
        self.loss = loss
        self.optimiser = optimiser
        self.way = ExecutionMode(width if isinstance(width, int) else None, array.ways, bool(compile))
        self.tried: list[TimedWidth] = []
        self.compile_s = 0.0
        self._auto = width == "auto"
        self._amp = amp
        self._clip = clip_norm
        self._scaler = scaler
        self._steps = steps
        self._probed: set[bool] = set()
        self._watched: set[bool] = set()
        self._array_only = False
        self.memory_width: int | None = None  # members at a time, if memory has run out
        self.backup: StepBackup | None = None  # of the part that runs; None: it cannot be repeated
        self._mapped = MappedMemory(find_device(array.body))
        self._others: list[Any] = []  # arguments of the present call that are not tensors
        self._tracer = Tracer(
            (
                Root("the model", lambda: self.array.body, None),
                Root("the loss", lambda: getattr(self.loss, "body", self.loss), None),
                Root("the arguments", lambda: self._others, None),
                Root("PyTorch's settings", read_torch_settings, None),
            ),
            torch.float64 if next(array.parameters()).dtype == torch.float64 else torch.float32,
            "inductor" if compile is True else "graph",
        )
        self._verification = Verification()
        self._is_graph = compile == "graph"
        self._replay = ReplayChoice(compile is False)
        self._views: TensorViews | None = None
        self._step_spec: StepSpec | None = None
        self._flags: list[tuple[int, int]] = []
        self._step_functions: dict[Any, StepFunction] = {}
        self._spent_s: dict[Any, float] = {}
        array.follow(self)
        if scaler is not None:
            array.follow(scaler)

    def __call__(self, *batch: Any, members: bool | Sequence[bool] = False, **model_kwargs: Any) -> Tensor:
        """Make one step on a batch: the model's input (a tuple: several), then further arguments of the loss.

        Keyword arguments are the model's. *members*: tensors of the batch have a row for each member; a list
        sets this per positional argument, and those passed by keyword are then shared.
        """
        check_gradients_enabled()
        first = batch[:1] if batch else ((),)
        model_args = first[0] if isinstance(first[0], tuple) else first
        flags = [members] * len(batch) if isinstance(members, bool) else list(members)
        if len(flags) != len(batch):
            raise NotFusible(f"members has {len(flags)} entries, expected one for each of {len(batch)}")
        args = (*model_args, *batch[1:])
        all_flags = [*flags[:1] * len(model_args), *flags[1:]]
        if not self._watched and members is False:
            warn_of_stacked((args, model_kwargs), len(self.array))
        if isinstance(self.loss, MemberCriteria):
            args, all_flags = (*args, self.loss.read_rows(find_device(self.array.body))), [*all_flags, True]
        inputs = Inputs.from_call(
            args, model_kwargs, True if members is True else all_flags, len(self.array)
        )  # True: keyword arguments too
        self._others[:] = inputs.others
        inputs = dataclasses.replace(inputs, others=self._others)
        if self._array_only or self.array.carries:  # cannot be traced
            return self._run_uncompiled(inputs, len(model_args))
        if self.array.training not in self._probed:
            return self._probe(inputs, len(model_args))
        if self._auto:
            self._auto = False
            self.way, self.tried = choose_mode(self, inputs, len(model_args), self._steps)
            if not self.way.compiled:
                self._tracer, self._replay.allowed = self._tracer.without_compiler(), True
        is_whole = self.way.width is None and self.way.ways is not None
        if is_whole and not self.way.compiled:
            key = self._key(self.way, inputs, slice(0, len(self.array)))
            if not self._replay.is_due(key):
                start_s = time.perf_counter()
                losses = self._run_uncompiled(inputs, len(model_args))
                self._replay.note(key, time.perf_counter() - start_s)
                return losses
        return self._run(inputs, len(model_args))

    def _probe(self, inputs: Inputs, model_arg_count: int) -> Tensor:
        """Make a step uncompiled, to find out which code runs, and another if that code may have effects."""
        mode = self.array.training
        if mode not in self._watched:
            self._watched.add(mode)
            with self._tracer.record(), explain_errors(self.array, inputs.tensors):
                losses = self._run_uncompiled(inputs, model_arg_count, is_first=True)
            is_separate, executed = self.array.is_separate(self.loss), self._tracer.executed
            may_have_effects = is_separate and executed.may_write_tensors
            if self.way.compiled or self._replay.allowed or is_separate:
                may_have_effects |= executed.may_have_effects
            if not may_have_effects and not self._tracer.finds_generators(self._known_tensors()):
                self._probed.add(mode)
            return losses
        self._probed.add(mode)
        try:
            guards = self._tracer.build_guards(self._known_tensors())
        except TracingError as why:
            if "is an iterator" in str(why) and self.array.is_separate(self.loss):
                self._refuse_effect(f"advances one: {why}")
            if self.way.compiled:
                self._stop_compiling(why)
            self._replay.allowed = False
            return self._run_uncompiled(inputs, model_arg_count)
        tensors = guards.current_tensors()
        versions = {place: tensor._version for place, tensor in tensors.items()}
        losses = self._run_uncompiled(inputs, model_arg_count)
        if self.array.is_separate(self.loss):
            for place, tensor in tensors.items():
                if tensor._version != versions[place]:
                    self._refuse_effect(f"writes to {place}")
        if (drawing := guards.find_drawing()) is not None:
            reason = "it draws random numbers from Python or NumPy"
            if not self.array.is_separate(self.loss):
                reason = f"it draws random numbers from {drawing}"
                self.array.run_separately(self.loss, reason)
            self._stop_compiling(TracingError(reason))
        elif (effect := guards.find_effect(tensors)) is not None:
            if self.array.is_separate(self.loss):
                self._refuse_effect(effect)
            if self.way.compiled:
                self._stop_compiling(TracingError(f"it {effect}"))
            self._replay.allowed = False
        return losses

    def _refuse_effect(self, effect: str) -> NoReturn:
        raise NotFusible(
            f"the step {effect}, and parts of it run once for each member, "
            "so that members would see each other's changes",
            "keep such values in buffers of the model, or change them outside of the step",
        )

    def _stop_compiling(self, why: TracingError) -> None:
        """Run all further steps through the array, operator by operator."""
        self._replay.allowed = False
        if self.way.compiled:
            warnings.warn(f"the step cannot be compiled: {why}", FusionWarning, stacklevel=4)
        self._array_only = True
        self.way = ExecutionMode(self.memory_width, self.array.ways, compiled=False)

    def _updated_tensors(self) -> list[Tensor]:
        return [*self.optimiser.parameters(), *self.optimiser.state_tensors()]

    def _known_tensors(self) -> list[Tensor]:
        own = named_tensors(self.loss.body) if isinstance(self.loss, MemberCriteria) else {}
        return [*named_tensors(self.array.body).values(), *own.values()]

    def _run_uncompiled(self, inputs: Inputs, model_arg_count: int, is_first: bool = False) -> Tensor:
        """Make a step through the array itself, which detects modules that cannot be fused.

        In the *is_first* one, tensors that the loss should not be computed from are refused.
        """

        def run(part: slice) -> Tensor:
            self.backup = StepBackup(self.array.body.buffers(), self._updated_tensors())
            if part.stop - part.start == len(self.array):
                return run_all_members(self, inputs, model_arg_count, is_first)
            return run_some_members(self, inputs, model_arg_count, part, is_first)

        return self._mapped.observe(lambda: run_in_parts(self, run, lambda: self.memory_width))

    def _run(self, inputs: Inputs, model_arg_count: int) -> Tensor:
        views, extras = self._refresh_views_and_spec(), self._list_extras()

        def run(part: slice) -> Tensor:
            own = inputs if part.stop - part.start == views.size else inputs.select_members(part)
            rows = extras if own is inputs else [t[part] for t in extras]
            flat = [*views.member_tensors(part), *rows, *own.tensors]
            function = self._call(own, model_arg_count, part)
            if isinstance(function, CompiledGraph):
                if self._verification.is_due(function):
                    self.backup = StepBackup((), self._updated_tensors())
                    return self._compare(function, flat, own, model_arg_count, part)
                self.backup = None  # the tensors may be written to at any time
                return function(flat)
            self.backup = StepBackup(self.array.body.buffers(), self._updated_tensors())
            try:
                return function(flat)
            except Exception as error:  # a branch that cannot be fused, taken for the first time
                if self.way.compiled or own is not inputs or not is_fusing_error(error):
                    raise
                self._stop_compiling(error if isinstance(error, TracingError) else TracingError(str(error)))
            return self._run_uncompiled(inputs, model_arg_count)

        return self._mapped.observe(
            lambda: run_in_parts(self, run, lambda: 1 if self.way.ways is None else self.way.width)
        )

    def _compare(
        self, function: CompiledGraph, flat: list[Tensor], inputs: Inputs, model_arg_count: int, part: slice
    ) -> Tensor:
        """Make a step and compare it with the uncompiled one; compile no more if they differ."""
        assert self._views is not None
        plain = self.get_step_function(
            ExecutionMode(self.way.width, self.way.ways, compiled=False), inputs, model_arg_count, part
        )
        names = list(self._views.stacked)
        trained = [names.index(name) for name in self._views.trained]
        losses, agree = run_and_compare(
            function, plain, flat, trained, self.optimiser.update_tolerance, self._tracer.lowering()
        )
        if agree is None:
            narrow(self, part.stop - part.start)
        elif not agree:
            function.forget()
            warnings.warn(
                "the compiled step differs from the uncompiled one beyond rounding; "
                f"up to {self._verification.unverified} steps before this one may differ too, "
                "and further steps run operator by operator",
                FusionWarning,
                stacklevel=4,
            )
            self.way = ExecutionMode(self.way.width, self.way.ways, compiled=False)
            self._replay.allowed = False
        return losses

    @property
    def spec(self) -> StepSpec:
        """The parts of the step."""
        self._refresh_views_and_spec()
        assert self._step_spec is not None
        return self._step_spec

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
                self._tracer.clear()
        return self._views

    def _extras(self) -> tuple[list[dict[str, Tensor]], list[Tensor], dict[str, Tensor]]:
        """Return the per-member vectors of `MemberRows`: hyper-parameters, maximum norm and loss scales."""
        clip, scaler = self._clip, self._scaler
        return (
            self.optimiser.hyper_tensors(),
            [] if clip is None else [vector("clip_norm", clip, len(self.array))],
            {} if scaler is None else {"scales": scaler.scales, "streaks": scaler.streaks, **scaler.numbers},
        )

    def _list_extras(self) -> list[Tensor]:
        """Return the tensors of `_extras` in a fixed order, that of `MemberRows.flat`."""
        hyper, max_norm, scaling = self._extras()
        return [*(row for own in hyper for row in own.values()), *max_norm, *scaling.values()]

    def keep(self, rows: Sequence[int]) -> None:
        """Keep the maximum norms and the criteria of the members *rows*."""
        if isinstance(self.loss, MemberCriteria):
            self.loss.keep(rows)
        if isinstance(self._clip, list | tuple | Tensor) and len(self._clip) > max(rows):
            self._clip = [self._clip[row] for row in rows]

    def extend(self, count: int) -> None:
        """Give *count* new members the last member's maximum norm and criterion, if each has its own."""
        if isinstance(self.loss, MemberCriteria):
            self.loss.extend(count)
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
        assert self._step_spec is not None
        key = self._key(way, inputs, part)
        if key not in self._step_functions:
            self._step_functions[key] = MemberStep(
                self._step_spec, self.member_rows(part), inputs, model_arg_count, way.ways
            )
        if not way.compiled:
            return self._step_functions[key]
        found = self._tracer.find_version(key)
        if found is None:
            start_s = time.perf_counter()
            rows, known = self.member_rows(part).flat()[0], self._known_tensors()
            flat, spec = [*rows, *inputs.tensors], self._step_spec
            form = (key, model_arg_count, spec.update, spec.trained, spec.amp, describe_array(self.array))
            found = self._tracer.add_version(
                key, self._step_functions[key], flat, known, form, kept_count=len(rows)
            )
            self.compile_s += time.perf_counter() - start_s
        return found

    def _key(self, way: ExecutionMode, inputs: Inputs, part: slice) -> Any:
        shapes = tuple((t.shape, t.dtype, t.device) for t in inputs.tensors)
        width = part.stop - part.start
        return (
            width,
            way.ways,
            shapes,
            inputs.per_member,
            inputs.argument_flags,
            inputs.spec,
            self.array.training,
        )

    def _call(self, inputs: Inputs, model_arg_count: int, part: slice) -> StepFunction:
        is_replayed = self._replay.allowed and part.stop - part.start == len(self.array)
        if not self.way.compiled and not is_replayed:
            return self.get_step_function(self.way, inputs, model_arg_count, part)
        key = self._key(self.way, inputs, part)
        if (function := self._tracer.find_version(key)) is not None:
            return function
        if is_replayed:
            try:
                way = ExecutionMode(self.way.width, self.way.ways, compiled=True)
                with refused_recomputation():
                    return self.get_step_function(way, inputs, model_arg_count, part)
            except TracingError:  # no compiling was asked for, so that this is no loss to announce
                self._replay.allowed = False
                return self.get_step_function(self.way, inputs, model_arg_count, part)
        compiled = self._tracer.count
        threshold_s = self.compile_s / compiled if compiled else COMPILE_S
        if not compiled or self._is_graph or self._spent_s.get(key, 0.0) >= threshold_s:
            self._spent_s[key] = 0.0
            try:
                return self.get_step_function(self.way, inputs, model_arg_count, part)
            except TracingError as why:
                warnings.warn(f"the step cannot be compiled: {why}", FusionWarning, stacklevel=5)
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

"""One training step of all members: compiled as a whole where that can be, operator by operator where not."""

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
from wattline.fusion.module_state import settings_of
from wattline.fusion.optim import ArrayOptimizer
from wattline.fusion.optim.clip import clip_grad_norm_
from wattline.fusion.optim.hyperparameters import vector
from wattline.fusion.optim.loss_scale import Scaler
from wattline.fusion.step import listeners
from wattline.fusion.step.execution_mode import Way
from wattline.fusion.step.malloc import keep_memory
from wattline.fusion.step.tensor_views import Bound
from wattline.fusion.step.traced import Call, NotTraced, Recipe, Rows, compile_step, make_step
from wattline.fusion.step.width_choice import COMPILE_S, Tried, choose


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
    """`step(x, target)`: forward, `loss(output, target)`, backward and update of all members; their losses.

    *width* members are trained at a time: all of them, or a number, or "auto", which measures and chooses,
    not to fuse at all included; *steps*, how many there will be, says what compiling may cost. Without a
    compiler, and where a model cannot be written down as operators, steps are run operator by operator, which
    is announced. *amp* is the type to compute in (torch.bfloat16); with torch.float16 give a *scaler*.
    *clip_norm* limits the norm of each member's gradient: one number, or one per member.
    """
    if isinstance(width, str) and width != "auto":
        raise ConfigError(f"width is {width!r}, expected a number of members or 'auto'")
    if isinstance(width, int) and width < 1:
        raise ConfigError(f"width must be at least 1, got {width}")
    if amp is torch.float16 and scaler is None:
        raise ConfigError("float16 loses small gradients", "give scaler=wattline.fusion.Scaler(len(array))")
    if {id(p) for p in optimiser.parameters()} - {id(p) for p in array.parameters()}:
        raise ConfigError("the optimiser has parameters that are not the array's")
    return Step(array, loss, optimiser, width, compile, amp, clip_norm, scaler, steps)


class Step:
    """What `train_step` makes: `way` says how steps are run, `compile_s` what compiling has cost so far.

    `tried` is what "auto" has chosen from. The first step runs operator by operator, to find out which parts
    of the model can be fused; the second compiles. A batch of another shape, or another number of members,
    is compiled for once it has cost as much time as that would. Gradients are not kept in `.grad`.
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
        self.way = Way(width if isinstance(width, int) else None, array.ways, compile)
        self.tried: list[Tried] = []
        self.compile_s = 0.0
        self._auto = width == "auto"
        self._amp = amp
        self._clip = clip_norm
        self._scaler = scaler
        self._steps = steps
        self._settled: set[bool] = set()
        self._whole = False
        self._bound: Bound | None = None
        self._recipe: Recipe | None = None
        self._flags: list[tuple[int, int]] = []
        self._calls: dict[Any, Call] = {}
        self._spent_s: dict[Any, float] = {}
        array.follow(self)
        if scaler is not None:
            array.follow(scaler)
        if next(array.parameters()).device.type == "cpu":
            keep_memory()

    def __call__(self, *batch: Any, members: bool | Sequence[bool] = False) -> Tensor:
        """One step on a batch: the model's input (a tuple: several), then what the loss gets beside that.

        *members*: tensors of the batch have a row for each member; or a list that says so of each.
        """
        given = batch[0] if isinstance(batch[0], tuple) else (batch[0],)
        flags = [members] * len(batch) if isinstance(members, bool) else list(members)
        if len(flags) != len(batch):
            raise NotFusible(f"members has {len(flags)} entries, expected one for each of {len(batch)}")
        inputs = Inputs.of((*given, *batch[1:]), {}, [flags[0]] * len(given) + flags[1:], len(self.array))
        if self.array.training not in self._settled:
            before = settings_of(self.array.body)
            losses = self._settle(inputs, len(given))
            self._settled.add(self.array.training)
            if settings_of(self.array.body) != before and not self._whole:
                self._whole = True
                why = "its forward changes attributes of modules"
                warnings.warn(f"the step cannot be compiled: {why}", FusionWarning, stacklevel=2)
                self.way = Way(None, self.array.ways, compiled=False)
            return losses
        if self._whole or self.array.carries:  # only the array itself knows how
            return self._settle(inputs, len(given))
        if self._auto:
            self._auto = False
            self.way, self.tried = choose(self, inputs, len(given), self._steps)
        return self._run(inputs, len(given))

    def _settle(self, inputs: Inputs, count: int) -> Tensor:
        """All members at once through the array itself, which finds out what cannot be fused."""
        args, flags, opt, scaler = inputs.build(inputs.tensors)[0], inputs.flags, self.optimiser, self._scaler
        opt.zero_grad()
        device = next(self.array.parameters()).device.type
        with torch.autocast(device, self._amp, enabled=self._amp is not None):
            out = self.array(*args[:count], members=flags[:count])
            losses: Tensor = self.array.each(self.loss, out, *args[count:], members=[True, *flags[count:]])
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

    def _run(self, inputs: Inputs, count: int) -> Tensor:
        bound, extras = self._bind(), tree_flatten(self._extras())[0]
        losses = []
        for part in bound.parts(1 if self.way.ways is None else self.way.width):
            own = inputs if part.stop - part.start == bound.size else inputs.rows(part)
            flat = [*bound.fixed(part), *(t[part] for t in extras), *own.tensors]
            losses.append(self._call(own, count, part)(flat))
        listeners.beat(bound.size)
        return losses[0] if len(losses) == 1 else torch.cat(losses)

    def _bind(self) -> Bound:
        """The tensors to work on, and the recipe: made again when what they were made of has changed."""
        if self._bound is None or not self._bound.holds():
            self._bound, self._flags = Bound(self.array, self.optimiser), []
        hyper = self.optimiser.hyper()
        deciding = [h[name] for h in hyper for name in ("weight_decay", "momentum") if name in h]
        flags = [(id(t), t._version) for t in deciding]
        if flags != self._flags:
            self._flags = flags
            update = self.optimiser.update()
            if self._recipe is None or (update, self._bound.trained) != (
                self._recipe.update,
                self._recipe.trained,
            ):
                self._recipe = Recipe(self.array.body, self.loss, update, self._bound.trained, self._amp)
                self._calls.clear()
        return self._bound

    def _extras(self) -> tuple[list[dict[str, Tensor]], list[Tensor], dict[str, Tensor]]:
        """What has a number for each member: hyper-parameters, the largest norm, scales; see `Rows`."""
        clip, scaler = self._clip, self._scaler
        return (
            self.optimiser.hyper(),
            [] if clip is None else [vector("clip_norm", clip, len(self.array))],
            {} if scaler is None else {"scales": scaler.scales, "streaks": scaler.streaks, **scaler.numbers},
        )

    def keep(self, rows: Sequence[int]) -> None:
        """Members leave: a norm of each stays with those who stay."""
        if isinstance(self._clip, list | tuple | Tensor) and len(self._clip) > max(rows):
            self._clip = [self._clip[row] for row in rows]

    def extend(self, count: int) -> None:
        """Members join: where each has its own largest norm, they get that of the last."""
        if isinstance(self._clip, list | tuple | Tensor):
            self._clip = [*self._clip, *[self._clip[-1]] * count]

    def rows(self, part: slice) -> Rows:
        """The tensors of some members."""
        bound = self._bind()
        own = (bound.stacked, bound.tensors, *self._extras())
        stacked, tensors, *extras = tree_map(lambda t: t[part], own)
        return Rows(stacked, bound.common, tensors, *extras)

    def made(self, way: Way, inputs: Inputs, count: int, part: slice) -> Call:
        """The step of these members in this way, made or compiled if it is not known; `NotTraced`."""
        self._bind()
        key = self._key(way, inputs, part)
        if key not in self._calls:
            assert self._recipe is not None
            make = compile_step if way.compiled else make_step
            start_s = time.perf_counter()
            self._calls[key] = make(self._recipe, self.rows(part), inputs, count, way.ways)
            if way.compiled:
                self.compile_s += time.perf_counter() - start_s
        return self._calls[key]

    def _key(self, way: Way, inputs: Inputs, part: slice) -> Any:
        shapes = tuple((t.shape, t.dtype) for t in inputs.tensors)
        assert self._bound is not None
        settings = self._bound.settings  # such as whether it is trained, and the p of dropout
        return part.stop - part.start, way.ways, way.compiled, shapes, inputs.own, settings

    def _call(self, inputs: Inputs, count: int, part: slice) -> Call:
        key = self._key(self.way, inputs, part)
        found = self._calls.get(key)
        if found is not None:
            return found
        if not self.way.compiled:
            return self.made(self.way, inputs, count, part)
        compiled = sum(k[2] for k in self._calls)
        worth_s = self.compile_s / compiled if compiled else COMPILE_S
        if not compiled or self._spent_s.get(key, 0.0) >= worth_s:
            try:
                return self.made(self.way, inputs, count, part)
            except NotTraced as why:
                warnings.warn(f"the step cannot be compiled: {why}", FusionWarning, stacklevel=4)
                self.way = Way(self.way.width, self.way.ways, compiled=False)
                return self.made(self.way, inputs, count, part)
        plain = self.made(Way(self.way.width, self.way.ways, compiled=False), inputs, count, part)

        def timed(tensors: Sequence[Tensor]) -> Tensor:
            start_s = time.perf_counter()
            losses = plain(tensors)
            self._spent_s[key] = self._spent_s.get(key, 0.0) + time.perf_counter() - start_s
            return losses

        return timed

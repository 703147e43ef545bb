"""`FusedArray`: several models of one architecture as one module, each tensor stacked over the members."""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from wattline.errors import NotFusible
from wattline.fusion.architecture_check import check_same_architecture
from wattline.fusion.lowering.error_kinds import is_fusing_error
from wattline.fusion.lowering.fallback import (
    FusionWarning,
    run_with_fallback,
    set_per_member,
    warn_of_clipping,
    warn_of_mean,
    warn_per_member,
    warn_unbatched,
)
from wattline.fusion.lowering.forward import AttributePath, map_members, map_members_one_by_one, run_forward
from wattline.fusion.lowering.host_random import host_rng_state, is_same_rng_state, set_host_rng_state
from wattline.fusion.lowering.inputs import Inputs
from wattline.fusion.lowering.layout import ModelLayout
from wattline.fusion.lowering.per_member import original_forwards, per_member_reason
from wattline.fusion.lowering.rules import Ways
from wattline.fusion.member_criteria import MemberCriteria, share_criteria
from wattline.fusion.member_numbers import (
    MARK,
    assign_member_numbers,
    check_numbers,
    find_device,
    find_differing_numbers,
    kept_numbers,
    read_numbers,
    register_numbers,
    restore_attributes_of_member,
)
from wattline.fusion.module_state import TORCH_ATTRIBUTES, named_tensors
from wattline.fusion.optim import find_optimisers
from wattline.fusion.stacking import stack_models


def fuse(models: Sequence[nn.Module]) -> FusedArray:
    """Return one module that computes *models*, each with its own weights, buffers and random numbers.

    The models may differ only in the values of their tensors and in attributes that are floats; `NotFusible`
    names any other difference. The array copies the weights and leaves *models* unchanged. Frozen parameters
    and buffers that are one object in all models are stored once and not copied; frozen parameters of equal
    value are stored once.
    """
    if isinstance(models, nn.Module):
        raise NotFusible(
            f"got one model, a {type(models).__name__}, expected a list of models", "pass fuse([model, …])"
        )
    models = list(models)
    check_same_architecture(models)
    body, common, carried = stack_models(models)
    array = FusedArray(body, len(models), frozenset(common))
    array._carried.update(carried)
    return array


def _is_of_torch(fn: Any) -> bool:
    """Return whether PyTorch has written *fn*, which then draws no random numbers of Python."""
    return str(getattr(type(fn) if isinstance(fn, nn.Module) else fn, "__module__", "")).startswith("torch.")


_CLIP_GRAD_NORM = inspect.unwrap(nn.utils.clip_grad_norm_).__code__


class _SharedDraws(Exception):
    """A function has drawn one random number for all members."""


class FusedArray(nn.Module):
    """The module that `fuse` returns; `array(x)` stacks the members' outputs along a leading dimension.

    `body` is a module of the members' class; its tensors have one row per member. `train`, `eval`, `to` and
    the like work as for any module.
    """

    def __init__(self, body: nn.Module, size: int, common: frozenset[str]) -> None:
        super().__init__()
        self.body = body
        self.training = body.training
        self._size = size
        self._common = common
        self._carried: dict[AttributePath, Tensor] = {}
        self._probed: set[bool] = set()
        self._warned: list[Any] = []
        self._unbatched: set[str] = set()
        self._followers: WeakSet[Any] = WeakSet()
        self._has_seen_gradient = False
        self._separate: list[Any] = []
        self._known_code: set[Any] = set()  # of functions passed to `each`
        self._layout: ModelLayout | None = None
        self._criteria: MemberCriteria | None = None
        has_images = any(isinstance(module, nn.Conv2d) for module in body.modules())
        # On a CPU, convolutions of all members take much less time with channels last in memory.
        self.ways = Ways(last=has_images and all(parameter.is_cpu for parameter in body.parameters()))

    def __getstate__(self) -> dict[str, Any]:
        # Copies start without followers, and list their own tensors.
        fresh: dict[str, Any] = {
            "_followers": None,
            "_warned": [],
            "_layout": None,
            "_known_code": set(),
            "_criteria": None,
        }
        return {**self.__dict__, **fresh}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._followers = WeakSet()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; one of the members, such as a temperature, is set in the body."""
        body = self.__dict__.get("_modules", {}).get("body")
        is_own = name.startswith("_") or name in self.__dict__ or name in TORCH_ATTRIBUTES or name == "ways"
        if body is not None and not is_own and assign_member_numbers(body, name, value, self._size):
            return
        if (
            body is not None
            and not is_own
            and name in vars(body)
            and not isinstance(value, Tensor | nn.Module)
        ):
            setattr(body, name, value)
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            body = self.__dict__.get("_modules", {}).get("body")
            if body is not None and name in vars(body).get(MARK, ()):
                return body._buffers[name]
            if body is None or name not in vars(body) or name in TORCH_ATTRIBUTES:
                raise
            return vars(body)[name]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FusedArray:
        """Apply a conversion (`to`, `half`, …) to all tensors; numbers of members keep their type."""
        with kept_numbers(self.body):
            return super()._apply(fn, recurse)

    def __len__(self) -> int:
        return self._size

    def extra_repr(self) -> str:
        """Return the width, for `print(array)`."""
        return f"{self._size} members"

    @property
    def stacked(self) -> dict[str, Tensor]:
        """Tensors of which each member has its own, [B, …], by their name in a member."""
        return {name: t for name, t in named_tensors(self.body).items() if name not in self._common}

    @property
    def common(self) -> dict[str, Tensor]:
        """Frozen parameters that all members share, by name."""
        return {name: t for name, t in named_tensors(self.body).items() if name in self._common}

    def forward(self, *args: Any, members: bool | Sequence[bool] = False, **kwargs: Any) -> Any:
        """Return the outputs of all members, with a leading member dimension.

        All members get the same arguments. With *members* true, tensors have a leading dimension B and each
        member gets its row; a list of flags sets this per positional argument.
        """
        inputs = Inputs.from_call(args, kwargs, members, self._size)
        self._layout = layout = (self._layout or ModelLayout(self.body)).refresh()
        if layout.has_numbers:
            check_numbers(self.body, self._size)
        stacked = {name: t for name, t in layout.tensors.items() if name not in self._common}
        common = [(name, layout.tensors[name]) for name in self._common]
        buffers = [t for t in layout.tensors.values() if not isinstance(t, nn.Parameter)]
        carried = dict(self._carried)
        fixed = [t for t in inputs.tensors if not t.is_inference()]
        versions = [t._version for t in fixed]

        def attempt() -> Any:
            nonlocal carried
            if versions != [t._version for t in fixed]:
                raise NotFusible(
                    "the forward writes into its input and cannot be fused", "pass input.clone()"
                )
            carried = dict(self._carried)
            state = [t._version for _, t in common]
            out = run_forward(layout, dict(stacked), {}, carried, inputs, self.ways, unbatched=unbatched)
            for (name, tensor), version in zip(common, state, strict=True):
                if tensor._version != version:
                    raise NotFusible(f"{name} is shared by all members, but the forward writes to it")
            return out

        new = self.training not in self._probed
        unbatched: set[str] | None = set() if new else None
        out = run_with_fallback(layout, buffers, attempt, watch_rng=new)
        self._carried = carried
        if new:
            self._probed.add(self.training)
            warn_unbatched((unbatched or set()) - self._unbatched)
            self._unbatched |= unbatched or set()
        return out

    def loss(
        self,
        fn: Callable[..., Tensor] | Sequence[nn.Module],
        output: Any,
        target: Any = None,
        *,
        members: bool = False,
    ) -> Tensor:
        """Return `fn(output, target)` of each member as a vector [B]; *fn* may be a list of criteria.

        Members share no weights, so the gradient of the sum is each member's own gradient. *output* is an
        output of the array. All members get the same *target*; with *members* true each gets its row.
        """
        args, flags = (output,) if target is None else (output, target), [True, members]
        if isinstance(fn, list | tuple):
            self._criteria = share_criteria(fn, self._size, self._criteria)
            fn, args = self._criteria, (*args, self._criteria.read_rows(find_device(self.body)))
            flags = [*flags[: len(args) - 1], True]
        assert callable(fn)
        losses: Tensor = self.each(fn, *args, members=flags[: len(args)])
        if not self._has_seen_gradient and isinstance(losses, Tensor) and losses.requires_grad:
            losses.register_hook(self._check_gradient)
        return losses

    def _check_gradient(self, gradient: Tensor) -> None:
        """Warn if the mean of the losses is differentiated instead of their sum."""
        if self._has_seen_gradient:
            return
        self._has_seen_gradient = True
        warn_of_mean(gradient, self._size)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Yield the stacked parameters; warn where PyTorch would clip all members by one norm."""
        for at, parameter in enumerate(super().parameters(recurse)):
            if at == 0 and sys._getframe(1).f_code is _CLIP_GRAD_NORM:
                warn_of_clipping()
            yield parameter

    def each(self, fn: Callable[..., Any], *args: Any, members: bool | Sequence[bool] = True) -> Any:
        """Return `fn(*args)` of each member; *members* flags the arguments that have a row per member."""
        if fn in self._separate:
            return map_members_one_by_one(fn, args, members, self._size)
        code = getattr(fn, "__code__", type(fn))
        unbatched: set[str] | None = None if code in self._known_code else set()
        rng_state = None if _is_of_torch(fn) else host_rng_state()
        try:
            out = map_members(fn, args, members, self._size, self.ways, unbatched)
            if rng_state is not None and not is_same_rng_state(rng_state, host_rng_state()):
                set_host_rng_state(rng_state)
                raise _SharedDraws(
                    "it draws random numbers from Python or NumPy, which members must not share"
                )
        except Exception as error:
            if not is_fusing_error(error):
                raise
            out = map_members_one_by_one(fn, args, members, self._size)
            if fn not in self._warned:
                self._warned.append(fn)
                warn_per_member(getattr(fn, "__name__", type(fn).__name__), error)
        else:
            if unbatched is not None:
                self._known_code.add(code)
                warn_unbatched(unbatched - self._unbatched)
                self._unbatched |= unbatched
        return out

    def run_separately(self, fn: Callable[..., Any], reason: str) -> None:
        """Run the model and *fn* once for each member from now on, so that members share no draws."""
        warnings.warn(
            f"the step runs once for each member from now on: {reason}, which members have shared so far",
            FusionWarning,
            stacklevel=5,
        )
        self._separate.append(fn)
        if per_member_reason(self.body) is None:
            set_per_member(self.body, reason, is_model=True)

    def is_separate(self, fn: Callable[..., Any]) -> bool:
        """Return whether *fn* or the model itself runs once for each member."""
        return fn in self._warned or per_member_reason(self.body) is not None

    @property
    def carries(self) -> bool:
        """True if modules keep tensors in plain attributes from one call to the next."""
        return bool(self._carried)

    def drop(self, indices: Sequence[int]) -> None:
        """Remove members; the rows of the others move up, also in optimisers, schedules and scalers."""
        removed = {self._check_index(index) for index in indices}
        rows = [index for index in range(self._size) if index not in removed]
        if not rows:
            raise NotFusible("all members would leave, expected at least one to remain")
        self._resize(lambda _, t: t[rows].clone(), len(rows))
        for optimiser in find_optimisers(self.parameters()):
            optimiser.keep(rows, {p: p for p in self.parameters()})
        for follower in self._followers:
            follower.keep(rows)

    def add(self, models: Sequence[nn.Module], **hyper: Any) -> None:
        """Append new members; *hyper* are their hyper-parameters for optimisers and schedules.

        A number applies to all of *models*, a list has one value per model. A missing hyper-parameter is
        taken from the optimiser if it was created with one value for all members.
        """
        models = list(models)
        if not models:
            return
        if self._carried:
            raise NotFusible(
                "modules keep tensors from one call to the next, which joining members do not have"
            )
        first = self.member(0)
        check_same_architecture([first, *models])
        states = [named_tensors(model) for model in models]
        for name, tensor in self.common.items():
            if any(not torch.equal(state[name], tensor) for state in states):
                raise NotFusible(f"{name} is shared by all members, but a joining model has another value")
        optimisers = find_optimisers(self.parameters())
        for optimiser in optimisers:  # raises before anything has changed
            optimiser.check_joining(len(models), hyper)
        for path, name in find_differing_numbers([first, *models]):
            if name not in vars(module := self.body.get_submodule(path)).get(MARK, ()):
                register_numbers(module, name, [vars(module)[name]] * self._size, find_device(self.body))
        new = [state | read_numbers(model, self.body) for state, model in zip(states, models, strict=True)]
        self._resize(
            lambda name, t: torch.cat(
                [t, torch.stack([s[name].detach() for s in new]).to(t.device, t.dtype)]
            ),
            self._size + len(models),
        )
        for optimiser in optimisers:
            optimiser.extend(len(models), {p: p for p in self.parameters()}, **hyper)
        for follower in self._followers:
            follower.extend(len(models))

    def follow(self, follower: Any) -> None:
        """Call `keep(rows)` and `extend(count)` of *follower* (a `Scaler`) when members leave or join."""
        self._followers.add(follower)

    def _resize(self, change: Callable[[str, Tensor], Tensor], size: int) -> None:
        with torch.no_grad():
            for name, tensor in self.stacked.items():
                data = change(name, tensor.data)
                # While the graph of an earlier step is alive, PyTorch accumulates gradients in the node
                # created for the old shape. Assigning data of another type discards that node.
                other = torch.float64 if data.dtype == torch.float32 else torch.float32
                tensor.data = data.new_empty(0, dtype=other)
                tensor.data = data
                tensor.grad = None
            self._carried = {at: change("", t) for at, t in self._carried.items()}
        self._size = size

    def member_state_dict(self, index: int) -> dict[str, Tensor]:
        """Return the state dict of one member, in the format of its own module."""
        return self.member(index).state_dict()

    def member(self, index: int) -> nn.Module:
        """Return one member as an ordinary module with copies of its weights."""
        index = self._check_index(index)
        memo: dict[int, Any] = {}
        for tensor in self.stacked.values():
            row = tensor.detach()[index].clone()
            memo[id(tensor)] = (
                nn.Parameter(row, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else row
            )
        for tensor in self.common.values():
            memo[id(tensor)] = tensor
        with original_forwards(self.body):
            model = copy.deepcopy(self.body, memo)
        for (path, name), tensor in self._carried.items():
            model.get_submodule(path).__dict__[name] = tensor[index].clone()
        restore_attributes_of_member(model)
        return model

    def split(self) -> list[nn.Module]:
        """Return all members as ordinary modules with copies of their weights."""
        return [self.member(index) for index in range(self._size)]

    def load_member(self, index: int, state: dict[str, Tensor]) -> None:
        """Load weights and buffers of one member from an ordinary module's state dict."""
        model = copy.deepcopy(self.member(index))  # also copies the shared tensors
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            raise NotFusible(f"member {index} cannot be loaded: {error}") from None
        new = named_tensors(model)
        for name, tensor in self.common.items():
            if not torch.equal(tensor, new[name]):
                raise NotFusible(f"{name} is shared by all members, but the state dict has another value")
        with torch.no_grad():
            for name, tensor in self.stacked.items():
                if name in new:  # a number of the member is none of its tensors
                    tensor[index].copy_(new[name])

    def _check_index(self, index: int) -> int:
        if not -self._size <= index < self._size:
            raise NotFusible(f"no member {index}, the array has {self._size} members")
        return index % self._size

"""Train a member of an array as an ordinary model, on the batches of recorded steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from wattline.errors import ConfigError
from wattline.fusion.array import FusedArray
from wattline.fusion.member_criteria import MemberCriteria
from wattline.fusion.module_state import flatten_tree, named_tensors
from wattline.fusion.optim import ArrayOptimizer
from wattline.fusion.optim.member_state import ordinary_class
from wattline.fusion.step_recorder import OutputOf, RecordedCall, RecordedStep
from wattline.fusion.torch_internals import tree_map_only


class OrdinaryTraining:
    """Training of one member without fusion: `loss.backward()` and the step of an optimiser of `torch.optim`.

    The model is `array.member(member)`. Optimisers continue from the member's state, with its
    hyper-parameters. `run_step()` repeats the recorded *steps* in a circle. With *compiled*, the loss (so
    forward and backward) and the update are two functions under `torch.compile`.
    """

    def __init__(
        self, array: FusedArray, steps: Sequence[RecordedStep], member: int, compiled: bool = False
    ) -> None:
        self.model = array.member(member)
        self._device = next(self.model.parameters()).device.type
        optimisers = {id(step.optimiser): step.optimiser for step in steps}
        self.optimisers = {
            key: build_member_optimiser(optimiser, array, self.model, member)
            for key, optimiser in optimisers.items()
        }
        self._steps = itertools.cycle([self._build_step(step, member, compiled) for step in steps])

    def run_step(self) -> None:
        """Make the next step."""
        next(self._steps)()

    def _build_step(self, step: RecordedStep, member: int, compiled: bool) -> Callable[[], None]:
        """Return a function that makes one step; batches are indexed here, so that steps are plain ones."""
        calls = [_select_member(call, member) for call in step.calls]
        optimiser = self.optimisers[id(step.optimiser)]
        params = [param for group in optimiser.param_groups for param in group["params"]]
        max_norm = _pick(step.clip_norm, member)
        scaler = torch.amp.GradScaler(self._device) if step.is_scaled else None
        compute = _build_simple_loss(self.model, calls, step) or _build_loss(self.model, calls, step)
        update: Callable[[], Any] = optimiser.step
        if compiled:
            compute, update = torch.compile(compute), torch.compile(update)

        def run() -> None:
            optimiser.zero_grad()
            with nullcontext() if step.amp is None else torch.autocast(self._device, step.amp):
                loss = compute()
            (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is not None:
                scaler.unscale_(optimiser)
            if max_norm is not None:
                nn.utils.clip_grad_norm_(params, max_norm)
            if scaler is None:
                update()
            else:
                scaler.step(optimiser)
                scaler.update()

        return run


def build_member_optimiser(
    optimiser: ArrayOptimizer, array: FusedArray, model: nn.Module, member: int
) -> torch.optim.Optimizer:
    """Return the ordinary optimiser of *model*, a member of *array*, with its hyper-parameters and state."""
    names = {id(tensor): name for name, tensor in named_tensors(array.body).items()}
    own = named_tensors(model)
    groups = [group["params"] for group in optimiser.param_groups]
    if any(id(param) not in names for group in groups for param in group):
        raise ConfigError(
            f"an optimiser ({type(optimiser).__name__}) also trains parameters outside of the array, "
            "which cannot be measured",
            "give each array an optimiser of its own",
        )
    kind = ordinary_class(optimiser)
    plain: torch.optim.Optimizer = kind([{"params": [own[names[id(p)]] for p in group]} for group in groups])
    plain.load_state_dict(optimiser.member_state_dict(member))
    return plain


def count_batch(step: RecordedStep) -> int:
    """Return the samples of a batch: the length of the first tensor of the model's arguments."""
    call = step.calls[0]
    flags = (*call.flags, *[call.keyword_flag] * len(call.kwargs))
    for value, has_rows in zip((*call.args, *call.kwargs.values()), flags, strict=True):
        for leaf in flatten_tree(value)[0]:
            if isinstance(leaf, Tensor) and leaf.ndim > has_rows:
                return leaf.shape[1 if has_rows else 0]
    return 1


def _select_member(call: RecordedCall, member: int) -> RecordedCall:
    """Return *call* with the arguments of one member."""

    def select(value: Any, has_rows: bool) -> Any:
        return tree_map_only(Tensor, lambda tensor: tensor[member], value) if has_rows else value

    args = tuple(select(arg, flag) for arg, flag in zip(call.args, call.flags, strict=True))
    kwargs = {name: select(value, call.keyword_flag) for name, value in call.kwargs.items()}
    if isinstance(call.function, MemberCriteria):
        args = args[:-1] if len(args) > 1 and isinstance(args[-1], dict) else args  # the criterion has them
        return RecordedCall(call.function.criteria[member], args, kwargs, call.flags[: len(args)])
    return RecordedCall(call.function, args, kwargs, call.flags)


def _build_simple_loss(
    model: nn.Module, calls: list[RecordedCall], step: RecordedStep
) -> Callable[[], Tensor] | None:
    """Return `loss(model(x), …)` of a step that has no other calls; None for any other step."""
    if len(calls) != 2 or calls[1].function is None or step.roots != (1,):
        return None
    first, *rest = calls[1].args
    if not isinstance(first, OutputOf) or first.leaf is not None:
        return None
    if any(isinstance(leaf, OutputOf) for leaf in flatten_tree(rest)[0]):
        return None
    args, kwargs, loss = calls[0].args, calls[0].kwargs, calls[1].function
    return lambda: loss(model(*args, **kwargs), *rest)


def _build_loss(model: nn.Module, calls: list[RecordedCall], step: RecordedStep) -> Callable[[], Tensor]:
    """Return the sum of the losses of any step; without a loss, the sum of the outputs of the model."""

    def compute() -> Tensor:
        outputs: list[Any] = []

        def resolve(value: Any) -> Any:
            return value if isinstance(value, Tensor) else tree_map_only(OutputOf, find_output, value)

        def find_output(where: OutputOf) -> Any:
            out = outputs[where.call]
            return out if where.leaf is None else flatten_tree(out)[0][where.leaf]

        for call in calls:
            args = [resolve(arg) for arg in call.args]
            kwargs = {name: resolve(value) for name, value in call.kwargs.items()}
            outputs.append((model if call.function is None else call.function)(*args, **kwargs))
        leaves = [leaf for root in step.roots for leaf in flatten_tree(outputs[root])[0]]
        sums = [leaf.sum() for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
        return torch.stack(sums).sum() if len(sums) > 1 else sums[0]

    return compute


def _pick(value: Any, member: int) -> Any:
    return value[member] if isinstance(value, list | tuple | Tensor) else value

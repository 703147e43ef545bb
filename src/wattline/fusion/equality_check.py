"""Compare the training of an array with separate training of its members."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from wattline.fusion.array import FusedArray, fuse
from wattline.fusion.optim import Adam, ArrayOptimizer
from wattline.fusion.optim.member_state import ordinary_class
from wattline.fusion.torch_internals import DropoutBase, tree_flatten


@dataclass(frozen=True)
class Check:
    """The largest absolute deviations between fused and separate members over some training steps.

    *drawn*: the forward draws random numbers outside of PyTorch's dropout modules, which are switched off
    during the check. Members draw their own numbers by design, and the deviations include that.
    """

    steps: int
    outputs: float
    gradients: float
    statistics: float  # buffers, such as the running statistics of batch norm
    weights: float
    drawn: bool

    @property
    def largest(self) -> float:
        """The largest deviation of all kinds."""
        return max(self.outputs, self.gradients, self.statistics, self.weights)

    def __str__(self) -> str:
        rows = ", ".join(
            f"{n} {getattr(self, n):.3g}" for n in ("outputs", "gradients", "statistics", "weights")
        )
        note = " (its forward draws random numbers, which differ by design)" if self.drawn else ""
        return f"largest deviation after {self.steps} steps: {rows}{note}"


def check(
    models: Sequence[nn.Module],
    batch: Any,
    *,
    loss: Callable[..., Tensor] | None = None,
    optimiser: type[ArrayOptimizer] = Adam,
    steps: int = 5,
    **hyper: Any,
) -> Check:
    """Train copies of *models* fused and separately on *batch*, and return the deviations.

    *batch* is the model's input, or a tuple of input and target. *loss* defaults to cross entropy for integer
    targets, the mean squared error for other targets, and the mean square of the output without a target.
    *hyper* are hyper-parameters of the optimisers: one value for all members or one per member.
    """
    inputs, target = (batch[0], batch[1]) if isinstance(batch, tuple) else (batch, None)
    loss = _default_loss(target) if loss is None else loss
    separate = [_disable_dropout(copy.deepcopy(model)) for model in models]
    array = fuse(separate)
    fused = optimiser(array, **hyper)
    kind = ordinary_class(fused)
    separate_optimisers = [
        kind([p for p in m.parameters() if p.requires_grad], **_member_options(fused, index))
        for index, m in enumerate(separate)
    ]
    drawn = _draws_random_numbers(separate[0], inputs)
    worst = dict.fromkeys(("outputs", "gradients", "statistics", "weights"), 0.0)
    for _ in range(steps):
        fused.zero_grad()
        out = array(inputs)
        array.loss(loss, out, target).sum().backward()
        for index, (model, opt) in enumerate(zip(separate, separate_optimisers, strict=True)):
            opt.zero_grad()
            separate_out = model(inputs)
            loss(separate_out, *([] if target is None else [target])).backward()
            pairs = zip(tree_flatten(separate_out)[0], tree_flatten(out)[0], strict=True)
            _record_deviation(worst, "outputs", [(a, b[index]) for a, b in pairs if isinstance(a, Tensor)])
            ours = dict(array.body.named_parameters())
            grads = [
                (p.grad, None if (g := ours[n].grad) is None else g[index])
                for n, p in model.named_parameters()
                if p.requires_grad
            ]
            _record_deviation(
                worst, "gradients", [(a, b) for a, b in grads if a is not None or b is not None]
            )
            opt.step()
        fused.step()
        _compare_state(worst, array, separate)
    return Check(steps, **worst, drawn=drawn)


def _compare_state(worst: dict[str, float], array: FusedArray, separate: Sequence[nn.Module]) -> None:
    stacked = array.stacked
    for index, model in enumerate(separate):
        weights = [(p, stacked[n][index]) for n, p in model.named_parameters() if n in stacked]
        _record_deviation(worst, "weights", weights)
        _record_deviation(
            worst, "statistics", [(b, stacked[n][index]) for n, b in model.named_buffers() if n in stacked]
        )


def _record_deviation(
    worst: dict[str, float], what: str, pairs: Sequence[tuple[Tensor | None, Tensor | None]]
) -> None:
    for a, b in pairs:
        if a is None or b is None:
            worst[what] = float("inf")
        elif a.numel():
            deviation = (a.detach().double() - b.detach().double()).abs()
            same = (a == b) | (a.isnan() & b.isnan())
            largest = float(
                torch.where(same, torch.zeros_like(deviation), deviation).nan_to_num(nan=torch.inf).max()
            )
            worst[what] = max(worst[what], largest)


def _member_options(fused: ArrayOptimizer, member: int) -> dict[str, Any]:
    group = fused.param_groups[0]
    fused.hyper_tensors()
    return {**fused.member_hyper(group, member), **{name: group[name] for name in fused.switches}}


def _default_loss(target: Any) -> Callable[..., Tensor]:
    if target is None:
        return _mean_square
    return F.mse_loss if torch.as_tensor(target).is_floating_point() else F.cross_entropy


def _mean_square(out: Any) -> Tensor:
    leaves = [t for t in tree_flatten(out)[0] if isinstance(t, Tensor) and t.is_floating_point()]
    return torch.stack([t.square().mean() for t in leaves]).sum()


def _disable_dropout(model: nn.Module) -> nn.Module:
    """Switch dropout off: members draw their own masks, so that outputs could not be compared."""
    for module in model.modules():
        if isinstance(module, DropoutBase):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0
    return model


def _draws_random_numbers(model: nn.Module, inputs: Any) -> bool:
    """Return whether two calls on the same input differ, which only random numbers can cause."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        outs = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            twin = copy.deepcopy(model)
            outs.append([t for t in tree_flatten(twin(inputs))[0] if isinstance(t, Tensor)])
    return any(not torch.equal(a, b) for a, b in zip(*outs, strict=True))

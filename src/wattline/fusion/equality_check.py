"""Whether an array does what its members would do by themselves: both are trained, and compared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from wattline.fusion.array import FusedArray, fuse
from wattline.fusion.optim import Adam, ArrayOptimizer


@dataclass(frozen=True)
class Check:
    """The largest absolute deviations between fused and separate members over some steps of training.

    *drawn*: the forward draws random numbers other than PyTorch's dropout modules, which are off during the
    check; members then draw their own by design, and the deviations show that.
    """

    steps: int
    outputs: float
    gradients: float
    statistics: float  # buffers, such as those of batch norm
    weights: float
    drawn: bool

    @property
    def largest(self) -> float:
        """Of all."""
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
    """Trains copies of *models* fused and separately on *batch*, side by side, and compares.

    *batch* is the model's input, or a tuple of it and the target. *loss* is by default cross entropy for
    whole targets, the mean square for others, and the mean of squares of the output without a target.
    *hyper* goes to the optimisers: one for all or one per member.
    """
    given, target = (batch[0], batch[1]) if isinstance(batch, tuple) else (batch, None)
    loss = _usual(target) if loss is None else loss
    separate = [_still(copy.deepcopy(model)) for model in models]
    array = fuse(separate)
    fused = optimiser(array, **hyper)
    ordinary = [
        fused.ordinary([p for p in m.parameters() if p.requires_grad], **_own(fused, index))
        for index, m in enumerate(separate)
    ]
    drawn = _draws(separate[0], given)
    worst = dict.fromkeys(("outputs", "gradients", "statistics", "weights"), 0.0)
    for _ in range(steps):
        fused.zero_grad()
        out = array(given)
        array.loss(loss, out, target).sum().backward()
        for index, (model, opt) in enumerate(zip(separate, ordinary, strict=True)):
            opt.zero_grad()
            alone = model(given)
            loss(alone, *([] if target is None else [target])).backward()
            pairs = zip(tree_flatten(alone)[0], tree_flatten(out)[0], strict=True)
            _note(worst, "outputs", [(a, b[index]) for a, b in pairs if isinstance(a, Tensor)])
            ours = dict(array.body.named_parameters())
            grads = [
                (p.grad, None if (g := ours[n].grad) is None else g[index])
                for n, p in model.named_parameters()
                if p.requires_grad
            ]
            _note(worst, "gradients", [(a, b) for a, b in grads if a is not None or b is not None])
            opt.step()
        fused.step()
        _compare_state(worst, array, separate)
    return Check(steps, **worst, drawn=drawn)


def _compare_state(worst: dict[str, float], array: FusedArray, separate: Sequence[nn.Module]) -> None:
    stacked = array.stacked
    for index, model in enumerate(separate):
        weights = [(p, stacked[n][index]) for n, p in model.named_parameters() if n in stacked]
        _note(worst, "weights", weights)
        _note(worst, "statistics", [(b, stacked[n][index]) for n, b in model.named_buffers() if n in stacked])


def _note(worst: dict[str, float], what: str, pairs: Sequence[tuple[Tensor | None, Tensor | None]]) -> None:
    for a, b in pairs:
        if a is None or b is None:
            worst[what] = float("inf")
        elif a.numel():
            apart = (a.detach().double() - b.detach().double()).abs()
            same = (a == b) | (a.isnan() & b.isnan())
            largest = float(torch.where(same, torch.zeros_like(apart), apart).nan_to_num(nan=torch.inf).max())
            worst[what] = max(worst[what], largest)


def _own(fused: ArrayOptimizer, member: int) -> dict[str, Any]:
    group = fused.param_groups[0]
    fused.hyper()
    return {**fused.member_hyper(group, member), **{name: group[name] for name in fused.switches}}


def _usual(target: Any) -> Callable[..., Tensor]:
    if target is None:
        return _squares
    return F.mse_loss if torch.as_tensor(target).is_floating_point() else F.cross_entropy


def _squares(out: Any) -> Tensor:
    leaves = [t for t in tree_flatten(out)[0] if isinstance(t, Tensor) and t.is_floating_point()]
    return torch.stack([t.square().mean() for t in leaves]).sum()


def _still(model: nn.Module) -> nn.Module:
    """The model without dropout: members draw their own masks, so that there is nothing to compare."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0
    return model


def _draws(model: nn.Module, given: Any) -> bool:
    """Whether two calls on the same input differ: only random numbers can be why."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        outs = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            twin = copy.deepcopy(model)
            outs.append([t for t in tree_flatten(twin(given))[0] if isinstance(t, Tensor)])
    return any(not torch.equal(a, b) for a, b in zip(*outs, strict=True))

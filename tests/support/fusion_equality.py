"""Comparison of a fused array with the same models trained one by one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only

from wattline.fusion import FusedArray, Ways, fuse

B = 3
STEPS = 6 if os.environ.get("HYPOTHESIS_PROFILE") == "test" else 2  # `make test` trains longer
TOLERANCE = 1e-10
ALL_WAYS = [Ways(last=last, pointwise=point) for last in (False, True) for point in (False, True)]


def build_members(
    make: Callable[[], nn.Module], size: int = B, dtype: torch.dtype = torch.float64
) -> list[nn.Module]:
    """Return models of one architecture with different weights."""
    models = []
    for seed in range(size):
        torch.manual_seed(seed)
        models.append(make().to(dtype))
    return models


def normal_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(100 + seed))


def integer_tensor(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(100 + seed))


def asymmetric_loss(out: Any, target: Any = None) -> Tensor:
    """Return a loss that distinguishes all elements of the output."""
    leaves = [t for t in tree_flatten(out)[0] if isinstance(t, Tensor) and t.is_floating_point()]
    parts = []
    for leaf in leaves:
        ramp = torch.arange(leaf.numel(), dtype=leaf.dtype).cos().reshape(leaf.shape)
        parts.append((leaf * ramp + 0.3 * leaf.square()).mean())
    return torch.stack(parts).sum()


def assert_same(fused: Any, alone: Any, what: str, tolerance: float = TOLERANCE) -> None:
    ours, theirs = tree_flatten(fused)[0], tree_flatten(alone)[0]
    assert len(ours) == len(theirs), what
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, Tensor) and isinstance(a, Tensor):
            if _are_close(a, b, tolerance):
                continue
            torch.testing.assert_close(
                a.detach(),
                b.detach(),
                rtol=tolerance,
                atol=tolerance,
                equal_nan=True,
                msg=lambda m: f"{what}: {m}",
            )
        else:
            assert a == b, what


def _are_close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Return whether `assert_close` would pass, at a tenth of its cost; False where only it can tell."""
    if a.is_nested or b.is_nested:
        return False
    return (
        a.layout == b.layout == torch.strided
        and a.dtype == b.dtype
        and a.dtype.is_floating_point
        and a.device == b.device
        and a.shape == b.shape
        and torch.allclose(a.detach(), b.detach(), rtol=tolerance, atol=tolerance, equal_nan=True)
    )


def select_member(out: Any, member: int) -> Any:
    return tree_map_only(Tensor, lambda t: t[member], out)


def clone_batch(batch: Any, *, grad: bool = False) -> Any:
    """Return a copy that a forward pass may write to."""
    return tree_map_only(Tensor, lambda t: t.clone().requires_grad_(grad and t.is_floating_point()), batch)


def assert_same_state(array: FusedArray, models: Sequence[nn.Module], tolerance: float = TOLERANCE) -> None:
    for index, model in enumerate(models):
        own = array.member_state_dict(index)
        theirs = model.state_dict()
        assert own.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert_same(own[name], tensor, f"{name} of member {index}", tolerance)


def assert_same_training(
    make: Callable[[], nn.Module],
    *args: Any,
    members: bool | Sequence[bool] = False,
    steps: int = 3,
    ways: Ways | None = None,
    loss: Callable[..., Tensor] = asymmetric_loss,
    target: Any = None,
    kwargs: dict[str, Any] | None = None,
    evaluate: bool = False,
    lr: float = 0.05,
    input_grad: bool = True,
    dtype: torch.dtype = torch.float64,
    tolerance: float = TOLERANCE,
    models: list[nn.Module] | None = None,
) -> FusedArray:
    """Assert that outputs, gradients, buffers and weights of *steps* steps equal those of separate models.

    With *members*, arguments and *target* have a row for each member.
    """
    models = build_members(make, dtype=dtype) if models is None else models
    kwargs = kwargs or {}
    if evaluate:
        for model in models:
            model.eval()
    array = fuse(models)
    if ways is not None:
        array.ways = ways
    flags = [members] * len(args) if isinstance(members, bool) else list(members)
    ours = _sgd(array, lr)
    theirs = [_sgd(model, lr) for model in models]
    for step in range(steps):
        inputs_, named = clone_batch(args, grad=input_grad), clone_batch(kwargs)
        out = array(*inputs_, members=members, **named)
        ours.zero_grad()
        array.loss(loss, out, target, members=members is True).sum().backward()
        grads = [_grads(a) for a in inputs_]
        summed: list[Any] = [None] * len(args)
        for index, (model, optimiser) in enumerate(zip(models, theirs, strict=True)):
            own = clone_batch(
                tuple(select_member(a, index) if f else a for a, f in zip(args, flags, strict=True)),
                grad=input_grad,
            )
            words = clone_batch(select_member(kwargs, index) if members is True else kwargs)
            aim = select_member(target, index) if members is True else target
            alone = model(*own, **words)
            optimiser.zero_grad()
            loss(alone, *([] if aim is None else [aim])).backward()
            assert_same(
                select_member(out, index), alone, f"output of member {index} in step {step}", tolerance
            )
            stacked = dict(array.body.named_parameters())
            for name, parameter in model.named_parameters():
                grad = stacked[name].grad
                if name in array.common:
                    continue
                assert (grad is None) == (parameter.grad is None), f"gradient of {name}"
                if grad is not None and parameter.grad is not None:
                    mine = grad.to_dense()[index] if grad.is_sparse else grad[index]
                    theirs_ = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
                    assert_same(mine, theirs_, f"gradient of {name}, member {index}, step {step}", tolerance)
            for at, flag in enumerate(flags if input_grad else ()):
                inputs = _grads(own[at])
                if flag:
                    for g, h in zip(grads[at], inputs, strict=True):
                        assert (g is None) == (h is None)
                        if h is not None:
                            assert_same(g[index], h, f"gradient of input {at}, member {index}", tolerance)
                elif summed[at] is None:
                    summed[at] = inputs
                else:
                    summed[at] = [
                        None if g is None else g + h for g, h in zip(summed[at], inputs, strict=True)
                    ]
            optimiser.step()
        for at, flag in enumerate(flags if input_grad else ()):
            if not flag:
                assert_same(grads[at], summed[at], f"gradient of input {at}", tolerance * 10)
        ours.step()
    assert_same_state(array, models, tolerance)
    return array


def _grads(values: Any) -> list[Tensor | None]:
    return [t.grad for t in tree_flatten(values)[0] if isinstance(t, Tensor) and t.is_leaf]


def _sgd(module: nn.Module, lr: float) -> Any:
    trained = [p for p in module.parameters() if p.requires_grad] or [nn.Parameter(torch.zeros(1))]
    return torch.optim.SGD(trained, lr=lr)

"""Check of HFTA's operators and optimisers, fused by hand in `wattline.papers.hfta`, with separate models.

    python benchmarks/hfta_operators.py [--width 3]

`check_hand_fused` compares with B separate models in float64, without dropout: outputs, losses, gradients,
running statistics, and the updates of the optimiser with a learning rate of its own for each member.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from wattline.papers.hfta.hand_models import HAND_FUSED, compute_loss, load_members, stack_members
from wattline.papers.hfta.hand_optimisers import OPTIMISERS
from wattline.papers.hfta.models import CASES, FusionCase


def disable_dropout(model: nn.Module) -> None:
    """Set the probability of all dropouts to 0, without leaving the training mode."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0


def check_hand_fused(name: str, width: int = 3, *, shared: bool = False) -> None:
    """Raise AssertionError unless the hand-fused case computes what *width* separate models compute."""
    case, fused = CASES[name], HAND_FUSED[name]
    generator = torch.Generator().manual_seed(1)
    models = [case.build().double() for _ in range(width)]
    model = fused.build(width).double()
    load_members(model, models)
    for each in (model, *models):
        disable_dropout(each)
    batches = [case.batch(generator) for _ in range(1 if shared else width)]
    batches = [(x.double() if x.is_floating_point() else x, y) for x, y in batches]
    if shared:
        inputs, targets = fused.repeat(batches[0][0], width), batches[0][1].expand(width, -1)
        batches *= width
    else:
        inputs = fused.arrange(torch.stack([x for x, _ in batches]))
        targets = torch.stack([y for _, y in batches])
    output = model(inputs)
    loss = compute_loss(case, output, targets)
    loss.backward()
    losses = []
    for member, own, (x, y) in zip(models, output, batches, strict=True):
        losses.append(case.loss(member(x), y))
        losses[-1].backward()
        torch.testing.assert_close(case.loss(own, y), losses[-1])
    torch.testing.assert_close(loss, torch.stack(losses).sum())
    for key, parameter in model.named_parameters():
        own = stack_members(model, key, [m.get_parameter(key).grad for m in models])  # type: ignore[misc]
        torch.testing.assert_close(parameter.grad, own, msg=lambda text, key=key: f"grad of {key}: {text}")
    for key, buffer in model.named_buffers():
        if key in models[0].state_dict():
            own = stack_members(model, key, [m.get_buffer(key) for m in models])
            torch.testing.assert_close(buffer, own, msg=lambda text, key=key: f"{key}: {text}")
    _check_optimiser(case, model, models, generator)


def _check_optimiser(
    case: FusionCase, model: nn.Module, models: list[nn.Module], generator: torch.Generator
) -> None:
    """Compare three updates with random gradients and a learning rate for each member."""
    rates = [0.01 * (i + 1) for i in range(len(models))]
    optimiser = OPTIMISERS[case.optimiser](model.parameters(), len(models), lr=rates)
    torch_class = getattr(torch.optim, case.optimiser)
    others = [torch_class(m.parameters(), lr=lr) for m, lr in zip(models, rates, strict=True)]
    for _ in range(3):
        for key, parameter in model.named_parameters():
            for member in models:
                own = member.get_parameter(key)
                own.grad = torch.randn(own.shape, generator=generator, dtype=own.dtype)
            grads: list[Tensor] = [m.get_parameter(key).grad for m in models]  # type: ignore[misc]
            parameter.grad = stack_members(model, key, grads).contiguous()
        for each in (optimiser, *others):
            each.step()
    for key, parameter in model.named_parameters():
        own = stack_members(model, key, [m.get_parameter(key) for m in models])
        torch.testing.assert_close(parameter, own, msg=lambda text, key=key: f"update of {key}: {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Check the hand-fused cases against separate models.")
    parser.add_argument("--width", type=int, default=3)
    args = parser.parse_args()
    for name in HAND_FUSED:
        for shared in (False, True):
            check_hand_fused(name, args.width, shared=shared)
        print(f"{name}: hand-fused and {args.width} separate models agree", flush=True)


if __name__ == "__main__":
    main()

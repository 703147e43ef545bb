"""Steps that run through the array itself, operator by operator, and find modules that cannot be fused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from wattline.fusion.array import FusedArray
from wattline.fusion.lowering.inputs import Inputs
from wattline.fusion.module_state import replace_tensors
from wattline.fusion.optim.clip import clip_grad_norm_
from wattline.fusion.step.foreign_parameters import refuse_foreign_parameters
from wattline.fusion.step.traced import check_losses, update_members

if TYPE_CHECKING:
    from wattline.fusion.step.train_step import Step


def run_all_members(step: Step, inputs: Inputs, model_arg_count: int, is_first: bool) -> Tensor:
    """Make a step of all members; if *is_first*, losses of tensors outside the array are refused."""
    opt, scaler = step.optimiser, step._scaler
    opt.zero_grad()
    losses = _compute_losses(step, step.array, inputs, model_arg_count, is_first)
    (losses if scaler is None else scaler.scale(losses)).sum().backward()
    if scaler is not None:
        scaler.unscale_(opt)
    if step._clip is not None:
        clip_grad_norm_(opt.parameters(), step._clip)
    if scaler is None:
        opt.step()
    else:
        scaler.step(opt)
        scaler.update()
    opt.zero_grad()
    return losses.detach()


def run_some_members(step: Step, inputs: Inputs, model_arg_count: int, part: slice, is_first: bool) -> Tensor:
    """Make the same step of some members, as an array of rows of the tensors."""
    array, rows = step.array, step.member_rows(part)
    trained = set(step.spec.trained)
    params = {name for name, _ in array.body.named_parameters()}
    tensors: dict[str, Any] = {
        name: nn.Parameter(t.detach(), name in trained) if name in params else t
        for name, t in rows.stacked.items()
    }
    leaves = {name: tensors[name] for name in step.spec.trained}
    with replace_tensors(array.body, tensors):
        narrow = _share_body(array, part.stop - part.start)
        losses = _compute_losses(step, narrow, inputs.select_members(part), model_arg_count, is_first)
    update_members(step.spec, rows, leaves, losses)
    return losses.detach()


def _compute_losses(
    step: Step, array: FusedArray, inputs: Inputs, model_arg_count: int, is_first: bool
) -> Tensor:
    (args, kwargs), flags = inputs.build(inputs.tensors), inputs.argument_flags
    device = next(array.parameters()).device.type
    with torch.autocast(device, step._amp, enabled=step._amp is not None):
        own = inputs.are_keywords_own or flags[:model_arg_count]
        out = array(*args[:model_arg_count], members=own, **kwargs)
        losses: Tensor = array.each(
            step.loss, out, *args[model_arg_count:], members=[True, *flags[model_arg_count:]]
        )
    check_losses(losses, len(array))
    if is_first:
        refuse_foreign_parameters(losses, array, inputs.tensors)
    return losses


def _share_body(array: FusedArray, size: int) -> FusedArray:
    """Return an array of *size* members with the same body, and with what was found out about it."""
    narrow = FusedArray(array.body, size, array._common)
    for name in ("_probed", "_warned", "_unbatched", "_separate", "ways"):
        setattr(narrow, name, getattr(array, name))
    return narrow

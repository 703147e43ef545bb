"""Fallback for modules that cannot be fused.

Where vmap fails, the innermost module that was running is from then on called once for each member, a
warning is issued, and the forward is tried again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wattline.fusion.lowering.error_kinds import is_fusing_error
from wattline.fusion.lowering.host_random import host_rng_state, is_same_rng_state, set_host_rng_state
from wattline.fusion.lowering.layout import ModelLayout
from wattline.fusion.lowering.per_member import MemberError, PerMemberForward, per_member_reason
from wattline.fusion.module_state import restore_attributes


class FusionWarning(UserWarning):
    """A part of a model runs separately for each member."""


def run_with_fallback(
    layout: ModelLayout, buffers: Sequence[Tensor], attempt: Callable[[], Any], *, watch_rng: bool
) -> Any:
    """Return the result of *attempt*, after switching modules that cannot be fused to per-member runs."""
    body = layout.body
    unfused: list[nn.Module] = []
    layout.note_attributes()
    saved, copies = [b.clone() for b in buffers], layout.copy_mutable_attributes()
    attributes: list[Any] = []

    def restore() -> None:
        """Undo the effects of the attempt."""
        if not attributes:
            attributes.extend(layout.list_attributes(copies))
        restore_attributes(attributes)
        with torch.no_grad():
            for buffer, old in zip(buffers, saved, strict=True):
                buffer.copy_(old)

    def remove_fallbacks() -> None:
        restore()
        for module in unfused:
            del module.__dict__["forward"]

    while True:
        rng_state = host_rng_state() if watch_rng else None
        try:
            out = attempt()
        except MemberError as failure:
            remove_fallbacks()
            failure.error.add_note(f"(in member {failure.member} of an array)")
            raise failure.error from None
        except Exception as error:
            module = _find_failing_module(body, error) if is_fusing_error(error) else None
            if module is None:
                remove_fallbacks()
                raise
            reason = _describe_error(error)
        else:
            is_separate = per_member_reason(body) is not None  # then each member draws its own numbers
            if rng_state is None or is_separate or is_same_rng_state(rng_state, host_rng_state()):
                for module in unfused:
                    _announce(body, module)
                return out
            restore()
            set_host_rng_state(rng_state)
            module = _find_random_module(body, attempt)
            set_host_rng_state(rng_state)
            if module is None:
                watch_rng = False
                restore()
                continue
            reason = "it draws random numbers from Python or NumPy, which members must not share"
        restore()
        inside = [m for m in unfused if any(m is part for part in module.modules())]
        for part in inside:
            del part.__dict__["forward"]
        unfused = [m for m in unfused if m not in inside]
        set_per_member(module, reason, is_model=module is body)
        unfused.append(module)


def set_per_member(module: nn.Module, reason: str, *, is_model: bool = False) -> None:
    """Run *module* separately for each member from now on; *is_model*: it is the model itself."""
    module.__dict__["forward"] = PerMemberForward(module, reason, is_model=is_model)


def _announce(body: nn.Module, module: nn.Module) -> None:
    name = next((n for n, m in body.named_modules() if m is module), "")
    _warn(f"{name or 'the whole model'} ({type(module).__name__})", per_member_reason(module) or "")


def warn_per_member(name: str, error: Exception) -> None:
    """Warn that a function runs separately for each member because fusing it raised *error*."""
    _warn(name, _describe_error(error))


def warn_unbatched(names: set[str]) -> None:
    """Warn of operators that vmap runs separately for each member."""
    for name in sorted(names):
        _warn(f"the operator {name}", "vmap has no batched form of it")


def warn_of_mean(gradient: Tensor, size: int) -> None:
    """Warn if *gradient*, that of the losses, is the one of their mean instead of their sum."""
    share = 1.0 / size
    if size > 1 and gradient.dim() == 1 and bool(((gradient - share).abs() < 1e-3 * share).all()):
        warnings.warn(
            f"the gradient of each member is divided by {size}, the number of members: "
            "differentiate losses.sum(), not losses.mean()",
            FusionWarning,
            stacklevel=3,
        )


def warn_of_clipping() -> None:
    """Warn that PyTorch's own clipping changes the gradients of all members by one factor."""
    warnings.warn(
        "torch.nn.utils clips all members by one norm, so that they change each other: "
        "use wattline.fusion.clip_grad_norm_",
        FusionWarning,
        stacklevel=4,
    )


def _warn(what: str, reason: str) -> None:
    text = f"{what} cannot be fused and runs separately for each member: {reason}"
    warnings.warn(text, FusionWarning, stacklevel=7)


def _find_failing_module(body: nn.Module, error: Exception) -> nn.Module | None:
    """Return the innermost module that was running and is not yet run per member; None if none is left."""
    inside = {id(m) for m in body.modules()}
    innermost = body
    trace = error.__traceback__
    while trace is not None:
        instance: Any = trace.tb_frame.f_locals.get("self")
        if trace.tb_frame.f_code.co_name == "forward" and id(instance) in inside:
            innermost = instance
        trace = trace.tb_next
    if per_member_reason(innermost) is None:
        return innermost
    return body if per_member_reason(body) is None else None


def _describe_error(error: Exception) -> str:
    """Return in a few words why vmap failed."""
    text = str(error)
    for sign, description in (
        ("data-dependent control flow", "its control flow depends on the values of tensors"),
        (".item()", "it reads the value of a tensor (.item(), float() or the like)"),
        ("inplace arithmetic", "it writes into a tensor that members share"),
        ("dynamic shape", "the shape of a result depends on the values of tensors"),
    ):
        if sign in text:
            return description
    return text.strip().split("\n")[0].split(". ")[0][:200] or type(error).__name__


def _find_random_module(body: nn.Module, attempt: Callable[[], Any]) -> nn.Module | None:
    """Return the innermost module that draws Python or NumPy random numbers for all members at once."""
    drawing: list[nn.Module] = []
    before: dict[int, Any] = {}

    def note_rng_state(module: nn.Module, args: Any) -> None:
        before[id(module)] = host_rng_state()

    def compare_rng_state(module: nn.Module, args: Any, out: Any) -> None:
        if is_same_rng_state(before[id(module)], host_rng_state()):
            return
        if per_member_reason(module) is None:
            drawing.append(module)
        else:
            set_host_rng_state(before[id(module)])

    handles = [m.register_forward_pre_hook(note_rng_state) for m in body.modules()]
    handles += [m.register_forward_hook(compare_rng_state) for m in body.modules()]
    try:
        attempt()
    finally:
        for handle in handles:
            handle.remove()
    return drawing[0] if drawing else None

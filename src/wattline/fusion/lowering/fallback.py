"""What can be fused is found by trying.

Where vmap refuses, the innermost module that was running is from then on run for each member by itself, which
is announced, and the forward is tried again.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wattline.errors import NotFusible
from wattline.fusion.lowering.per_member import Alone, OfMember, why_alone
from wattline.fusion.module_state import attributes_of, put_attributes


class FusionWarning(UserWarning):
    """A part of a model runs for each member by itself."""


def settle(
    body: nn.Module, buffers: Sequence[Tensor], attempt: Callable[[], Any], *, watch_chance: bool
) -> Any:
    """What *attempt* answers once everything that cannot be fused runs for each member by itself."""
    marked: list[nn.Module] = []
    saved, attributes = [b.clone() for b in buffers], attributes_of(body)

    def again() -> None:
        """Everything as before the attempt."""
        put_attributes(attributes)
        with torch.no_grad():
            for buffer, old in zip(buffers, saved, strict=True):
                buffer.copy_(old)

    def give_up() -> None:
        again()
        for module in marked:
            del module.__dict__["forward"]

    while True:
        chance = _chance() if watch_chance else None
        try:
            out = attempt()
        except OfMember as wrong:
            give_up()
            _check_recomputing(wrong.error)
            wrong.error.add_note(f"(in member {wrong.member} of an array)")
            raise wrong.error from None
        except NotFusible:
            give_up()
            raise
        except Exception as error:
            module = _culprit(body, error)
            if module is None or _recomputes(error):
                give_up()
                _check_recomputing(error)
                raise
            why = _in_words(error)
        else:
            if chance is None or _same_chance(chance, _chance()):
                for module in marked:
                    _announce(body, module)
                return out
            again()
            _set_chance(chance)
            module = _gambler(body, attempt)
            _set_chance(chance)
            if module is None:
                watch_chance = False
                again()
                continue
            why = "it draws random numbers of Python or NumPy, which members must not share"
        again()
        inside = [m for m in marked if any(m is part for part in module.modules())]
        for part in inside:
            del part.__dict__["forward"]
        marked = [m for m in marked if m not in inside]
        mark(module, why, whole=module is body)
        marked.append(module)


def mark(module: nn.Module, why: str, *, whole: bool = False) -> None:
    """From now on *module* runs for each member by itself; *whole*: it is the model."""
    module.__dict__["forward"] = Alone(module, why, whole=whole)


def _announce(body: nn.Module, module: nn.Module) -> None:
    name = next((n for n, m in body.named_modules() if m is module), "")
    _warn(f"{name or 'the whole model'} ({type(module).__name__})", why_alone(module) or "")


def warn_alone(name: str, error: Exception) -> None:
    """Announces that a function runs for each member by itself, because fusing it raised *error*."""
    _warn(name, _in_words(error))


def warn_slow(names: set[str]) -> None:
    """Announces operators that vmap runs for each member by itself."""
    for name in sorted(names):
        _warn(f"the operator {name}", "vmap has no batched form of it")


def _warn(what: str, why: str) -> None:
    text = f"{what} cannot be fused and runs for each member by itself: {why}"
    warnings.warn(text, FusionWarning, stacklevel=7)


def _recomputes(error: Exception) -> bool:
    """Whether it was raised in `torch.utils.checkpoint`."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return True
        trace = trace.tb_next
    return False


def _check_recomputing(error: Exception) -> None:
    if _recomputes(error):
        raise NotFusible(
            "it computes parts again during backward (torch.utils.checkpoint), which arrays cannot do",
            "turn checkpointing off",
        ) from None


def _culprit(body: nn.Module, error: Exception) -> nn.Module | None:
    """The innermost module that was running and is not yet run for each member; None: nobody is left."""
    inside = {id(m) for m in body.modules()}
    found = body
    trace = error.__traceback__
    while trace is not None:
        who: Any = trace.tb_frame.f_locals.get("self")
        if trace.tb_frame.f_code.co_name == "forward" and id(who) in inside:
            found = who
        trace = trace.tb_next
    if why_alone(found) is None:
        return found
    return body if why_alone(body) is None else None


def _in_words(error: Exception) -> str:
    """Why vmap refused, in a few words."""
    text = str(error)
    for sign, words in (
        ("data-dependent control flow", "what it computes depends on the values of tensors"),
        (".item()", "it reads the value of a tensor (.item(), float() or the like)"),
        ("inplace arithmetic", "it writes into a tensor that members share"),
        ("dynamic shape", "the shape of a result depends on the values of tensors"),
    ):
        if sign in text:
            return words
    return text.strip().split("\n")[0].split(". ")[0][:200] or type(error).__name__


def _gambler(body: nn.Module, attempt: Callable[[], Any]) -> nn.Module | None:
    """The innermost module that draws random numbers of Python or NumPy for all members at once."""
    found: list[nn.Module] = []
    before: dict[int, Any] = {}

    def enters(module: nn.Module, args: Any) -> None:
        before[id(module)] = _chance()

    def leaves(module: nn.Module, args: Any, out: Any) -> None:
        if _same_chance(before[id(module)], _chance()):
            return
        if why_alone(module) is None:
            found.append(module)
        else:
            _set_chance(before[id(module)])

    handles = [m.register_forward_pre_hook(enters) for m in body.modules()]
    handles += [m.register_forward_hook(leaves) for m in body.modules()]
    try:
        attempt()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def _chance() -> Any:
    return random.getstate(), np.random.get_state(legacy=True)


def _same_chance(a: Any, b: Any) -> bool:
    (ours, (_, keys, *more)), (theirs, (_, others, *rest)) = a, b
    return ours == theirs and more == rest and bool((keys == others).all())


def _set_chance(chance: Any) -> None:
    random.setstate(chance[0])
    np.random.set_state(chance[1])

"""One forward for all members: a member's own, under vmap, with the rules of this folder.

What cannot be fused is found by trying: where vmap refuses, the innermost module that was running is from
then on run for each member by itself, which is announced, and the forward is tried again.
"""

from __future__ import annotations

import dataclasses
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch._C._functorch import is_batchedtensor
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten

from wattline.errors import NotFusible
from wattline.fusion import ops  # noqa: F401  # registers the rules
from wattline.fusion.alone import Alone, OfMember
from wattline.fusion.lower import Lowering, Ways
from wattline.fusion.state import FRAME, attributes_of, call_with, flatten, put_attributes, swapped


class FusionWarning(UserWarning):
    """A part of a model runs for each member by itself."""


_warn_of_loops: Callable[[bool], None] = getattr(_functorch, "_set_vmap_fallback_warning_enabled")  # noqa: B009
Tensors = dict[str, Tensor]
Where = tuple[str, str]  # the path of a module, the name of an attribute


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a forward is called with: tensors, of which some are of each member, in a structure."""

    tensors: tuple[Tensor, ...]
    own: tuple[bool, ...]  # of each tensor
    flags: tuple[bool, ...]  # of each positional argument
    others: tuple[Any, ...]
    spec: Any

    @classmethod
    def of(
        cls, args: tuple[Any, ...], kwargs: dict[str, Any], members: bool | Sequence[bool], size: int
    ) -> Inputs:
        """*members* says of all arguments, or of each positional one, whether it has B rows in front."""
        each = [members] * len(args) if isinstance(members, bool) else list(members)
        if len(each) != len(args):
            raise NotFusible(
                f"members has {len(each)} entries, expected one for each of {len(args)} arguments"
            )
        leaves, spec = _open(lambda: flatten((args, kwargs)))
        own: list[bool] = []
        for arg, is_own in zip(args, each, strict=True):
            own += [is_own] * len(tree_flatten(arg)[0])
        own += [members is True] * (len(leaves) - len(own))
        is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        tensors = tuple(leaf for leaf, yes in zip(leaves, is_tensor, strict=True) if yes)
        marks = tuple(flag for flag, yes in zip(own, is_tensor, strict=True) if yes)
        for tensor, flag in zip(tensors, marks, strict=True):
            if flag and (tensor.dim() == 0 or tensor.shape[0] != size):
                raise NotFusible(
                    f"an input of each member has the shape {tuple(tensor.shape)}, "
                    f"expected {size} members in front"
                )
        others = tuple(None if yes else leaf for leaf, yes in zip(leaves, is_tensor, strict=True))
        return cls(tensors, marks, tuple(each), others, (spec, tuple(is_tensor)))

    def rows(self, part: slice) -> Inputs:
        """What some of the members get."""
        own = zip(self.tensors, self.own, strict=True)
        return dataclasses.replace(self, tensors=tuple(t[part] if mine else t for t, mine in own))

    def build(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments and keyword arguments with these tensors."""
        spec, is_tensor = self.spec
        given = iter(tensors)
        leaves = [next(given) if yes else o for o, yes in zip(self.others, is_tensor, strict=True)]
        args, kwargs = tree_unflatten(leaves, spec)
        return args, kwargs


def run(
    body: nn.Module,
    stacked: Tensors,
    common: Tensors,
    carried: dict[Where, Tensor],
    inputs: Inputs,
    ways: Ways,
    seen: Callable[[Callable[..., Any], bool], None] | None = None,
    slow: set[str] | None = None,
) -> Any:
    """What all members put out, members in front; *stacked* buffers are updated.

    *carried* are tensors that modules keep in plain attributes from one call to the next; it is updated too.
    *slow* gets the names of operators that vmap runs for each member by itself.
    """
    shape: list[Any] = []
    where: list[Where] = []

    def one(tensors: Tensors, state: dict[str, Tensor], given: tuple[Tensor, ...]) -> tuple[Any, ...]:
        for at, value in zip(carried, state.values(), strict=True):
            body.get_submodule(at[0]).__dict__[at[1]] = value
        args, kwargs = inputs.build(given)
        together = {**tensors, **common}
        out = _called(body, together, args, kwargs)
        new = {name: t for name, t in together.items() if name in tensors and t is not tensors[name]}
        leaves, spec = _open(lambda: flatten(out))
        shape[:] = [new.keys(), spec, [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]]
        kept = _left(body)
        where[:] = kept.keys()
        return (
            tuple(leaf for leaf in leaves if isinstance(leaf, Tensor)),
            tuple(new.values()),
            tuple(kept.values()),
        )

    dims = (
        dict.fromkeys(stacked, 0),
        {str(at): 0 for at in carried},
        tuple(0 if own else None for own in inputs.own),
    )
    state = {str(at): t for at, t in carried.items()}
    before = [(vars(m), dict(vars(m))) for m in body.modules()]
    try:
        with Lowering(ways, seen), _listening(slow), disable_saved_tensors_hooks("not in an array"):
            outs, new, kept = torch.vmap(one, in_dims=dims, randomness="different")(
                stacked, state, inputs.tensors
            )
    finally:
        _put_back(before)
    names, spec, others = shape
    for name, tensor in zip(names, new, strict=True):
        with torch.no_grad():
            stacked[name].copy_(tensor)
    carried.clear()
    carried.update(zip(where, kept, strict=True))
    found = iter(outs)
    return tree_unflatten([next(found) if other is None else other[0] for other in others], spec)


@contextmanager
def _listening(slow: set[str] | None) -> Iterator[None]:
    """vmap warns of operators that it runs for each member by itself: their names go to *slow*, if given."""
    if slow is None:
        _warn_of_loops(False)
        try:
            yield
        finally:
            _warn_of_loops(True)
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    for one in said:
        _, sign, name = str(one.message).partition("batching rule for ")
        if sign:
            slow.add(name.split(". ")[0])
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno, source=one.source)


def each(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    members: bool | Sequence[bool],
    size: int,
    ways: Ways,
    slow: set[str] | None = None,
) -> Any:
    """`fn(*args)` for each member, members in front; *slow* is that of `run`."""
    inputs = Inputs.of(args, {}, members, size)

    def one(*given: Tensor) -> Any:
        return fn(*inputs.build(given)[0])

    dims = tuple(0 if own else None for own in inputs.own)
    with Lowering(ways), _listening(slow):
        return torch.vmap(one, in_dims=dims, randomness="different")(*inputs.tensors)


def each_alone(
    fn: Callable[..., Any], args: tuple[Any, ...], members: bool | Sequence[bool], size: int
) -> Any:
    """The same, one member after another."""
    inputs = Inputs.of(args, {}, members, size)
    outs = []
    for member in range(size):
        own = zip(inputs.tensors, inputs.own, strict=True)
        outs.append(tree_flatten(fn(*inputs.build([t[member] if mine else t for t, mine in own])[0])))
    columns = zip(*(leaves for leaves, _ in outs), strict=True)
    return tree_unflatten([torch.stack(column) for column in columns], outs[0][1])


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


def why_alone(module: nn.Module) -> str | None:
    """Why a module runs for each member by itself; None: it does not."""
    forward = module.__dict__.get("forward")
    return forward.why if isinstance(forward, Alone) else None


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


def _open(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except TypeError as error:
        raise NotFusible(str(error)) from None


def _called(body: nn.Module, tensors: Tensors, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the body answers; hooks of one that runs for each member by itself run inside."""
    if why_alone(body) is None:
        return call_with(body, tensors, args, kwargs)
    with swapped(body, tensors):
        return body.__dict__["forward"](*args, **kwargs)


def _left(body: nn.Module) -> dict[Where, Tensor]:
    """Tensors of members that the forward has left in plain attributes of modules."""
    found = {}
    for path, module in body.named_modules():
        for name, value in vars(module).items():
            if name in FRAME or not _has_members(value):
                continue
            if isinstance(value, Tensor):
                found[path, name] = value
            else:
                raise NotFusible(
                    f"{path or type(module).__name__}.{name} keeps tensors of a call in a "
                    f"{type(value).__name__}",
                    "keep each in an attribute of its own, or in a buffer",
                )
    return found


def _has_members(value: Any) -> bool:
    if isinstance(value, Tensor):
        return bool(is_batchedtensor(value))
    return isinstance(value, list | tuple | dict) and any(map(_has_members, tree_flatten(value)[0]))


def _put_back(before: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """No tensor of a call stays behind in an attribute; `run` carries them to the next."""
    for attributes, old in before:
        for name, value in list(attributes.items()):
            if name == "_flat_weights" or (name not in FRAME and _has_members(value)):
                if name in old:
                    attributes[name] = old[name]
                else:
                    del attributes[name]

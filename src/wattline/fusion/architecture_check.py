"""Check that models have one architecture, so that they can be trained as one array."""

from __future__ import annotations

import functools
import hashlib
import math
import types
from collections.abc import Container, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized
from torch.utils.hooks import RemovableHandle

from wattline.errors import NotFusible
from wattline.fusion.member_numbers import find_differing_numbers
from wattline.fusion.module_state import TORCH_ATTRIBUTES, generator_state, named_tensors

_PLAIN = (bool, int, float, str, tuple, type(None))


def check_same_architecture(models: Sequence[nn.Module]) -> None:
    """Raise `NotFusible`, naming the difference, if *models* differ in more than tensors and floats."""
    if not models:
        raise NotFusible("no models were given, expected at least one")
    for index, model in enumerate(models):
        if not isinstance(model, nn.Module):
            raise NotFusible(f"member {index} is {type(model).__name__}, expected a torch.nn.Module")
        if hasattr(model, "_orig_mod"):
            raise NotFusible(
                f"member {index} was compiled by torch.compile, expected an ordinary model",
                "fuse the models without torch.compile; fusion.train_step compiles the array",
            )
    first = models[0]
    for model in models:
        _check_fusible(model)
    numbers = find_differing_numbers(models)
    for index, model in enumerate(models[1:], 1):
        if model is first or any(model is other for other in models[1:index]):
            raise NotFusible(
                f"member {index} is the same object as another member, expected a separate model"
            )
        own = find_differing_numbers([first, model])
        for problem in _differences(first, model, {*numbers, *own}):
            raise NotFusible(f"member {index} differs from member 0: {problem}")
    _check_not_shared(models)


def find_shared_tensors(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Return the tensors that an array stores once, by name, as they are in the first model.

    These are frozen parameters and buffers that are one object in all models, and frozen parameters of equal
    value (a base under adapters). Buffers of equal value are stored per member, because forwards write to
    them. So are equal parameters where all of them are constants (biases of zeros, scales of ones), which is
    a coincidence and no common base, and those of models that train nothing (a target network).
    """
    if len(models) == 1:
        return {}
    all_have = [named_tensors(model) for model in models]
    shared, equal = {}, {}
    for name, tensor in all_have[0].items():
        others = [other[name] for other in all_have[1:]]
        if tensor.requires_grad:
            continue
        if all(other is tensor for other in others):
            shared[name] = tensor
        elif isinstance(tensor, nn.Parameter) and all(torch.equal(tensor, other) for other in others):
            equal[name] = tensor
    has_trained = any(tensor.requires_grad for tensor in all_have[0].values())
    if has_trained and not all(map(_is_constant, equal.values())):
        shared |= equal
    return {name: tensor for name, tensor in all_have[0].items() if name in shared}


def _is_constant(tensor: Tensor) -> bool:
    return tensor.numel() < 2 or bool((tensor == tensor.flatten()[0]).all())


def fingerprint(model: nn.Module) -> str:
    """Return a hash of modules, shapes, types and settings; models with equal hashes may be fused.

    Floats, in which members may differ, are in it without their values.
    """
    lines = []
    for where, module in model.named_modules():
        settings = {
            k: "a float" if isinstance(v, float) and not hasattr(type(module), k) else _short(v)
            for k, v in vars(module).items()
            if k not in TORCH_ATTRIBUTES and isinstance(v, _PLAIN)
        }
        kind = type(module)
        lines.append(
            f"{where}|{kind.__module__}.{kind.__qualname__}|{module.training}|{sorted(settings.items())}"
        )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        lines.append(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}|{tensor.requires_grad}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _check_fusible(model: nn.Module) -> None:
    """Raise `NotFusible` for properties that no array supports, independent of the other members."""
    own = {id(t) for t in [*model.parameters(), *model.buffers()]}
    modules = {id(m) for m in model.modules()}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise NotFusible(f"{name} has no shape yet", "run a batch through each model first")
        if tensor.is_sparse or tensor.is_quantized:
            raise NotFusible(f"{name} is sparse or quantised, expected a dense tensor")
        if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
            raise NotFusible(
                f"{name} has hooks on its gradient, which an array would not run",
                "change gradients between backward() and step()",
            )
    for where, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            raise NotFusible(
                f"{where or type(module).__name__} has hooks on its gradient, which an array would not run",
                "change gradients between backward() and step()",
            )
        for name, value in [*vars(module).items(), *_hooks(module).items()]:
            for function in _functions(value):
                for item in (
                    t for cell in function.__closure__ or () for t in _iterate_nested(_cell_value(cell))
                ):
                    if isinstance(item, nn.Module) or (isinstance(item, Tensor) and id(item) in own):
                        raise NotFusible(
                            f"{where or type(module).__name__}.{name} is a function that captures a "
                            f"{type(item).__name__}, so that all members would use that of one",
                            "make it a method",
                        )
            if name in TORCH_ATTRIBUTES:
                continue
            for item in _iterate_nested(value):
                place = f"{where or type(module).__name__}.{name}"
                if isinstance(item, Tensor) and (id(item) in own or isinstance(item, nn.Parameter)):
                    raise NotFusible(
                        f"{place} holds a parameter that is not registered, which an array would not train",
                        "keep parameters in attributes, nn.ParameterList or nn.ParameterDict",
                    )
                if (
                    isinstance(item, nn.Module)
                    and id(item) not in modules
                    and next(item.parameters(), None) is not None
                ):
                    raise NotFusible(
                        f"{place} holds a module that is not registered, so that its weights are not trained",
                        "keep modules in attributes, nn.ModuleList or nn.ModuleDict",
                    )


def _check_not_shared(models: Sequence[nn.Module]) -> None:
    """Raise `NotFusible` where two members train the same tensor."""
    common = find_shared_tensors(models)
    owner: dict[int, int] = {}
    for index, model in enumerate(models):
        for name, tensor in named_tensors(model).items():
            if name in common:
                continue
            if owner.setdefault(id(tensor), index) != index:
                raise NotFusible(
                    f"members {owner[id(tensor)]} and {index} share {name}",
                    "give each its own copy (copy.deepcopy), or freeze it (requires_grad_(False)) in all",
                )


def _differences(first: nn.Module, other: nn.Module, numbers: Container[tuple[str, str]]) -> Iterator[str]:
    """Yield the differences between two models: modules, then tensors, then attributes and hooks.

    Attributes in *numbers* (path of the module, name) may differ.
    """
    ours, theirs = dict(first.named_modules()), dict(other.named_modules())
    if list(ours) != list(theirs):
        extra = next(iter([*(n for n in ours if n not in theirs), *(n for n in theirs if n not in ours)]), "")
        yield f"module {extra} is in only one of them" if extra else "their modules are in a different order"
    for where, module in ours.items():
        if where in theirs and _kind(module) != _kind(theirs[where]):
            kinds = f"a {type(theirs[where]).__name__}, expected {type(module).__name__}"
            yield f"{where or 'the model'} is {kinds}"
    for kind in ("named_parameters", "named_buffers"):
        yield from _tensor_differences(dict(getattr(first, kind)()), dict(getattr(other, kind)()))
    for where, module in ours.items():
        if where not in theirs:
            continue
        mine, yours = module, theirs[where]
        if mine.training != yours.training:
            modes = {True: "training", False: "evaluation"}
            found, expected = modes[yours.training], modes[mine.training]
            yield f"{where or 'the model'} is in {found} mode, expected {expected}"
        yield from _attribute_differences(where, mine, yours, numbers)
        for kind, hooks in _hooks(mine).items():
            if not is_equivalent(hooks, _hooks(yours)[kind]):
                yield f"{where or 'the model'} has different {kind.strip('_').replace('_', ' ')}"


def _hooks(module: nn.Module) -> dict[str, list[Any]]:
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    return {kind: list(vars(module)[kind].values()) for kind in kinds}


def _functions(value: Any) -> list[types.FunctionType]:
    return [item for item in _iterate_nested(value) if isinstance(item, types.FunctionType)]


def _cell_value(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def _kind(module: nn.Module) -> Any:
    """Return the class of *module*; parametrised modules are compared by base class and parametrisations."""
    kind = type(module)
    return (
        (kind.__bases__, list(vars(module)["_modules"]["parametrizations"]))
        if is_parametrized(module)
        else kind
    )


def _tensor_differences(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> Iterator[str]:
    for name in [*(n for n in ours if n not in theirs), *(n for n in theirs if n not in ours)]:
        yield f"{name} is in only one of them (or tied in only one)"
    for name, mine in ours.items():
        yours = theirs.get(name)
        if yours is None:
            continue
        if mine.shape != yours.shape:
            yield f"{name} has the shape {tuple(yours.shape)}, expected {tuple(mine.shape)}"
        if mine.dtype != yours.dtype:
            yield f"{name} is {yours.dtype}, expected {mine.dtype}"
        if mine.device != yours.device:
            yield f"{name} is on {yours.device}, expected {mine.device}"
        if mine.requires_grad != yours.requires_grad:
            yield f"{name} is {'trained' if yours.requires_grad else 'frozen'}, unlike in member 0"


def _attribute_differences(
    where: str, mine: nn.Module, yours: nn.Module, numbers: Container[tuple[str, str]]
) -> Iterator[str]:
    ours = {k: v for k, v in vars(mine).items() if k not in TORCH_ATTRIBUTES or k == "forward"}
    theirs = {k: v for k, v in vars(yours).items() if k not in TORCH_ATTRIBUTES or k == "forward"}
    prefix = f"{where}." if where else ""
    for name in [*ours, *(n for n in theirs if n not in ours)]:
        if name not in ours or name not in theirs:
            yield f"{prefix}{name} is set in only one of them"
        elif are_tensors_of_same_shape(ours[name], theirs[name]) or (where, name) in numbers:
            continue
        elif not is_equivalent(ours[name], theirs[name]):
            yield f"{prefix}{name} is {_short(theirs[name])}, expected {_short(ours[name])}"


def are_tensors_of_same_shape(a: Any, b: Any) -> bool:
    """Return whether two attributes are tensors of one shape, so that each member may have its own."""
    return (
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
    )


def is_equivalent(a: Any, b: Any, seen: set[tuple[int, int]] | None = None) -> bool:
    """Return whether two attributes have the same effect on a forward."""
    seen = set() if seen is None else seen
    if a is b or (id(a), id(b)) in seen:
        return True
    if type(a) is not type(b):
        return False
    seen.add((id(a), id(b)))
    if isinstance(a, nn.Module):
        return True  # compared as modules
    if isinstance(a, RemovableHandle):
        return True  # the hooks are compared
    if isinstance(a, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and bool((a == b).all())
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(is_equivalent(a[k], b[k], seen) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(is_equivalent(x, y, seen) for x, y in zip(a, b, strict=True))
    if isinstance(a, types.FunctionType):
        cells = [[_cell_value(c) for c in f.__closure__ or ()] for f in (a, b)]
        return (
            a.__code__ is b.__code__
            and is_equivalent(a.__defaults__, b.__defaults__, seen)
            and is_equivalent(cells[0], cells[1], seen)
        )
    if isinstance(a, types.MethodType):
        return a.__func__ is b.__func__ and is_equivalent(a.__self__, b.__self__, seen)
    if isinstance(a, functools.partial):
        return is_equivalent((a.func, a.args, a.keywords), (b.func, b.args, b.keywords), seen)
    if (state := generator_state(a)) is not None:
        return is_equivalent(state, generator_state(b), seen)
    if getattr(type(a), "__eq__") is object.__eq__:  # noqa: B009  # mypy narrows `type(a).__eq__` wrongly
        return is_equivalent(getattr(a, "__dict__", None), getattr(b, "__dict__", None), seen)
    same = a == b
    return bool(same.all() if hasattr(same, "all") else same)


def _iterate_nested(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _iterate_nested(inner)
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from _iterate_nested(inner)
    else:
        yield value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"

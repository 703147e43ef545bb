"""Numbers of which each member has its own: float attributes, kept in the body as buffers with a row each.

A buffer is stacked, resized, moved and passed to compiled steps like any other tensor. It has the type
float64, so that members get exactly their numbers back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from wattline.errors import NotFusible
from wattline.fusion.torch_internals import get_proxy_mode

MARK = "_member_numbers"
"""Attribute of a module: the names of its buffers that are numbers."""

TRACING_HINT = "has a number of its own for each member"


def is_number(value: Any) -> bool:
    """Return whether *value* is an int or a float, and no bool."""
    return isinstance(value, float) or type(value) is int


def find_differing_numbers(models: Sequence[nn.Module]) -> dict[tuple[str, str], list[float]]:
    """Return the attributes, by path of the module and name, that are numbers with several values.

    At least one of them is a float. Several ints may be shapes. An attribute that the class has too cannot
    become a buffer, because the one of the class would be found first.
    """
    found = {}
    modules = [dict(model.named_modules()) for model in models]
    for path, module in modules[0].items():
        if not all(path in others for others in modules):
            continue
        for name, value in vars(module).items():
            if not is_number(value) or name.startswith("_") or hasattr(type(module), name):
                continue
            values = [vars(others[path]).get(name) for others in modules]
            if not all(map(is_number, values)) or not any(isinstance(v, float) for v in values):
                continue
            if any(type(v) is not type(value) or not _is_same(v, value) for v in values):
                found[path, name] = [_convert(v, f"{path}.{name}".lstrip(".")) for v in values]
    return found


def _is_same(a: Any, b: Any) -> bool:
    return bool(a == b or (math.isnan(a) and math.isnan(b)))


def _convert(value: Any, name: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if isinstance(value, int) and number != value:
        raise NotFusible(f"{name} is {value}, expected a number that a float can hold")
    return number


def register_numbers(module: nn.Module, name: str, values: Sequence[float], device: torch.device) -> None:
    """Replace the attribute *name* by a buffer with a number for each member."""
    del module.__dict__[name]
    rows = torch.tensor(values, dtype=torch.float64, device=device)
    module.register_buffer(name, rows, persistent=False)
    module.__dict__[MARK] = (*module.__dict__.get(MARK, ()), name)


def list_numbers(body: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return module and attribute of each number, by the name of its tensor in `named_tensors`."""
    return {
        f"{path}.{name}" if path else name: (module, name)
        for path, module in body.named_modules()
        for name in vars(module).get(MARK, ())
    }


def check_numbers(body: nn.Module, size: int) -> None:
    """Raise `NotFusible` if the buffer of a number was converted or replaced by another tensor."""
    for label, (module, name) in list_numbers(body).items():
        rows = module._buffers[name]
        if rows is None or rows.dtype != torch.float64 or rows.shape != (size,):
            found = "None" if rows is None else f"a tensor of {rows.dtype} and shape {tuple(rows.shape)}"
            raise NotFusible(
                f"{label} is {found}, expected torch.float64 with one number for each of {size} members",
                f"convert the array, not its body, and write into body.{label} instead of replacing it",
            )


def assign_member_numbers(body: nn.Module, name: str, value: Any, size: int) -> bool:
    """Set the attribute *name* of the model to one number for each member; return False for other attributes.

    A single number for an attribute that is the same in all members is an ordinary assignment.
    """
    if name in vars(body).get(MARK, ()):
        rows = body._buffers[name]
        assert rows is not None
        with torch.no_grad():
            rows.copy_(torch.tensor(_read_values(name, value, size), dtype=torch.float64))
        return True
    is_list = isinstance(value, list | tuple) or (hasattr(value, "tolist") and getattr(value, "ndim", 0) == 1)
    if not is_number(vars(body).get(name)) or not is_list:
        return False
    values = _read_values(name, value, size)
    if not any(isinstance(v, float) for v in (*value, vars(body)[name])):
        raise NotFusible(f"{name} is set to {value!r}, but members must not differ in ints, expected floats")
    if hasattr(type(body), name):
        raise NotFusible(
            f"{name} is also an attribute of {type(body).__name__}, so that members must not differ"
        )
    register_numbers(body, name, values, find_device(body))
    return True


def _read_values(name: str, value: Any, size: int) -> list[float]:
    """Return one float for each of *size* members from a number, a list or a tensor."""
    values = value.tolist() if hasattr(value, "tolist") else value
    values = [values] * size if is_number(values) else values
    if not isinstance(values, list | tuple) or len(values) != size or not all(map(is_number, values)):
        raise NotFusible(f"{name} is set to {value!r}, expected a number, or one for each of {size} members")
    return [_convert(v, name) for v in values]


def find_device(module: nn.Module) -> torch.device:
    """Return the device of the first tensor of *module*; the CPU if it has none."""
    tensors = (*module.parameters(), *module.buffers())
    return tensors[0].device if tensors else torch.device("cpu")


def read_numbers(model: nn.Module, body: nn.Module) -> dict[str, Tensor]:
    """Return the numbers of *model* that are numbers of members in *body*, by the names of their tensors."""
    paths = {id(module): path for path, module in body.named_modules()}
    return {
        label: torch.tensor(
            _convert(vars(model.get_submodule(paths[id(module)]))[name], label), dtype=torch.float64
        )
        for label, (module, name) in list_numbers(body).items()
    }


def restore_attributes_of_member(model: nn.Module) -> None:
    """Turn the numbers of *model*, one member of an array, into ordinary floats."""
    for module, name in list_numbers(model).values():
        rows = module._buffers.pop(name)
        assert rows is not None
        module._non_persistent_buffers_set.discard(name)
        module.__dict__[name] = float(rows)
    for module in model.modules():
        module.__dict__.pop(MARK, None)


@contextmanager
def kept_numbers(body: nn.Module) -> Iterator[None]:
    """Restore the type and the values of numbers after a conversion of tensors inside the `with` block."""
    before = [(module, name, module._buffers[name]) for module, name in list_numbers(body).values()]
    yield
    for module, name, rows in before:
        now = module._buffers[name]
        if rows is not None and now is not None and now is not rows:
            module._buffers[name] = rows.to(now.device)


@contextmanager
def ordinary_numbers(module: nn.Module, tensors: dict[str, Tensor]) -> Iterator[None]:
    """Let one member's forward see its numbers as floats inside the `with` block.

    *tensors* are the member's; its numbers are updated with those that the forward has assigned.
    """
    numbers = list_numbers(module)
    if not numbers:
        yield
        return
    if get_proxy_mode() is not None:
        raise RuntimeError(
            f"a part that runs separately for each member {TRACING_HINT}: {next(iter(numbers))}"
        )
    own = {label: tensors.pop(label) for label in numbers}
    buffers = {label: part._buffers.pop(name) for label, (part, name) in numbers.items()}
    try:
        for label, (part, name) in numbers.items():
            part.__dict__[name] = float(own[label])
        yield
        for label, (part, name) in numbers.items():
            now = part.__dict__.get(name)
            if not is_number(now):
                raise NotFusible(f"the forward sets {label} to {now!r}, expected a number as before")
            if not _is_same(now, float(own[label])):
                own[label].fill_(_convert(now, label))
    finally:
        tensors.update(own)
        for label, (part, name) in numbers.items():
            part.__dict__.pop(name, None)
            part._buffers[name] = buffers[label]

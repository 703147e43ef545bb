"""Pydantic's complaints in the words of a job file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from wattline.errors import did_you_mean
from wattline.jobfile.errors import Path, WrongField, dotted, shown

_ORDER = {"extra_forbidden": 0, "missing": 1, "value_error": 2}
_KEYS = {
    "env": "letters, digits and _ that do not begin with a digit",
    "matrix": "at most 64 letters, digits and _ that do not begin with a digit",
}


def explain(error: ValidationError, document: object, model: type[BaseModel]) -> WrongField:
    """The first thing that is wrong: an unknown key before a missing one before a wrong value."""
    complaints = error.errors(include_url=False, include_input=False)
    places = [_follow(one["loc"], document, model) for one in complaints]
    found, (path, value, expected, inside) = min(  # of a union, the one that came furthest
        zip(complaints, places, strict=True),
        key=lambda pair: (_ORDER.get(pair[0]["type"], 3), -len(pair[1][0])),
    )
    if found["type"] == "extra_forbidden":
        *outer, key = path
        near = did_you_mean(str(key), inside.model_fields)
        if near and outer:
            near = near.replace("mean ", f"mean {dotted(tuple(outer))}.")
        known = ", ".join(inside.model_fields)
        return WrongField(path, f"unknown key {dotted(path)}, expected one of {known}", near)
    if found["type"] == "missing":
        name = str(found["loc"][-1])
        wanted = inside.model_fields[name].description
        return WrongField(path, f"{dotted((*path, name))} is missing, expected {wanted}")
    if found["loc"][-1] == "[key]" and path:
        return _wrong_key(path, found)
    problem, hint = f"is {shown(value)}", ""
    if found["type"] == "value_error":
        cause = found["ctx"]["error"]
        problem, hint = f"{problem}, which {cause}", getattr(cause, "hint", "")
    elif found["type"] in ("too_long", "string_too_long"):
        problem = f"{problem}, which is too long"
    elif isinstance(value, Sequence) and not isinstance(value, str) and not value:
        problem = "is an empty list"
    return WrongField(path, f"{dotted(path)} {problem}, expected {expected}", hint)


def _wrong_key(path: Path, found: ErrorDetails) -> WrongField:
    if found["type"] == "value_error":
        return WrongField(path, f"{dotted(path)} {found['ctx']['error']}, expected another name")
    return WrongField(path, f"{dotted(path)} is not a name, expected {_KEYS[str(path[0])]}")


def _follow(
    loc: tuple[int | str, ...], document: object, model: type[BaseModel]
) -> tuple[Path, object, str, type[BaseModel]]:
    """Where a complaint is in the document, what stands there, what should, and inside what.

    Pydantic also names the members of unions on the way; what the document does not have is passed over.
    """
    path: list[str | int] = []
    value, expected = document, "a mapping"
    fields: Mapping[str, Any] | None = model.model_fields
    for step in loc:
        if isinstance(value, dict) and step in value:
            value = value[step]
            info = (fields or {}).get(str(step))
            if info is not None:
                expected = info.description or expected
                parts = [t for t in (info.annotation, *get_args(info.annotation)) if _is_model(t)]
                model, fields = (parts[0], parts[0].model_fields) if parts else (model, None)
        elif isinstance(value, list | tuple) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            continue
        path.append(step)
    return tuple(path), value, expected, model


def _is_model(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, BaseModel)

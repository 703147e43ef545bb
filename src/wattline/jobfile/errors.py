"""Errors in a job file, with the path of the field; Pydantic's errors in the words of a job file."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from wattline.errors import ConfigError, did_you_mean

Path = tuple[str | int, ...]
"""Keys and list indices that lead to a field."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlong = 40
_PRECEDENCE = {"extra_forbidden": 0, "missing": 1, "value_error": 2}
_KEY_RULES = {
    "env": "letters, digits and _ that do not begin with a digit",
    "matrix": "at most 64 letters, digits and _ that do not begin with a digit",
}


class FieldError(ConfigError):
    """An invalid field; *path* is its place in the document."""

    def __init__(self, path: Path, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.path = path

    def __reduce__(self) -> tuple[type[FieldError], tuple[Path, str, str]]:
        return type(self), (self.path, self.message, self.hint)

    def at(self, where: str, line: int | None) -> ConfigError:
        """Return the error with the name of the file and the line in front of the message."""
        place = where if line is None else f"{where}:{line}"
        return ConfigError(f"{place}: {self.message}", self.hint)


def format_path(path: Path) -> str:
    """Return a path as text, such as `resources.gpus` or `matrix.lr[2]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{_format_key(step)}" if text else _format_key(step)
    return text


def format_value(value: object) -> str:
    """Return a value for an error message, on one line and shortened."""
    match value:
        case None:
            return "empty"
        case bool():
            return "true" if value else "false"
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case int() if abs(value) >= 10**40:
            return "a number of more than 40 digits"
        case _:
            return _SHORT.repr(value)


def _format_key(key: str) -> str:
    return key if key.isprintable() and 0 < len(key) <= 80 else format_value(key)


def convert_validation_error(error: ValidationError, document: object, model: type[BaseModel]) -> FieldError:
    """Return the first error: unknown keys come before missing keys, and these before wrong values.

    Of the errors of a union, the one deepest in the document is taken.
    """
    details = error.errors(include_url=False, include_input=False)
    places = [_locate(one["loc"], document, model) for one in details]
    detail, place = min(
        zip(details, places, strict=True),
        key=lambda pair: (_PRECEDENCE.get(pair[0]["type"], 3), -len(pair[1].path)),
    )
    path, value = place.path, place.value
    if detail["type"] == "extra_forbidden":
        return _unknown_key(place, model)
    if detail["type"] == "missing":
        name = str(detail["loc"][-1])
        expected = place.model.model_fields[name].description
        return FieldError(path, f"{format_path((*path, name))} is missing, expected {expected}")
    if detail["loc"][-1] == "[key]" and path:
        return _wrong_key(path, detail)
    problem, hint = f"is {format_value(value)}", ""
    if detail["type"] == "value_error":
        cause = detail["ctx"]["error"]
        problem, hint = f"{problem}, which {cause}", getattr(cause, "hint", "")
    elif detail["type"] in ("too_long", "string_too_long"):
        problem = f"{problem}, which is too long"
    elif isinstance(value, Sequence) and not isinstance(value, str) and not value:
        problem = "is an empty list"
    return FieldError(path, f"{format_path(path)} {problem}, expected {place.expected}", hint)


class _Place(NamedTuple):
    path: Path
    value: object
    expected: str  # description of the field
    model: type[BaseModel]  # that the field belongs to


def _unknown_key(place: _Place, root: type[BaseModel]) -> FieldError:
    *outer, key = place.path
    known = ", ".join(place.model.model_fields)
    message = f"unknown key {format_path(place.path)}, expected one of {known}"
    return FieldError(place.path, message, _nearest_key(tuple(outer), str(key), root))


def _nearest_key(outer: Path, key: str, root: type[BaseModel]) -> str:
    """Return a hint with the full path of the key that was meant: of the same name in another section, or
    of a similar name, in the same section first."""
    paths = list(_list_paths(root))
    elsewhere = [path for path in paths if path[-1] == key.casefold()]
    if elsewhere:
        return f"did you mean {format_path(elsewhere[0])}?"
    here = {str(path[-1]): path for path in paths if path[:-1] == outer}
    anywhere = {str(path[-1]): path for path in reversed(paths)}
    for names in (here, anywhere):
        hint = did_you_mean(key, names)
        if hint:
            name = hint.removeprefix("did you mean ").removesuffix("?")
            return f"did you mean {format_path(names[name])}?"
    return ""


def _list_paths(model: type[BaseModel], outer: Path = ()) -> Iterator[Path]:
    """Yield the paths of all keys of a model, those of a section before those of its parts."""
    sections: list[tuple[Path, type[BaseModel]]] = []
    for name, info in model.model_fields.items():
        yield (*outer, name)
        parts = (info.annotation, *get_args(info.annotation))
        sections += [((*outer, name), part) for part in parts if _is_model(part)]
    for path, section in sections:
        yield from _list_paths(section, path)


def _wrong_key(path: Path, detail: ErrorDetails) -> FieldError:
    if detail["type"] == "value_error":
        return FieldError(path, f"{format_path(path)} {detail['ctx']['error']}, expected another name")
    return FieldError(path, f"{format_path(path)} is not a name, expected {_KEY_RULES[str(path[0])]}")


def _locate(location: tuple[int | str, ...], document: object, model: type[BaseModel]) -> _Place:
    """Follow a location of Pydantic through the document.

    The location also names members of unions; steps that the document does not have are skipped.
    """
    path: list[str | int] = []
    value, expected = document, "a mapping"
    fields: Mapping[str, Any] | None = model.model_fields
    for step in location:
        if isinstance(value, dict) and step in value:
            value = value[step]
            info = (fields or {}).get(str(step))
            if info is not None:
                expected = info.description or expected
                sections = [t for t in (info.annotation, *get_args(info.annotation)) if _is_model(t)]
                model, fields = (sections[0], sections[0].model_fields) if sections else (model, None)
        elif isinstance(value, list | tuple) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            continue
        path.append(step)
    return _Place(tuple(path), value, expected, model)


def _is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)

"""Sweeps: one member for each combination of the values in a job's matrix.

YAML keeps the text of each value (`1e-4`, `0.10`, `007`), and commands get that text; only
`SweepMember.values` has numbers. JSON has numbers, which commands get as Python writes them (`0.0001`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattline.errors import did_you_mean
from wattline.jobfile.errors import FieldError, Path, format_path, format_value
from wattline.jobfile.template import DollarError, fill, find_names
from wattline.jobfile.yaml_reader import read_scalar

if TYPE_CHECKING:
    from wattline.jobfile.schema import JobFile

LIMIT_MEMBERS = 10_000
LIMIT_ALL_CHARACTERS = 2**26  # of the commands and environments of all members
LIMIT_NAME = 200

Value = str | int | float | bool


@dataclass(frozen=True)
class SweepMember:
    """One job of a sweep, or the only job: its values, and the fields of the job file filled with them."""

    values: dict[str, Value]
    words: tuple[str, ...]
    name: str
    env: dict[str, str]
    checkpoint_dir: str | None


def check_matrix(job: JobFile) -> None:
    """Raise `FieldError` if a `${name}` has no values, values are unused, or there are too many members."""
    keys = {key: _Key(key, values) for key, values in job.matrix.items()}
    for path, text in (*_templates(job), *(pair for key in keys.values() for pair in key.templates())):
        for name in find_names(text):
            if name not in keys:
                raise FieldError(
                    path,
                    f"{format_path(path)} has ${{{name}}}, but there is no matrix.{name}; "
                    "environment variables are not expanded",
                    did_you_mean(name, keys) or DollarError.hint,
                )
    used = {name for _, text in _templates(job) for name in find_names(text)}
    for key in reversed(_sort_keys(keys)):
        if key.name in used:
            used |= key.references
    for name in keys:
        if name not in used:
            raise FieldError(
                ("matrix", name), f"matrix.{name} is used nowhere, expected ${{{name}}} in run, env or name"
            )
    count = math.prod(len(key) for key in keys.values())
    if count > LIMIT_MEMBERS:
        raise FieldError(
            ("matrix",), f"matrix has {format_value(count)} members, expected at most {LIMIT_MEMBERS:,}"
        )


def expand(job: JobFile) -> tuple[SweepMember, ...]:
    """Return the members of a job's matrix, the first key changing slowest; one without a matrix."""
    check_matrix(job)
    keys = {key: _Key(key, values) for key, values in job.matrix.items()}
    order = [key.name for key in _sort_keys(keys)]
    words, env = job.words, {name: _text(value) for name, value in job.env.items()}
    members: list[SweepMember] = []
    characters = 0
    for chosen in itertools.product(*(key.texts() for key in keys.values())):
        raw = dict(zip(keys, chosen, strict=True))
        texts: dict[str, str] = {}
        for name in order:
            texts[name] = _fill(("matrix", name), raw[name], texts)
        member = SweepMember(
            values={name: _parse_value(texts[name]) for name in keys},
            words=tuple(_fill(("run",), word, texts) for word in words),
            name=_fill(("name",), job.name, texts),
            env={name: _fill(("env", name), text, texts) for name, text in env.items()},
            checkpoint_dir=None
            if job.checkpoint.dir is None
            else _fill(("checkpoint", "dir"), job.checkpoint.dir, texts),
        )
        _check_member(member)
        characters += sum(map(len, (*member.words, *member.env.values())))
        if characters > LIMIT_ALL_CHARACTERS:
            raise FieldError(
                ("matrix",), f"matrix makes commands of more than {LIMIT_ALL_CHARACTERS:,} letters"
            )
        members.append(member)
    return tuple(members)


class _Key:
    """A key of the matrix, and its list or range of values."""

    def __init__(self, name: str, values: str | tuple[Value, ...]) -> None:
        self.name = name
        self._values = values
        self.references = {name for _, text in self.templates() for name in find_names(text)}

    def __len__(self) -> int:
        if isinstance(self._values, str):
            first, last = _range_ends(self._values)
            return abs(last - first) + 1
        return len(self._values)

    def templates(self) -> Iterator[tuple[Path, str]]:
        if not isinstance(self._values, str):
            for at, value in enumerate(self._values):
                if isinstance(value, str):
                    yield ("matrix", self.name, at), value

    def texts(self) -> Iterable[str]:
        if isinstance(self._values, str):
            first, last = _range_ends(self._values)
            step = 1 if first <= last else -1
            return [str(number) for number in range(first, last + step, step)]
        return [_text(value) for value in self._values]


def _range_ends(text: str) -> tuple[int, int]:
    first, _, last = text.partition("..")
    return int(first), int(last)


def _templates(job: JobFile) -> Iterator[tuple[Path, str]]:
    if isinstance(job.run, str):
        yield from ((("run",), word) for word in job.words)
    else:
        yield from ((("run", at), word) for at, word in enumerate(job.run))
    yield ("name",), job.name
    yield from ((("env", name), value) for name, value in job.env.items() if isinstance(value, str))
    if job.checkpoint.dir is not None:
        yield ("checkpoint", "dir"), job.checkpoint.dir


def _sort_keys(keys: Mapping[str, _Key]) -> list[_Key]:
    """Return the keys in an order where each comes after those it refers to; raise for a cycle.

    A reference in any value counts for the key, since every combination of values occurs.
    """
    ordered: dict[str, _Key] = {}

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            cycle = " -> ".join((*above[above.index(name) :], name))
            raise FieldError(("matrix", name), f"matrix.{name} refers to itself: {cycle}")
        if name not in ordered:
            for other in sorted(keys[name].references):
                visit(other, (*above, name))
            ordered[name] = keys[name]

    for name in keys:
        visit(name, ())
    return list(ordered.values())


def _fill(path: Path, text: str, texts: Mapping[str, str]) -> str:
    try:
        return fill(text, texts)
    except ValueError as error:
        raise FieldError(path, f"{format_path(path)} {error}") from None


def _check_member(member: SweepMember) -> None:
    if not member.words[0]:
        raise FieldError(("run",), f"run begins with an empty word where {_format_values(member)}")
    if len(member.name) > LIMIT_NAME:
        raise FieldError(
            ("name",), f"name is longer than {LIMIT_NAME} letters where {_format_values(member)}"
        )


def _format_values(member: SweepMember) -> str:
    return ", ".join(f"{name} is {format_value(value)}" for name, value in member.values.items())


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def _parse_value(text: str) -> Value:
    value = read_scalar(text)
    return text if value is None else value

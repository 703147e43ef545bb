"""The members of a sweep: every combination of the values in a job's matrix.

A value stands in a command as it was written. YAML gives the text of each value (`1e-4`, `0.10`, `007`),
which is read as a number only for `Member.values`. JSON gives numbers, which are written as Python does
(`0.0001`), and true and false; give text to keep other forms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattline.errors import did_you_mean
from wattline.jobfile.errors import Path, WrongField, dotted, shown
from wattline.jobfile.template import Dollar, fill, names
from wattline.jobfile.yaml_reader import read_scalar

if TYPE_CHECKING:
    from wattline.jobfile.schema import JobFile

LIMIT_MEMBERS = 10_000
LIMIT_ALL_LETTERS = 2**26  # of the words of all members
LIMIT_NAME = 200

Value = str | int | float | bool


@dataclass(frozen=True)
class Member:
    """One job of a sweep, or the only one: its values, and what these make of the command and the rest."""

    values: dict[str, Value]
    words: tuple[str, ...]
    name: str
    env: dict[str, str]
    checkpoint_dir: str | None


def check(job: JobFile) -> None:
    """Raise unless every `${name}` has values, every value is used, and there are not too many members."""
    keys = {key: _Key(key, values) for key, values in job.matrix.items()}
    for path, text in (*_templates(job), *(pair for key in keys.values() for pair in key.templates())):
        for name in names(text):
            if name not in keys:
                raise WrongField(
                    path,
                    f"{dotted(path)} has ${{{name}}}, but there is no matrix.{name}; "
                    "environment variables are not expanded",
                    did_you_mean(name, keys) or Dollar.hint,
                )
    used = {name for _, text in _templates(job) for name in names(text)}
    for key in reversed(_in_order(keys)):
        if key.name in used:
            used |= key.refers
    for name in keys:
        if name not in used:
            raise WrongField(
                ("matrix", name), f"matrix.{name} is used nowhere, expected ${{{name}}} in run, env or name"
            )
    count = math.prod(len(key) for key in keys.values())
    if count > LIMIT_MEMBERS:
        raise WrongField(
            ("matrix",), f"matrix has {shown(count)} members, expected at most {LIMIT_MEMBERS:,}"
        )


def expand(job: JobFile) -> tuple[Member, ...]:
    """The members of a job's matrix, the first key changing slowest; without a matrix, the one job."""
    check(job)
    keys = {key: _Key(key, values) for key, values in job.matrix.items()}
    order = [key.name for key in _in_order(keys)]
    words, env = job.words, {name: _text(value) for name, value in job.env.items()}
    members: list[Member] = []
    letters = 0
    for chosen in itertools.product(*(key.texts() for key in keys.values())):
        raw = dict(zip(keys, chosen, strict=True))
        texts: dict[str, str] = {}
        for name in order:
            texts[name] = _fill(("matrix", name), raw[name], texts)
        member = Member(
            values={name: _value(texts[name]) for name in keys},
            words=tuple(_fill(("run",), word, texts) for word in words),
            name=_fill(("name",), job.name, texts),
            env={name: _fill(("env", name), text, texts) for name, text in env.items()},
            checkpoint_dir=None
            if job.checkpoint.dir is None
            else _fill(("checkpoint", "dir"), job.checkpoint.dir, texts),
        )
        _check_member(member)
        letters += sum(map(len, (*member.words, *member.env.values())))
        if letters > LIMIT_ALL_LETTERS:
            raise WrongField(("matrix",), f"matrix makes commands of more than {LIMIT_ALL_LETTERS:,} letters")
        members.append(member)
    return tuple(members)


class _Key:
    """A key of the matrix and its values."""

    def __init__(self, name: str, values: str | tuple[Value, ...]) -> None:
        self.name = name
        self._values = values
        self.refers = {found for _, text in self.templates() for found in names(text)}

    def __len__(self) -> int:
        if isinstance(self._values, str):
            first, last = _ends(self._values)
            return abs(last - first) + 1
        return len(self._values)

    def templates(self) -> Iterator[tuple[Path, str]]:
        if not isinstance(self._values, str):
            for at, value in enumerate(self._values):
                if isinstance(value, str):
                    yield ("matrix", self.name, at), value

    def texts(self) -> Iterable[str]:
        if isinstance(self._values, str):
            first, last = _ends(self._values)
            step = 1 if first <= last else -1
            return [str(number) for number in range(first, last + step, step)]
        return [_text(value) for value in self._values]


def _ends(text: str) -> tuple[int, int]:
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


def _in_order(keys: Mapping[str, _Key]) -> list[_Key]:
    """The keys, each after those that it refers to. Every combination comes up, so any circle is one."""
    done: dict[str, _Key] = {}

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            circle = " -> ".join((*above[above.index(name) :], name))
            raise WrongField(("matrix", name), f"matrix.{name} refers to itself: {circle}")
        if name not in done:
            for other in sorted(keys[name].refers):
                visit(other, (*above, name))
            done[name] = keys[name]

    for name in keys:
        visit(name, ())
    return list(done.values())


def _fill(path: Path, text: str, texts: Mapping[str, str]) -> str:
    try:
        return fill(text, texts)
    except ValueError as error:
        raise WrongField(path, f"{dotted(path)} {error}") from None


def _check_member(member: Member) -> None:
    if not member.words[0]:
        raise WrongField(("run",), f"run begins with an empty word where {_said(member)}")
    if len(member.name) > LIMIT_NAME:
        raise WrongField(("name",), f"name is longer than {LIMIT_NAME} letters where {_said(member)}")


def _said(member: Member) -> str:
    return ", ".join(f"{name} is {shown(value)}" for name, value in member.values.items())


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def _value(text: str) -> Value:
    value = read_scalar(text)
    return text if value is None else value

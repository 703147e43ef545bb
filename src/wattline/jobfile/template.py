"""Templates: text with `${name}`, and `$$` for a dollar. In lists of words other dollars are plain."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

NAME = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
DOLLAR = rf"\$\$|\$\{{{NAME}\}}"
LIMIT_CHARACTERS = 32_768  # of a filled template: Linux limits an argument to 128 KiB

_PART = re.compile(rf"\$\$|\$\{{({NAME})\}}|\$")
_VARIABLE = re.compile(r"\$(?:\{[^}]{0,60}\}?|\w{0,60})")
_HINT = "write $$ for a dollar; for a shell's variables: run: [bash, -c, 'python train.py $HOME/data']"


class DollarError(ValueError):
    """A dollar that is neither `$$` nor `${name}`; `hint` tells what to write instead."""

    hint = _HINT


def check_dollars(text: str) -> str:
    """Return the text; raise `DollarError` unless each of its dollars is `$$` or `${name}`."""
    for part in _PART.finditer(text):
        if part[0] == "$":
            found = _VARIABLE.match(text, part.start())
            word = found[0] if found else "$"
            raise DollarError(f"has {word!r}: environment variables are not expanded")
    return text


def check_word(text: str) -> str:
    """Return the text; raise `DollarError` for a `${` that is no `${name}`. Others may be for a shell."""
    for part in re.finditer(rf"\$\$|\$\{{({NAME})\}}|\$\{{", text):
        if part[0] == "${":
            found = _VARIABLE.match(text, part.start())
            raise DollarError(f"has {found[0] if found else '${'!r}: environment variables are not expanded")
    return text


def find_names(text: str) -> list[str]:
    """Return the names of all `${name}` in a text."""
    return [part[1] for part in _PART.finditer(text) if part[1]]


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return the text with each `${name}` replaced; the values themselves are not expanded."""
    if "$" not in text:
        return text
    length = len(text) + sum(len(values[name]) for name in find_names(text))
    if length > LIMIT_CHARACTERS:
        raise ValueError(f"becomes longer than {LIMIT_CHARACTERS:,} letters")
    return _PART.sub(lambda part: values[part[1]] if part[1] else "$", text)


# A command on one line that `shlex` can split: quotes are closed, no backslash is last, the first word is not
# empty. A backslash at the end of a line continues it.
_CONTROL = r"\x00-\x1f\x7f"
_ESCAPED = rf"\\[^${_CONTROL}]|\\\r?\n"
_SINGLE = rf"'(?:[^'${_CONTROL}]|{DOLLAR})"
_DOUBLE = rf"\"(?:[^\"\\${_CONTROL}]|\\[^${_CONTROL}]|{DOLLAR})"
_FIRST = rf"[^'\"\\$ {_CONTROL}]|\\[^${_CONTROL}]|{DOLLAR}|{_SINGLE}+'|{_DOUBLE}+\""
_ANY = rf"[^'\"\\$\x00-\x08\x0a-\x1f\x7f]|{_ESCAPED}|{DOLLAR}|{_SINGLE}*'|{_DOUBLE}*\""
COMMAND = rf"^[ \t\r\n]*(?:{_FIRST})(?:{_ANY})*[ \t\r\n]*$"


def check_command(text: str) -> str:
    """Return the text; raise `ValueError` unless it is one command that can be split into words."""
    check_dollars(text)
    if re.fullmatch(COMMAND[1:-1], text):
        return text
    if not text.strip():
        raise ValueError("has no words")
    try:
        words = split_command(text)
    except ValueError as error:
        raise ValueError(f"cannot be split into words: {str(error)[:1].lower()}{str(error)[1:]}") from None
    if not words or not words[0]:
        raise ValueError("begins with an empty word")
    if "\n" in text.strip():
        raise ValueError("has several lines; it is one command and no shell reads it")
    raise ValueError("has a dollar after a backslash, or control characters")


def split_command(text: str) -> tuple[str, ...]:
    """Return the words of a command; a backslash at the end of a line continues it."""
    return tuple(shlex.split(re.sub(r"(\\\r?\n)|\\.", lambda found: " " if found[1] else found[0], text)))

"""Text with `${name}` in it, to be filled in; `$$` is a dollar, and in a list of words so is any other."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

NAME = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
DOLLAR = rf"\$\$|\$\{{{NAME}\}}"
LIMIT_LETTERS = 32_768  # of a text that was filled in: Linux takes words of at most 128 KiB

_PART = re.compile(rf"\$\$|\$\{{({NAME})\}}|\$")
_VARIABLE = re.compile(r"\$(?:\{[^}]{0,60}\}?|\w{0,60})")
_BASH = "write $$ for a dollar; for a shell's variables: run: [bash, -c, 'python train.py $HOME/data']"


class Dollar(ValueError):
    """A dollar that stands for nothing; `hint` says what to write."""

    hint = _BASH


def check_dollars(text: str) -> str:
    """The text itself, if each of its dollars is `$$` or `${name}`."""
    for part in _PART.finditer(text):
        if part[0] == "$":
            found = _VARIABLE.match(text, part.start())
            word = found[0] if found else "$"
            raise Dollar(f"has {word!r}: environment variables are not expanded")
    return text


def check_word(text: str) -> str:
    """The text itself, if what begins with `${` is `${name}`; other dollars may be for a shell."""
    for part in re.finditer(rf"\$\$|\$\{{({NAME})\}}|\$\{{", text):
        if part[0] == "${":
            found = _VARIABLE.match(text, part.start())
            raise Dollar(f"has {found[0] if found else '${'!r}: environment variables are not expanded")
    return text


def names(text: str) -> list[str]:
    """The names that a text refers to."""
    return [part[1] for part in _PART.finditer(text) if part[1]]


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with `${name}` replaced; what comes in is not looked at again."""
    if "$" not in text:
        return text
    length = len(text) + sum(len(values[name]) for name in names(text))
    if length > LIMIT_LETTERS:
        raise ValueError(f"becomes longer than {LIMIT_LETTERS:,} letters")
    return _PART.sub(lambda part: values[part[1]] if part[1] else "$", text)


# A command on one line, as `shlex` splits it: no quote or backslash is left open, and there is a first word.
# A line may be continued after a backslash.
_CONTROL = r"\x00-\x1f\x7f"
_ESCAPED = rf"\\[^${_CONTROL}]|\\\r?\n"
_SINGLE = rf"'(?:[^'${_CONTROL}]|{DOLLAR})"
_DOUBLE = rf"\"(?:[^\"\\${_CONTROL}]|\\[^${_CONTROL}]|{DOLLAR})"
_FIRST = rf"[^'\"\\$ {_CONTROL}]|\\[^${_CONTROL}]|{DOLLAR}|{_SINGLE}+'|{_DOUBLE}+\""
_ANY = rf"[^'\"\\$\x00-\x08\x0a-\x1f\x7f]|{_ESCAPED}|{DOLLAR}|{_SINGLE}*'|{_DOUBLE}*\""
COMMAND = rf"^[ \t\r\n]*(?:{_FIRST})(?:{_ANY})*[ \t\r\n]*$"


def check_command(text: str) -> str:
    """The text itself, if it is one command; an error says what is wrong with it."""
    check_dollars(text)
    if re.fullmatch(COMMAND[1:-1], text):
        return text
    if not text.strip():
        raise ValueError("has no words")
    try:
        words = split(text)
    except ValueError as error:
        raise ValueError(f"cannot be split into words: {str(error)[:1].lower()}{str(error)[1:]}") from None
    if not words or not words[0]:
        raise ValueError("begins with an empty word")
    if "\n" in text.strip():
        raise ValueError("has several lines; it is one command and no shell reads it")
    raise ValueError("has a dollar after a backslash, or control characters")


def split(text: str) -> tuple[str, ...]:
    """The words of a command; a backslash at the end of a line continues it."""
    return tuple(shlex.split(re.sub(r"(\\\r?\n)|\\.", lambda found: " " if found[1] else found[0], text)))

"""A job file that is wrong in one field."""

from __future__ import annotations

import reprlib

from wattline.errors import ConfigError

Path = tuple[str | int, ...]

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlong = 40


class WrongField(ConfigError):
    """A field that makes no sense; *path* is where it is in the document."""

    def __init__(self, path: Path, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.path = path

    def __reduce__(self) -> tuple[type[WrongField], tuple[Path, str, str]]:
        return type(self), (self.path, self.message, self.hint)

    def at(self, where: str, line: int | None) -> ConfigError:
        """The same, with the file and the line."""
        place = where if line is None else f"{where}:{line}"
        return ConfigError(f"{place}: {self.message}", self.hint)


def dotted(path: Path) -> str:
    """A path as people write it: `resources.gpus`, `matrix.lr[2]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{_plain(step)}" if text else _plain(step)
    return text


def shown(value: object) -> str:
    """A value as an error names it, on one line and not too long."""
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


def _plain(word: str) -> str:
    return word if word.isprintable() and 0 < len(word) <= 80 else shown(word)

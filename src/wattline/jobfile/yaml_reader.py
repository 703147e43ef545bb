"""YAML reader that keeps the line of every key.

Unquoted words are read as in YAML 1.2: `off`, `yes` and `12:30` are text, `1e-4` is a number. A document has
mappings, lists, text, numbers, true, false and null only. Aliases are allowed, but not inside their own
anchor, and they count towards LIMIT_NODES.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import yaml

from wattline.errors import ConfigError
from wattline.jobfile.errors import FieldError, Path, format_path

LIMIT_BYTES = 2**20
LIMIT_NODES = 100_000  # with aliases expanded
LIMIT_DEPTH = 16

Scalar = str | int | float | bool | None
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]{1,40}|[0-9]{1,40}(?:\.[0-9]{0,40})?)(?:[eE][-+]?[0-9]{1,3})?")
_STR = "tag:yaml.org,2002:str"


@dataclass
class Node:
    """A node of a document: the text of a scalar, the nodes of a list, or those of a mapping by key."""

    line: int
    content: str | list[Node] | dict[str, Node]
    quoted: bool = False
    size: int = 1  # nodes in it, itself included

    def plain(self, as_written: Callable[[Path], bool], path: Path = ()) -> object:
        """Return the data as plain Python; scalars with *as_written(path)* true stay text, unless null."""
        if isinstance(self.content, dict):
            return {key: node.plain(as_written, (*path, key)) for key, node in self.content.items()}
        if isinstance(self.content, list):
            return [node.plain(as_written, (*path, at)) for at, node in enumerate(self.content)]
        if self.quoted:
            return self.content
        value = read_scalar(self.content)
        return self.content if value is not None and as_written(path) else value

    def line_of(self, path: Path) -> int:
        """Return the line of the key or item at a path, or of the nearest node around it."""
        node, line = self, self.line
        for step in path:
            if isinstance(node.content, dict) and step in node.content:
                node = node.content[str(step)]
            elif isinstance(node.content, list) and isinstance(step, int) and step < len(node.content):
                node = node.content[step]
            else:
                break
            line = node.line
        return line


def read_scalar(text: str) -> Scalar:
    """Return the value of an unquoted scalar: null, true, false, a number, or its text."""
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        value = float(text)
        return value if abs(value) < float("inf") else text
    return text


def read_yaml(text: str, where: str) -> Node:
    """Parse a text with one document; error messages begin with `where:line: `."""
    if len(text) > LIMIT_BYTES or len(text.encode("utf-8", "surrogatepass")) > LIMIT_BYTES:
        raise ConfigError(
            f"{where}: longer than {LIMIT_BYTES // 2**20} MiB, expected a job file of at most that size"
        )
    if "\0" in text:
        raise ConfigError(f"{where}:{_line(text, text.index(chr(0)))}: not text: has a NUL, expected YAML")
    try:
        return _Composer(yaml.parse(text, Loader=yaml.SafeLoader)).compose()
    except FieldError as error:
        raise error.at(where, int(error.path[0])) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{where}:{line}: not YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = _line(text, int(error.position))
        raise ConfigError(f"{where}:{line}: not text: {error.reason}, expected YAML") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # invalid numbers in escapes and directives
        raise ConfigError(f"{where}: not YAML: {error}") from None


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _line_of(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _error_at(event: yaml.Event, message: str) -> FieldError:
    """Return an error with the line of the event as its path; `read_yaml` turns it into `where:line`."""
    return FieldError((_line_of(event),), message)


class _Composer:
    """Composer of nodes from PyYAML's events, with limits on depth and aliases that PyYAML's own lacks."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self._events = events
        self._anchors: dict[str, Node | None] = {}  # None while the node is being read
        self._count = 0

    def compose(self) -> Node:
        """Return the root of the only document."""
        next(self._events)
        start = next(self._events)
        if isinstance(start, yaml.StreamEndEvent):
            raise FieldError((1,), "is empty, expected at least run: followed by a command")
        node = self._node(next(self._events), ())
        next(self._events)
        more = next(self._events)
        if not isinstance(more, yaml.StreamEndEvent):
            raise _error_at(more, "a second document begins, expected one job in a file")
        return node

    def _node(self, event: yaml.Event, path: Path) -> Node:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        if len(path) > LIMIT_DEPTH:
            raise _error_at(event, f"nested more than {LIMIT_DEPTH} deep, expected a job file")
        self._add_to_count(event, 1)
        assert isinstance(event, yaml.NodeEvent)
        tag = getattr(event, "tag", None)
        if tag not in (None, "!", _STR):
            raise _error_at(event, f"has the tag {tag!r}, expected plain YAML without tags")
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        line = _line_of(event)
        if isinstance(event, yaml.ScalarEvent):
            node = Node(line, event.value, quoted=event.style is not None or tag is not None)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._list(line, path)
        else:
            node = self._mapping(line, path)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _list(self, line: int, path: Path) -> Node:
        items: list[Node] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, (*path, len(items))))
        return Node(line, items, size=1 + sum(item.size for item in items))

    def _mapping(self, line: int, path: Path) -> Node:
        nodes: dict[str, Node] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key_line = _line_of(event)
            key = self._node(event, (*path, "key")).content
            if not isinstance(key, str):
                raise _error_at(event, f"{format_path(path) or 'the job'} has a key that is not a word")
            here = (*path, key)
            if key in nodes:
                raise _error_at(
                    event, f"{format_path(here)} is given twice, the first time in line {nodes[key].line}"
                )
            value = self._node(next(self._events), here)
            nodes[key] = Node(key_line, value.content, value.quoted, value.size)
        return Node(line, nodes, size=1 + sum(node.size for node in nodes.values()))

    def _alias(self, event: yaml.AliasEvent) -> Node:
        name = str(event.anchor)
        if name not in self._anchors:
            raise _error_at(event, f"*{name} is used, but there is no &{name} before it")
        node = self._anchors[name]
        if node is None:
            raise _error_at(event, f"*{name} is used inside &{name} itself")
        self._add_to_count(event, node.size)
        return node

    def _add_to_count(self, event: yaml.Event, more: int) -> None:
        self._count += more
        if self._count > LIMIT_NODES:
            raise _error_at(event, f"has more than {LIMIT_NODES:,} values, aliases included")

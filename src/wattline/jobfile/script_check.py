"""Whether a command can be trained as one array with others like it, by reading its script."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

LIMIT_BYTES = 2**20

_PYTHON = re.compile(r"python(?:3(?:\.[0-9]+)?)?")
_HOME = "wattline.fusion"


def fusible(words: Sequence[str], workdir: Path) -> Path | None:
    """The script of `python [-u] script.py name=value …` if it calls `wattline.fusion.main`, else None.

    The script is read, never run. Values with a comma would be several members already.
    """
    words = list(words)
    if not words or not _PYTHON.fullmatch(words[0].rpartition("/")[2]):
        return None
    rest = words[2:] if words[1:2] == ["-u"] else words[1:]
    if not rest or rest[0].startswith("-") or not all(_is_setting(word) for word in rest[1:]):
        return None
    names = [word.partition("=")[0] for word in rest[1:]]
    if len(set(names)) < len(names):
        return None
    try:
        script = (workdir / rest[0]).resolve()
        if not script.is_file() or script.suffix != ".py" or script.stat().st_size > LIMIT_BYTES:
            return None
        tree = ast.parse(script.read_bytes())
    except (OSError, RuntimeError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return script if _calls_main(tree) else None


def _is_setting(word: str) -> bool:
    name, sign, value = word.partition("=")
    return bool(sign) and name.isidentifier() and "," not in value


def _calls_main(tree: ast.Module) -> bool:
    nodes = list(ast.walk(tree))
    meant = {alias: name for node in nodes for alias, name in _imported(node)}
    return any(
        isinstance(node, ast.Call) and _full_name(node.func, meant) == f"{_HOME}.main" for node in nodes
    )


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that an import makes, and what they mean."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname:
                yield alias.asname, alias.name
            else:
                top = alias.name.partition(".")[0]
                yield top, top
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for alias in node.names:
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _full_name(node: ast.expr, meant: dict[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in meant:
        return ""
    return ".".join((meant[node.id], *reversed(parts)))

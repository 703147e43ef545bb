"""Detection of scripts that call `wattline.fusion.main`, so that members of a sweep can be fused."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

LIMIT_BYTES = 2**20  # larger scripts are not read

_PYTHON = re.compile(r"python(?:3(?:\.[0-9]+)?)?")
_ENTRY_POINT = "wattline.fusion.main"


def find_fusible_script(words: Sequence[str], workdir: Path) -> Path | None:
    """Return the script of a command that one process can train together with others, or None.

    The command must be `python [-u] script.py name=value …`, and the script must call `wattline.fusion.main`.
    It is parsed, never run. Values with a comma are excluded: `main` would split them into several members.
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
    imports = {alias: name for node in nodes for alias, name in _imported_names(node)}
    return any(
        isinstance(node, ast.Call) and _qualified_name(node.func, imports) == _ENTRY_POINT for node in nodes
    )


def _imported_names(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each name that an import binds, with its qualified name."""
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


def _qualified_name(node: ast.expr, imports: dict[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in imports:
        return ""
    return ".".join((imports[node.id], *reversed(parts)))

"""Hook of mkdocs: pages from outside of `docs/`, generated reference pages, and links between them.

README.md is the home page. Nothing that is generated here is kept in the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from reference_pages import build_pages

ROOT = Path(__file__).resolve().parents[2]
MOVED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "SECURITY.md": "security.md",
    "benchmarks/record.md": "record.md",
}
"""Pages outside of `docs/`, and their names on the site."""

_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)")
_FENCE = re.compile(r"^ *```.*?^ *```", re.M | re.S)


def on_files(files: Files, config: Any) -> Files:
    """Add the moved and the generated pages."""
    for source, name in MOVED.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    for name, text in build_pages().items():
        files.append(File.generated(config, f"reference/{name}", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at the places on the site, and unlink files of the repository that it does not have."""
    name = page.file.src_uri
    source = next((old for old, new in MOVED.items() if new == name), f"docs/{name}")
    if name.startswith("reference/"):
        return markdown
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_rewrite(markdown[end : fence.start()], source, name), fence[0]]
        end = fence.end()
    return "".join((*parts, _rewrite(markdown[end:], source, name)))


def _rewrite(text: str, source: str, name: str) -> str:
    return _LINK.sub(lambda found: _move_link(found, source, name), text)


def _move_link(found: re.Match[str], source: str, name: str) -> str:
    label, target = found[1], found[2]
    path, mark, anchor = target.partition("#")
    if "://" in target or not path:
        return found[0]
    absolute = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if not (ROOT / absolute).exists():
        return found[0]  # mkdocs reports it
    if absolute in MOVED:
        place = MOVED[absolute]
    elif absolute.startswith("docs/"):
        place = absolute.removeprefix("docs/")
    else:
        return f"`{absolute}`" if label.strip("[]`") == absolute else f"{label.strip('[]')} (`{absolute}`)"
    return f"{label}({posixpath.relpath(place, posixpath.dirname(name) or '.')}{mark}{anchor})"

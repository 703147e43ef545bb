"""Code blocks of the documents: where they are, what they hold, and whether a test runs them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_RUN = "Not run by the tests:"
"""Beginning of the visible line below a block that no test runs; the reason follows."""
KINDS = frozenset(("sh", "python", "yaml", "toml", "json", "csv", "ini", "nginx", "text"))
"""Languages of blocks; `text` is output, or a drawing."""

_FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>[^\n]*)\n(?P<text>.*?)^ *```$", re.M | re.S)
_NAMED_INSIDE = re.compile(r"# (?:\S*/)?([\w-]+\.(?:yaml|yml|toml|ini|service|py|csv))\b")
_NAMED_BEFORE = re.compile(r"`(?:[^`\s]* )*([\w-]+\.(?:json|csv|yaml|toml|py))`[^`\n]*:\s*$")
_COMMAND = re.compile(r"^(wattline|python3?|pip|make|sbatch|sacct|curl|cp|git) ", re.M)


@dataclass(frozen=True)
class Block:
    """A code block; *name* is the file that the page calls it, *reason* why no test runs it (or empty)."""

    path: Path
    line: int
    kind: str
    text: str
    name: str
    reason: str

    @property
    def place(self) -> str:
        """Return `docs/service.md:14`."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def list_pages() -> list[Path]:
    """Return the documents with code that readers may type."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def read_blocks(path: Path) -> list[Block]:
    """Return the blocks of a document in their order."""
    text = path.read_text(encoding="utf-8")
    blocks = []
    for found in _FENCE.finditer(text):
        indent, body = len(found["indent"]), found["text"]
        body = "".join(line[indent:] if line.strip() else line for line in body.splitlines(keepends=True))
        before, after = text[: found.start()].rstrip(), text[found.end() :].lstrip()
        named = _NAMED_INSIDE.match(body) or _NAMED_BEFORE.search(before.rpartition("\n")[2])
        reason = after.partition("\n")[0].removeprefix(NOT_RUN) if after.startswith(NOT_RUN) else ""
        line = text.count("\n", 0, found.start()) + 1
        blocks.append(Block(path, line, found["kind"], body, named[1] if named else "", reason.strip()))
    return blocks


def find_fault(block: Block) -> str:
    """Return what is wrong with the marking of a block; empty: nothing."""
    if block.kind not in KINDS:
        return f"its language is {block.kind!r}, expected one of {', '.join(sorted(KINDS))}"
    if block.kind == "text" and (found := _COMMAND.search(block.text)):
        return f"it is text, but has the command {found[1]}: mark it as sh"
    return ""

"""The words of docstrings, comments, messages and documents: ../shared/vocabulary.md as a test."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "benchmarks", "demo", "examples", "docs")
BANNED = re.compile(
    r"\b(wh"
    r"o|wh"
    r"oever|wh"
    r"om|wh"
    r"ose|no"
    r"body|some"
    r"body|every"
    r"body|any"
    r"body|to"
    r"ld|sa"
    r"id)\b",
    re.IGNORECASE,
)
QUESTION = re.compile(r"^(What|Wh" r"o|Whether|How|Which|Where|When|Why)\b")
EXCEPTIONS: frozenset[str] = frozenset()  # files that may still use banned words: stays empty


def python_files() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every comment and string of a Python file, or of every line of a document."""
    if path.suffix == ".md":
        yield from enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        return
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    with tokenize.open(path) as text:
        for token in tokenize.generate_tokens(text.readline):
            if token.type in kinds:
                yield from enumerate(token.string.splitlines(), token.start[0])


def docstrings_of(path: Path) -> Iterator[tuple[int, str]]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text


def names_of(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


def test_no_banned_word_is_used() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.strip()[:90]}"
        for path in [*python_files(), *documents()]
        if path.relative_to(ROOT).as_posix() not in EXCEPTIONS
        for line, text in prose_of(path)
        if BANNED.search(text)
    ]
    assert not found, f"{len(found)} lines with banned words:\n" + "\n".join(found[:40])


def test_no_name_is_made_of_a_banned_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in python_files()
        for line, name in names_of(path)
        if any(BANNED.fullmatch(part) for part in re.split(r"_|(?<=[a-z])(?=[A-Z])", name))
    ]
    assert not found, "\n".join(found)


def test_docstrings_are_statements_and_not_questions() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0][:90]}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, text in docstrings_of(path)
        if QUESTION.match(text)
    ]
    assert not found, "\n".join(found)


def test_class_names_are_unique_in_the_package() -> None:
    homes: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    twice = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert set(twice) <= {"Session"}, twice


@pytest.mark.parametrize(
    "path",
    [path for path in documents() if path.name != "record.md"],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_a_document_has_lines_of_at_most_100_characters(path: Path) -> None:
    outside_code, inside = [], False
    for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        inside ^= text.startswith("```")
        if len(text) > 100 and not inside and not text.startswith("|") and "](" not in text:
            outside_code.append(f"{line}: {text[:60]}…")
    assert not outside_code, "\n".join(outside_code)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150

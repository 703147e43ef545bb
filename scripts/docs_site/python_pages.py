"""The reference of the Python names, from their signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from markdown_text import format_docstring

MODULES = (
    "wattline",
    "wattline.fusion",
    "wattline.policy",
    "wattline.integrations.huggingface",
    "wattline.integrations.lightning",
    "wattline.integrations.optuna_energy",
    "wattline.integrations.framework_run",
    "wattline.service.api_client",
    "wattline.testing",
)
"""Modules with public names; those without `__all__` list what they define."""


def build_python_page() -> str:
    """Return the page of all public names."""
    parts = ["# Python\n", "Generated from the docstrings of the code.\n"]
    for name in MODULES:
        module = import_module(name)
        parts.append(f"## {name}\n\n{format_docstring(module)}\n")
        parts += [_describe(name, public, getattr(module, public)) for public in _list_names(module)]
    return "\n".join(parts)


def _list_names(module: Any) -> list[str]:
    names = getattr(module, "__all__", None) or [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", "") == module.__name__
    ]
    return sorted((name for name in names if name != "__version__"), key=str.lower)


def _describe(module: str, name: str, thing: Any) -> str:
    lines = [f"### {module}.{name}", ""]
    if callable(thing):
        lines += ["```python", _format_signature(name, thing), "```", ""]
        lines += [format_docstring(thing), ""]
    if inspect.isclass(thing):
        for method, member in _list_members(thing):
            lines += [f"- `{method}`: {(inspect.getdoc(member) or '').partition(chr(10))[0]}"]
        lines.append("")
    if not callable(thing):
        lines += [f"`{thing!r}`", ""]
    return "\n".join(lines)


def _list_members(thing: type) -> Iterator[tuple[str, Any]]:
    """Yield the documented public methods and properties that the class itself defines."""
    for name, member in vars(thing).items():
        if name.startswith("_"):
            continue
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if isinstance(plain, property) and inspect.getdoc(plain):
            yield name, plain
        elif inspect.isfunction(plain) and inspect.getdoc(plain):
            yield (
                f"{name}{_format_parameters(plain, leave_out_first=not isinstance(member, staticmethod))}",
                plain,
            )


def _format_signature(name: str, thing: Any) -> str:
    kind = "class" if inspect.isclass(thing) else "def"
    text = f"{kind} {name}{_format_parameters(thing)}"
    text = text.removesuffix(" -> None") if kind == "class" else text
    if len(text) <= 96:
        return text
    head, _, rest = text.partition("(")
    inside, _, tail = rest.rpartition(")")
    return head + "(\n" + "".join(f"    {one},\n" for one in _split(inside)) + ")" + tail


def _format_parameters(thing: Any, leave_out_first: bool = False) -> str:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    values = list(signature.parameters.values())
    short = [
        one.replace(default=...) if one.default is not one.empty and len(repr(one.default)) > 40 else one
        for one in values[1 if leave_out_first else 0 :]
    ]
    return str(signature.replace(parameters=short)).replace("'", "")


def _split(text: str) -> list[str]:
    """Split parameters at the commas outside of brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]

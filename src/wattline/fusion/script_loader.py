"""Load `build` and `train` of a training script without training."""

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from wattline.errors import ConfigError, NotFound
from wattline.fusion import script_main

_WHAT_TO_WRITE = (
    "define build(config), which returns a model, and train(array, configs), "
    "and end the script with wattline.fusion.main(build, train)"
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_TRAINING_CALLS = frozenset(("backward", "train_step", "tune"))


def load_script(script: Path) -> tuple[script_main.Build, script_main.Train]:
    """Return the `build` and `train` of *script*, which is refused if loading it would train.

    The script runs up to its call of `wattline.fusion.main`, or, if it only defines `build` and `train`,
    as if it were imported.
    """
    if not script.is_file():
        raise NotFound(f"{script}: no such script")
    calls_main = check_script(script)
    calls: list[tuple[script_main.Build, script_main.Train]] = []
    script_main.captured, before = calls, (sys.argv[:], sys.path[:])
    sys.argv, sys.path = [str(script)], [str(script.parent), *sys.path]
    guard = register_optimizer_step_pre_hook(_refuse_step)
    names: dict[str, Any] = {}
    try:
        names = runpy.run_path(str(script), run_name="__main__" if calls_main else script.stem)
    except script_main.Captured:
        pass
    except _TrainsWhileLoading:
        raise ConfigError(
            f"{script}: trains while it is loaded, before wattline.fusion.main is called", _WHAT_TO_WRITE
        ) from None
    except SystemExit as stop:
        raise ConfigError(f"{script}: exited ({stop}) before it called wattline.fusion.main") from None
    finally:
        guard.remove()
        script_main.captured, (sys.argv, sys.path) = None, before
    if calls:
        return calls[0]
    if callable(names.get("build")) and callable(names.get("train")):
        return names["build"], names["train"]
    raise ConfigError(f"{script}: ended without a call of wattline.fusion.main", _WHAT_TO_WRITE)


def check_script(script: Path) -> bool:
    """Return whether *script* calls `wattline.fusion.main`, without running it.

    Raise `ConfigError` if it neither does so nor defines `build` and `train`, or if it trains outside them.
    """
    try:
        tree = ast.parse(script.read_bytes(), str(script))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{script}: not a Python script: {error}") from None
    main_names = _find_main_names(tree)
    main_lines = [call.lineno for call in _find_calls(tree) if _dotted_name(call.func) in main_names]
    if not main_lines and not {"build", "train"} <= _find_top_level_names(tree):
        raise ConfigError(
            f"{script}: nothing calls wattline.fusion.main, and it does not define build and train; "
            "it was not run",
            _WHAT_TO_WRITE,
        )
    training = _find_training_functions(tree)
    for statement in _list_executed_statements(tree.body, is_main=bool(main_lines)):
        if _dotted_name(getattr(getattr(statement, "value", None), "func", None)) in main_names:
            break  # nothing after it runs
        for call in _find_calls(statement):
            name = _dotted_name(call.func).rpartition(".")[2]
            if name in _TRAINING_CALLS or (isinstance(call.func, ast.Name) and name in training):
                raise ConfigError(
                    f"{script}:{call.lineno}: trains outside train(array, configs) ({name}); it was not run",
                    _WHAT_TO_WRITE,
                )
    return bool(main_lines)


class _TrainsWhileLoading(BaseException):
    """Ends a script that updates parameters while it is loaded."""


def _refuse_step(optimiser: Optimizer, args: Any, kwargs: Any) -> None:
    raise _TrainsWhileLoading


def _find_main_names(tree: ast.Module) -> set[str]:
    """Return the dotted names under which the script can call `wattline.fusion.main`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "wattline.fusion":
                    names.add(f"{alias.asname or alias.name}.main")
                elif alias.name == "wattline":
                    names.add(f"{alias.asname or alias.name}.fusion.main")
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                if (node.module, alias.name) == ("wattline", "fusion"):
                    names.add(f"{alias.asname or alias.name}.main")
                elif node.module == "wattline.fusion" and alias.name in ("main", "*"):
                    names.add(alias.asname or "main")
    return names


def _find_top_level_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, _FUNCTIONS):
            names.add(statement.name)
        elif isinstance(statement, ast.Assign):
            names.update(target.id for target in statement.targets if isinstance(target, ast.Name))
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in statement.names)
    return names


def _find_training_functions(tree: ast.Module) -> set[str]:
    """Return `train` and the functions of the script that train, directly or through another of them."""
    calls = {
        statement.name: {_dotted_name(call.func).rpartition(".")[2] for call in _find_calls(statement)}
        for statement in tree.body
        if isinstance(statement, _FUNCTIONS)
    }
    training = {"train"} & set(calls)
    while True:
        more = {name for name, called in calls.items() if called & (_TRAINING_CALLS | training)} - training
        if not more:
            return training
        training |= more


def _list_executed_statements(body: list[ast.stmt], is_main: bool) -> Iterator[ast.AST]:
    """Yield the statements and headers that run when the script does; `is_main` includes its main part."""
    for statement in body:
        if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
            continue
        if isinstance(statement, ast.If) and "__name__" in ast.dump(statement.test):
            yield from _list_executed_statements(statement.body if is_main else statement.orelse, is_main)
            continue
        inner = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        if not any(inner):
            yield statement
            continue
        for name in ("test", "iter"):
            if header := getattr(statement, name, None):
                yield header
        for block in [*inner, *(handler.body for handler in getattr(statement, "handlers", []))]:
            yield from _list_executed_statements(block, is_main)


def _find_calls(node: ast.AST) -> Iterator[ast.Call]:
    return (part for part in ast.walk(node) if isinstance(part, ast.Call))


def _dotted_name(node: ast.AST | None) -> str:
    """Return `a.b.c` of a name or attribute; of any other value only the attributes."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted_name(node.value)}.{node.attr}"
    return ""

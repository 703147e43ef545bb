"""Folder of submitted calls: their pickles, the results, and the command of their jobs."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from wattline.errors import ConfigError

Call = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]
_ID_MARKS = ("%j", "%A", "%a", "%t")


class CallResult(NamedTuple):
    """Outcome of a call: its value, or the error that it raised and the text of its traceback."""

    failed: bool
    value: Any
    trace: str


def import_cloudpickle() -> ModuleType:
    """Return cloudpickle; raise `ConfigError` where it is not installed."""
    try:
        import cloudpickle
    except ImportError:
        raise ConfigError("cloudpickle is not installed", 'pip install "wattline[executor]"') from None
    module: ModuleType = cloudpickle
    return module


class CallFolder:
    """Calls that are submitted together: `header.json`, `N.pkl` and `N_RANK_result.pkl` for each call."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, root: str | Path, calls: Sequence[Call], tasks: int) -> CallFolder:
        """Write *calls* to a new folder below *root*; parts of *root* from `%j` on are left out."""
        cloudpickle = import_cloudpickle()
        parts = Path(root).expanduser().absolute().parts
        fixed = itertools.takewhile(lambda part: not any(mark in part for mark in _ID_MARKS), parts)
        folder = cls(Path(*fixed) / uuid.uuid4().hex)
        try:
            folder.path.mkdir(parents=True)
        except OSError as error:
            raise ConfigError(f"{folder.path}: cannot be created: {error.strerror}") from None
        import_path = [os.path.abspath(part) for part in sys.path]
        header = {"import_path": import_path, "tasks": tasks}
        (folder.path / "header.json").write_text(json.dumps(header), encoding="utf-8")
        for number, call in enumerate(calls):
            folder.call_path(number).write_bytes(cloudpickle.dumps(call))
        return folder

    def call_path(self, number: int) -> Path:
        """Return the file of the pickled call."""
        return self.path / f"{number}.pkl"

    def result_path(self, number: int, task: int) -> Path:
        """Return the file of the result of one task of a call."""
        return self.path / f"{number}_{task}_result.pkl"

    def read_call(self, number: int) -> Call:
        """Return the call as it was submitted, or as its last checkpoint left it."""
        call: Call = import_cloudpickle().loads(self.call_path(number).read_bytes())
        return call

    def read_result(self, number: int, task: int) -> CallResult | None:
        """Return the result of one task; None: there is none."""
        try:
            text = self.result_path(number, task).read_bytes()
        except FileNotFoundError:
            return None
        outcome, value, trace = pickle.loads(text)
        return CallResult(outcome == "error", value, trace)

    def build_command(self, number: str) -> list[str]:
        """Return the command of the job of call *number*, which may be a `${name}` of a matrix."""
        program = Path(__file__).with_name("run_call.py")
        words = [sys.executable, "-P", str(program), str(self.path)]
        return [*(word.replace("$", "$$") for word in words), number]

"""A service on simulated GPUs that integrations find, and scripts that run against it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.http_service import enter_service, serve_http
from wattline.service.controller import Controller

SOURCE = Path(__file__).parents[2] / "src"
RunScript = Callable[..., str]


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """A service on simulated GPUs, for all tests of this folder."""
    with serve_http(tmp_path_factory.mktemp("service")) as controller:
        yield controller


@pytest.fixture
def here(service: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make integrations find the service, and run in this empty folder."""
    return enter_service(service, tmp_path, monkeypatch)


@pytest.fixture
def run_script(here: Path) -> RunScript:
    """Return a function that runs a script in a process of its own and returns its output."""

    def run(text: str, *words: str, code: int = 0, **env: str) -> str:
        path = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
        script = here / "script.py"
        script.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(script), *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **env},
            cwd=here,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    return run

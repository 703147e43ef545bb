"""Fixtures: a small trace, and a service on simulated GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from wattline.service.controller import Controller


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Twelve jobs of an hour, every third of team b, which request more GPUs than there are."""
    names = ("resnet50", "vgg16", "bert", "gpt2")
    rows = [f"job-{n},{600 * n},{2 + 2 * (n % 2)},3600,{names[n % 4]},{'aab'[n % 3]}" for n in range(12)]
    trace: Path = tmp_path_factory.mktemp("few") / "jobs.csv"
    trace.write_text("\n".join(("id,submit_s,gpus,duration_s,model,team", *rows, "")))
    return ["--trace", str(trace), "--cluster", "2xa100:8", "--models", "library"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """A service on simulated GPUs, for the tests of one file."""
    from support.http_service import serve_http

    with serve_http(tmp_path_factory.mktemp("service")) as controller:
        yield controller


@pytest.fixture
def here(service: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make commands find the service, and run them in this empty folder."""
    from support.http_service import enter_service

    return enter_service(service, tmp_path, monkeypatch)

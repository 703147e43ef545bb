"""A service on a port of its own and a browser, shared by the tests of one module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from support.browser import Visitor, open_window, run_chromium
from support.http_service import serve_http
from wattline.service.controller import Controller
from wattline.service.http.auth import TokenStore

OpenVisitor = Callable[..., Visitor]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("web")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Controller]:
    with serve_http(folder, rate=1e6) as controller:
        yield controller


@pytest.fixture(scope="module")
def url(folder: Path, served: Controller) -> str:
    return (folder / "url").read_text().strip()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with run_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def tokens(served: Controller) -> dict[str, str]:
    """Return a token of each role."""
    store = TokenStore(served.store, served.clock)
    return {role: store.create(f"a-{role}", role) for role in ("viewer", "user", "operator")}


@pytest.fixture
def open_visitor(chromium: Browser, url: str, tokens: dict[str, str]) -> Iterator[OpenVisitor]:
    """Return a function that opens a window and logs in with a role; its console has to stay empty."""
    with ExitStack() as stack:
        opened: list[Visitor] = []

        def open_one(role: str = "operator", **options: Any) -> Visitor:
            visitor = stack.enter_context(open_window(chromium, url, **options))
            visitor.log_in(tokens[role])
            opened.append(visitor)
            return visitor

        yield open_one
        for visitor in opened:
            assert visitor.messages == []

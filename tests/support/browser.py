"""A real browser: Debian's chromium, driven by Playwright, with everything that it complains about."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

OUT = Path(__file__).parents[2] / "out" / "web"
"""Folder of the screenshots."""


@contextmanager
def run_chromium() -> Iterator[Browser]:
    """Run chromium; skip the test where it is not installed."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed; scripts/install-system-packages installs it")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visitor:
    """A browser window of one user, and the messages of its console."""

    url: str
    context: BrowserContext
    page: Page
    messages: list[str] = field(default_factory=list)

    def open(self, path: str = "/") -> Page:
        """Open a page of the service."""
        self.page.goto(self.url + path)
        return self.page

    def log_in(self, token: str) -> Page:
        """Log in by the form."""
        page = self.open("/login")
        page.fill("#token", token)
        page.click("form button.main")
        page.wait_for_selector("#connection.live")
        return page

    def take_picture(self, name: str) -> None:
        """Keep a screenshot of the whole page."""
        OUT.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=OUT / f"{name}.png", full_page=True)

    def fetch(self, method: str, path: str, headers: dict[str, str], body: str | None = None) -> int:
        """Send a request by a script of the page, and return the status."""
        script = (
            "async ([m, p, h, b]) => (await fetch(p, {method: m, headers: h, body: b ?? undefined})).status"
        )
        return int(self.page.evaluate(script, [method, path, headers, body]))


@contextmanager
def open_window(browser: Browser, url: str, **options: Any) -> Iterator[Visitor]:
    """Open a window; it notes errors and all messages of the console, of which there should be none."""
    options.setdefault("viewport", {"width": 1280, "height": 900})
    context = browser.new_context(timezone_id="Europe/Berlin", **options)
    context.set_default_timeout(20_000)
    visitor = Visitor(url, context, context.new_page())
    visitor.page.on("console", lambda message: visitor.messages.append(f"{message.type}: {message.text}"))
    visitor.page.on("pageerror", lambda error: visitor.messages.append(f"error: {error}"))
    try:
        yield visitor
    finally:
        context.close()

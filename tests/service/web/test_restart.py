"""A page that is open while the service is killed and started again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from support.browser import open_window
from support.controllers import wait_until
from wattline.service.client import Client

pytestmark = pytest.mark.slow


@contextmanager
def run_service(folder: Path, port: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """Run `wattline serve` as a process until it is ready."""
    (folder / "url").unlink(missing_ok=True)
    command = [sys.executable, "-m", "wattline", "serve", "--dir", str(folder), "--port", str(port)]
    service = subprocess.Popen([*command, "--gpus", "simulated:2xa100"], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: (folder / "url").exists() or service.poll() is not None, "no address")
        assert service.poll() is None
        yield service
    finally:
        service.terminate()
        service.wait()


def test_a_page_reconnects_after_the_service_was_killed(tmp_path: Path, chromium: Browser) -> None:
    with run_service(tmp_path) as service:
        url = (tmp_path / "url").read_text().strip()
        token = (tmp_path / "token").read_text().strip()
        with open_window(chromium, url) as visitor:
            visitor.log_in(token)
            page = visitor.open("/jobs?text=after-restart")
            page.evaluate("window.sameDocument = true")
            expect(page.locator("#connection")).to_have_class("connection live")
            service.kill()
            service.wait()
            expect(page.locator("#connection")).to_have_class("connection lost")
            with run_service(tmp_path, int(url.rpartition(":")[2])):
                Client(url, token).post("/jobs", {"run": "true", "name": "after-restart"})
                expect(page.locator("#total")).to_have_text("1", timeout=20_000)
                expect(page.locator("#connection")).to_have_class("connection live")
                expect(page.locator(".state.succeeded")).to_have_count(1, timeout=20_000)
                assert page.evaluate("window.sameDocument")  # the page was not loaded again
            # The browser notes refused connections, and answers 503 while the service starts.
            unexpected = [one for one in visitor.messages if "ERR_" not in one and " 503 " not in one]
            assert unexpected == []

"""Screenshots of the service's pages, by a headless chromium without any Python package.

The browser is driven by the DevTools protocol over a pair of pipes, so that the session's cookie is neither
in a command line nor open to other users of the machine.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
SIZE = {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
WAIT_S = 30


def find_browser() -> str | None:
    """Return the path of a browser; None: there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def keep_screenshots(url: str, token: str, pages: dict[Path, str]) -> None:
    """Log in with a token and write a PNG file of each page; *pages* are paths of the service by file."""
    browser = find_browser()
    assert browser is not None
    with open_tab(browser) as tab:
        for name, value in log_in(url, token).items():
            tab.send("Network.setCookie", url=url, name=name, value=value, httpOnly=True)
        tab.send("Emulation.setDeviceMetricsOverride", **SIZE)
        tab.send("Page.enable")
        for file, path in pages.items():
            tab.send("Page.navigate", url=url + path)
            tab.wait_for("Page.loadEventFired")
            picture = tab.send("Page.captureScreenshot", format="png")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(base64.b64decode(picture["data"]))


def log_in(url: str, token: str) -> dict[str, str]:
    """Start a session and return its cookies."""
    request = urllib.request.Request(
        f"{url}/api/v1/session",
        json.dumps({"token": token}).encode(),
        {"Content-Type": "application/json", "Origin": url},
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        cookies = SimpleCookie(answer.headers["Set-Cookie"])
    return {name: one.value for name, one in cookies.items()}


class Tab:
    """A tab of the browser: commands, each with its answer, and events."""

    def __init__(self, commands: Any, answers: Any) -> None:
        self._commands, self._answers, self._number = commands, answers, 0
        self._events: list[str] = []
        self._session = ""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        self._events.clear()
        while (answer := self._read()).get("id") != self._number:
            self._events.append(answer.get("method", ""))
        if "error" in answer:
            raise OSError(f"the browser refuses {method}: {answer['error']['message']}")
        return dict(answer["result"])

    def wait_for(self, event: str) -> None:
        """Wait for an event after the last command."""
        while event not in self._events:
            self._events.append(self._read().get("method", ""))

    def _read(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            if not byte:
                raise OSError("the browser ended")
            text += byte
        return dict(json.loads(text))


@contextmanager
def open_tab(browser: str) -> Iterator[Tab]:
    """Run a browser with an empty profile and open a tab."""
    read_commands, write_commands = os.pipe()
    read_answers, write_answers = os.pipe()
    # The browser reads file 3 and writes file 4; numbers above those, so that none is overwritten.
    theirs = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (read_commands, write_answers)]
    os.close(read_commands)
    os.close(write_answers)

    def place_files() -> None:
        os.dup2(theirs[0], 3)
        os.dup2(theirs[1], 4)

    options = ["--headless", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
    options.append("--remote-debugging-pipe")
    if os.geteuid() == 0:
        options.append("--no-sandbox")  # the sandbox refuses to run as root
    with (
        tempfile.TemporaryDirectory(prefix="wattline-browser-", ignore_cleanup_errors=True) as profile,
        open(write_commands, "wb") as commands,
        open(read_answers, "rb") as answers,
    ):
        process = subprocess.Popen(
            [browser, *options, f"--user-data-dir={profile}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=place_files,
            pass_fds=(3, 4),
        )
        for one in theirs:
            os.close(one)
        try:
            yield Tab(commands, answers)
        finally:
            process.terminate()
            process.wait()

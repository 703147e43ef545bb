"""HTTP service in this process, as `wattline serve` starts it, on a free port."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import uvicorn

from wattline.errors import Conflict
from wattline.service.controller import Controller
from wattline.service.http.app import create_app
from wattline.service.settings import ServiceSettings

GPUS = "simulated:4xa100"


@contextmanager
def serve_http(
    folder: Path, rate: float = 500.0, settings: ServiceSettings | None = None, policy: str = "auto"
) -> Iterator[Controller]:
    """Serve *folder* and write its files `url` and `token`; cancel all jobs at the end."""
    controller = Controller(folder, gpus=GPUS, settings=settings, policy=policy)
    controller.start()
    app = create_app(controller, rate=rate)
    app.state.tokens.ensure_service_token(folder)
    config = uvicorn.Config(app, port=0, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        _wait_until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        (folder / "url").write_text(f"http://127.0.0.1:{port}\n")
        yield controller
    finally:
        for job in controller.store.live_jobs():
            with suppress(Conflict):  # it ended meanwhile
                controller.cancel(job.id)
        _wait_until(lambda: not controller.store.live_jobs())
        server.should_exit = True
        controller.close_streams()
        thread.join()
        (folder / "url").unlink(missing_ok=True)
        controller.stop()


def enter_service(service: Controller, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make commands and integrations find *service*, and run them in *folder*."""
    monkeypatch.setenv("WATTLINE_DIR", str(service.folder))
    for name in ("WATTLINE_URL", "WATTLINE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
    return folder


def _wait_until(condition: object, timeout_s: float = 20.0) -> None:
    assert callable(condition)
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.02)

"""A service in this process: as `wattline serve` makes it, on a port of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from wattline.service.controller import Controller
from wattline.service.http.app import create_app

GPUS = "simulated:4xa100"


@contextmanager
def serve_http(folder: Path, rate: float = 500.0) -> Iterator[Controller]:
    """Serves *folder*, and says so in its files `url` and `token`; ends its jobs when it ends."""
    controller = Controller(folder, gpus=GPUS)
    controller.start()
    app = create_app(controller, rate=rate)
    app.state.tokens.own(folder)
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
        for job in controller.store.jobs("state IN ('PENDING', 'RUNNING')"):
            controller.cancel(job.id)
        _wait_until(lambda: not controller.store.jobs("state IN ('PENDING', 'RUNNING')"))
        server.should_exit = controller.leaving = True
        thread.join()
        (folder / "url").unlink(missing_ok=True)
        controller.stop()


def _wait_until(true: object, most_s: float = 20.0) -> None:
    assert callable(true)
    until_s = time.monotonic() + most_s
    while not true():
        assert time.monotonic() < until_s
        time.sleep(0.02)

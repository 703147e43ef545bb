from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from typing import Any

from wattline.service.startup_server import StartupServer


def get(listener: socket.socket, path: str) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_health_is_answered_while_the_service_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, StartupServer(listener) as startup:
        assert get(listener, "/healthz") == (200, {"status": "ok", "problem": ""})
        startup.progress = "compiling kernels 12/40"
        assert get(listener, "/readyz?x=1") == (
            503,
            {"status": "failing", "problem": "compiling kernels 12/40"},
        )
        status, problem = get(listener, "/api/v1/jobs")
        assert status == problem["status"] == 503
        assert problem["detail"] == "the service is starting: compiling kernels 12/40"


def test_broken_requests_do_not_stop_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, StartupServer(listener):
        for text in (b"", b"\r\n\r\n", b"\xff\xfe\r\n\r\n", b"GET" + b"x" * 20_000):
            with socket.create_connection(listener.getsockname(), timeout=10) as connection:
                connection.sendall(text)
        assert get(listener, "/healthz")[0] == 200


def test_connections_that_wait_are_left_to_the_next_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with StartupServer(listener):
            get(listener, "/healthz")
        with socket.create_connection(listener.getsockname(), timeout=10) as waiting:
            accepted, _ = listener.accept()
            with accepted:
                accepted.sendall(b"next")
            assert waiting.recv(10) == b"next"

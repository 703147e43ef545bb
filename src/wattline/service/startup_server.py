"""Answers on the service's socket while the service itself is not imported or compiled yet.

Health checks work from the first moment, and every other request is answered 503 with the reason. It uses the
standard library only: FastAPI takes a second to import, and kernels up to two minutes to compile.
"""

from __future__ import annotations

import json
import select
import socket
import threading
from contextlib import suppress

_POLL_S = 0.05
_TIMEOUT_S = 1.0  # of one connection
_HEAD_LIMIT_BYTES = 8192


class StartupServer:
    """A thread that answers requests on a listening socket; `with` stops it and leaves the socket open.

    Connections that it has not accepted wait in the queue of the socket for the next server.
    """

    def __init__(self, listener: socket.socket, progress: str = "starting") -> None:
        self._listener = listener
        self.progress = progress  # shown as the problem; any thread may set it
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wattline-startup", daemon=True)

    def __enter__(self) -> StartupServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            ready, _, _ = select.select([self._listener], [], [], _POLL_S)
            if ready and not self._stopping.is_set():
                with suppress(OSError):
                    connection, _ = self._listener.accept()
                    with connection:
                        connection.settimeout(_TIMEOUT_S)
                        self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head and len(head) < _HEAD_LIMIT_BYTES:
            block = connection.recv(_HEAD_LIMIT_BYTES)
            if not block:
                return
            head += block
        words = head.split(b"\r\n", 1)[0].split(b" ")
        path = words[1].split(b"?")[0] if len(words) > 1 else b""
        connection.sendall(self._build_response(path))

    def _build_response(self, path: bytes) -> bytes:
        status, kind = "503 Service Unavailable", "application/json"
        if path == b"/healthz":
            status, body = "200 OK", {"status": "ok", "problem": ""}
        elif path == b"/readyz":
            body = {"status": "failing", "problem": self.progress}
        else:
            kind = "application/problem+json"
            body = {
                "type": "urn:wattline:starting",
                "title": "The service is starting",
                "status": 503,  # type: ignore[dict-item]
                "detail": f"the service is starting: {self.progress}",
                "hint": "repeat the request when GET /readyz answers 200",
            }
        text = json.dumps(body).encode()
        lines = (
            f"HTTP/1.1 {status}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(text)}",
            "Retry-After: 1",
            "Connection: close",
        )
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + text

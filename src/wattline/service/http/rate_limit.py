"""Limits of the API: requests per second of one caller, and the size of a request body."""

from __future__ import annotations

import threading
import time

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wattline.service.http.problems import problem_response

BODY_LIMIT = 1 << 20  # bytes
_LARGER_LIMITS = {"/api/v1/whatif": 1 << 26}  # traces


class RateLimiter:
    """A token bucket per caller: *rate* requests per second, bursts of twice as many."""

    def __init__(self, rate: float) -> None:
        self._rate, self._lock = rate, threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}  # by caller: requests left, at this time

    def allow(self, caller: str) -> bool:
        """Count one request and return whether it is within the limit."""
        now_s = time.monotonic()
        with self._lock:
            left, at_s = self._buckets.get(caller, (2 * self._rate, now_s))
            left = min(left + (now_s - at_s) * self._rate, 2 * self._rate)
            self._buckets[caller] = (left - 1 if left >= 1 else left), now_s
            return left >= 1


class BodyLimit:
    """ASGI middleware that refuses request bodies above their limit, with or without a Content-Length."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI defines it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        limit = _LARGER_LIMITS.get(path, BODY_LIMIT)
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit:
            await _too_large(limit)(scope, receive, send)
            return
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise HTTPException(413, _describe(limit))
            return message

        await self._app(scope, receive_limited, send)


def _too_large(limit: int) -> Response:
    return problem_response(413, "too_large", _describe(limit))


def _describe(limit: int) -> str:
    return f"the request body is larger than {limit} bytes"

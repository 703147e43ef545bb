"""How much callers may ask: requests in a second, and bytes of a body."""

from __future__ import annotations

import threading
import time

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wattline.service.http.problems import problem

BODY_LIMIT = 1 << 20


class Buckets:
    """How many requests each caller may still make."""

    def __init__(self, rate: float) -> None:
        self._rate, self._guard = rate, threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> bool:
        """Count one request; False: it is one too many."""
        now_s = time.monotonic()
        with self._guard:
            left, at_s = self._left.get(name, (2 * self._rate, now_s))
            left = min(left + (now_s - at_s) * self._rate, 2 * self._rate)
            self._left[name] = (left - 1 if left >= 1 else left), now_s
            return left >= 1


class SmallBodies:
    """Refuses bodies that are larger than any job, said or not."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        said = dict(scope["headers"]).get(b"content-length", b"0")
        if said.isdigit() and int(said) > BODY_LIMIT:
            await _too_large()(scope, receive, send)
            return
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > BODY_LIMIT:
                raise HTTPException(413, f"the body is larger than {BODY_LIMIT} bytes")
            return message

        await self._app(scope, limited, send)


def _too_large() -> Response:
    return problem(413, "too_large", f"the body is larger than {BODY_LIMIT} bytes")

"""The base path of all addresses, behind a proxy that serves other pages, too."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class BasePath:
    """ASGI middleware for a base path, whether the proxy strips it from requests or not."""

    def __init__(self, app: ASGIApp, base_path: str) -> None:
        self._app, self._base_path = app, base_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI defines it."""
        if scope["type"] == "http":
            base, path = self._base_path, scope["path"]
            whole = path if path == base or path.startswith(f"{base}/") else f"{base}{path}"
            scope = {**scope, "root_path": base, "path": whole}
        await self._app(scope, receive, send)

"""HTTP client of the service: requests, problem documents as exceptions, streams that reconnect.

It uses the standard library only, so that commands start fast.
"""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from wattline.errors import (
    BackendError,
    ConfigError,
    Conflict,
    NotAllowed,
    NotFound,
    StoreError,
    Unreachable,
    Unsatisfiable,
    WattlineError,
)
from wattline.meter.caps.record import state_folder

API = "/api/v1"
PATIENCE_S = 300.0
"""Time after which a caller gives up on a service that does not answer."""

_RESPONSE_TIMEOUT_S = 60.0  # forecasts take seconds
_STREAM_TIMEOUT_S = 60.0  # a stream sends a keep-alive every 15 s
_TRIES = 5
_RETRY_S = 0.2  # pause after the first failure; it doubles
_RETRY_LIMIT_S = 5.0
_RESPONSE_LIMIT_BYTES = 256 << 20
_HINT = "start a service with wattline serve, or name one with --url, WATTLINE_URL or WATTLINE_DIR"
_ERRORS: dict[int, type[WattlineError]] = {
    400: ConfigError,
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    413: ConfigError,
    422: ConfigError,
    503: StoreError,
}
_GAP = "; output of the meantime may be missing"
Query = Mapping[str, Any]


class _ConnectionLost(Unreachable):
    """The connection broke after it was established."""


class _Starting(Unreachable):
    """The service listens, but does not take requests yet."""

    retry_after_s = 1.0


class _TooManyRequests(BackendError):
    """The rate limit was hit; *retry_after_s* is the pause the service asks for."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, "send fewer requests, or raise the limit with wattline serve --rate")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class ServerSentEvent:
    """One event of a stream."""

    kind: str
    data: str
    id: str = ""


def service_folder(folder: str | None = None) -> Path:
    """Return the folder of the service: *folder*, $WATTLINE_DIR, or `service` in the state folder."""
    name = folder or os.environ.get("WATTLINE_DIR")
    return Path(name) if name else state_folder() / "service"


def find_service(url: str | None = None, folder: str | None = None) -> Client:
    """Return a client of the service at *url* or $WATTLINE_URL, else of the one that serves the folder.

    The token is $WATTLINE_TOKEN. Without it the token in the folder is used, but only for the address in the
    folder: it is not sent to other services.
    """
    path = service_folder(folder)
    own_url = _read_line(path / "url")
    address = url or os.environ.get("WATTLINE_URL") or own_url
    if address is None:
        raise Unreachable(f"no service is running in {path}: {path / 'url'} does not exist", _HINT)
    token = os.environ.get("WATTLINE_TOKEN", "").strip()
    if not token and address.rstrip("/") == own_url:
        return Client(address, _read_line(path / "token") or "", token_file=path / "token")
    return Client(address, token)


def _read_line(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace").strip().rstrip("/")
    except OSError:
        return None


class Client:
    """A client of one service. It raises errors of `wattline.errors`; `Unreachable` without a connection."""

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        token_file: Path | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url if "://" in url else f"http://{url}"
        self._address = _parse_url(self.url)
        if not (token.isascii() and token.isprintable()):
            raise NotAllowed(
                "the token contains characters other than printable ASCII", "check WATTLINE_TOKEN"
            )
        self._token, self._pause = token, pause
        self._token_file = token_file  # of *token*; read again when the service refuses it

    # -- requests

    def get(self, path: str, query: Query | None = None) -> Any:
        """Send GET and return the decoded JSON."""
        return self._request("GET", path, query, None, "", repeat=True)

    def post(
        self, path: str, body: Any = None, query: Query | None = None, key: str = "", repeat: bool = False
    ) -> Any:
        """Send POST; with an idempotency *key* or *repeat* it is sent again when the connection breaks."""
        return self._request("POST", path, query, body, key, repeat=repeat or bool(key))

    def put(self, path: str, body: Any) -> Any:
        """Send PUT."""
        return self._request("PUT", path, None, body, "", repeat=True)

    def patch(self, path: str, body: Any) -> Any:
        """Send PATCH."""
        return self._request("PATCH", path, None, body, "", repeat=True)

    def delete(self, path: str, query: Query | None = None) -> Any:
        """Send DELETE."""
        return self._request("DELETE", path, query, None, "", repeat=False)

    def jobs(self, query: Query | None = None) -> list[dict[str, Any]]:
        """Return the jobs of all pages of a query."""
        jobs: list[dict[str, Any]] = []
        after = None
        while True:
            page = self.get("/jobs", {"limit": 1000, **(query or {}), "after": after})
            jobs += page["jobs"]
            after = page["next"]
            if after is None:
                return jobs

    def _request(self, method: str, path: str, query: Query | None, body: Any, key: str, repeat: bool) -> Any:
        """Send a request and return the decoded JSON; with *repeat* also after the connection broke."""
        headers = {"Idempotency-Key": key} if key else {}
        lost: _ConnectionLost | None = None
        for number in range(_TRIES):
            try:
                with self._open(method, path, query, body, headers) as response:
                    return self._decode(response)
            except (_TooManyRequests, _Starting) as error:
                if number == _TRIES - 1:
                    raise
                self._pause(error.retry_after_s)
            except _ConnectionLost as error:
                if not repeat:
                    raise
                lost = error
                self._pause(_RETRY_S * 2**number)
            except Unreachable:
                if lost is None:
                    raise
                self._pause(_RETRY_S * 2**number)  # it answered a moment ago, so it may be restarting
        assert lost is not None
        raise lost

    def _decode(self, response: HTTPResponse) -> Any:
        has_length = response.chunked or response.length is not None
        if (response.length or 0) > _RESPONSE_LIMIT_BYTES:
            raise self._not_wattline(response)
        try:
            text = response.read()
        except (HTTPException, OSError) as error:
            raise self._connection_lost(error) from None
        if response.status == 204:
            return None
        try:
            return json.loads(text)
        except ValueError:
            if not has_length:  # it broke before its headers were complete
                raise self._connection_lost(HTTPException("incomplete response")) from None
            raise self._not_wattline(response) from None

    # -- streams

    def text(self, path: str, query: Query | None = None) -> Iterator[bytes]:
        """Send GET and yield the body in blocks, as they arrive."""
        with self._open("GET", path, query) as response:
            while True:
                try:
                    block = response.read1(1 << 16)
                except (HTTPException, OSError) as error:
                    raise self._connection_lost(error) from None
                if not block:
                    return
                yield block

    def follow(
        self,
        path: str,
        query: Query | None = None,
        *,
        resume_query: Query | None = None,
        on_notice: Callable[[str], None] = lambda text: None,
    ) -> Iterator[ServerSentEvent]:
        """Yield server-sent events up to and including `end`; reconnect when the connection breaks.

        A new connection continues after the last event that had an id. Without ids it uses *resume_query* in
        addition. *on_notice* is called with a text when the connection breaks and when it is back.
        """
        parameters: dict[str, Any] = {**(query or {}), "follow": True}
        last_id, connected, pause_s, away_s = "", False, _RETRY_S, 0.0
        while True:
            try:
                headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
                stream = self._open("GET", path, parameters, headers=headers, timeout_s=_STREAM_TIMEOUT_S)
                with stream as response:
                    if away_s:
                        on_notice(f"{self.url} answers again")
                    connected, pause_s, away_s = True, _RETRY_S, 0.0
                    for event in _parse_events(response):
                        last_id = event.id or last_id
                        yield event
                        if event.kind == "end":
                            return
                problem = Unreachable(f"{self.url} ended the stream")
            except (HTTPException, OSError) as error:
                problem = self._connection_lost(error)
            except Unreachable as error:
                if not connected:
                    raise
                problem = error
            if away_s >= PATIENCE_S:
                raise problem
            if not away_s:
                on_notice(f"{problem.message}; trying again{'' if last_id else _GAP}")
            if not last_id:
                parameters.update(resume_query or {})
            self._pause(pause_s)
            away_s, pause_s = away_s + pause_s, min(2 * pause_s, _RETRY_LIMIT_S)

    # -- connections

    @contextmanager
    def _open(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = _RESPONSE_TIMEOUT_S,
    ) -> Iterator[HTTPResponse]:
        """Send a request and yield the response; raise the error of a problem document."""
        target = f"{self._address.path.rstrip('/')}{API}{path}{_encode_query(query)}"
        while True:
            connection = self._connection(timeout_s)
            try:
                try:
                    connection.connect()
                except OSError as error:
                    raise Unreachable(f"{self.url} does not answer: {_error_text(error)}", _HINT) from None
                sent = {**self._headers(body), **(headers or {})}
                try:
                    connection.request(method, target, _encode_body(body), sent)
                    response = connection.getresponse()
                except (HTTPException, OSError) as error:
                    raise self._connection_lost(error) from None
                with response:
                    if response.status == 401 and self._reload_token():
                        continue
                    if not 200 <= response.status < 300:
                        raise self._problem(response)
                    yield response
                    return
            finally:
                connection.close()

    def _reload_token(self) -> bool:
        """Read the token file again, and return whether the token was replaced since."""
        token = "" if self._token_file is None else _read_line(self._token_file) or ""
        if not token or token == self._token or not token.isascii():
            return False
        self._token = token
        return True

    def _connection(self, timeout_s: float) -> HTTPConnection:
        host, port = str(self._address.hostname), self._address.port
        if self._address.scheme == "http":
            return HTTPConnection(host, port, timeout=timeout_s)
        return HTTPSConnection(host, port, timeout=timeout_s, context=ssl.create_default_context())

    def _headers(self, body: Any) -> dict[str, str]:
        token = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        content = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        return {**token, **({} if body is None else {"Content-Type": content})}

    def _problem(self, response: HTTPResponse) -> WattlineError:
        """Return the error of a problem document."""
        try:
            problem = json.loads(response.read(1 << 20))
            detail, hint, code = str(problem["detail"]), str(problem.get("hint", "")), str(problem["type"])
        except (HTTPException, OSError, ValueError, KeyError, TypeError):
            return self._not_wattline(response)
        if response.status == 429:
            return _TooManyRequests(detail, _parse_retry_after(response.getheader("Retry-After")))
        if code == "urn:wattline:starting":
            return _Starting(detail, hint)
        if response.status == 401:
            hint = hint or "set WATTLINE_TOKEN, or create a token with wattline token add"
        if code == f"urn:wattline:{Unsatisfiable.code}":
            return Unsatisfiable(detail, hint, str(problem.get("field", "")))
        error = _ERRORS.get(response.status, BackendError)(detail, hint)
        error.code = code.removeprefix("urn:wattline:")
        return error

    def _not_wattline(self, response: HTTPResponse) -> BackendError:
        return BackendError(
            f"{self.url} answered {response.status} {response.reason}, expected a wattline service", _HINT
        )

    def _connection_lost(self, error: Exception) -> _ConnectionLost:
        return _ConnectionLost(f"the connection to {self.url} broke: {_error_text(error)}", _HINT)


def _parse_url(url: str) -> SplitResult:
    try:
        address = urlsplit(url)
        valid = address.scheme in ("http", "https") and address.hostname and address.port != 0
    except ValueError:
        valid = False
    if not valid or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"{url!r} is not the address of a service, expected http://127.0.0.1:7717")
    return address


def _encode_body(body: Any) -> bytes | None:
    """Return the bytes of a file as they are, and anything else as JSON."""
    return body if body is None or isinstance(body, bytes) else json.dumps(body).encode()


def _encode_query(query: Query | None) -> str:
    parameters = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in (query or {}).items()
        if value is not None
    }
    return f"?{urlencode(parameters, doseq=True)}" if parameters else ""


def _error_text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    text = error.strerror if isinstance(error, OSError) else None
    return text or str(error) or type(error).__name__


def _parse_retry_after(text: str | None) -> float:
    return min(float(text), 10.0) if text and text.isdecimal() else 1.0


def _parse_events(response: HTTPResponse) -> Iterator[ServerSentEvent]:
    """Yield server-sent events as they arrive."""
    kind, id, data = "message", "", list[str]()
    while line := response.readline():
        field, _, value = line.decode("utf-8", "replace").rstrip("\n").partition(":")
        value = value.removeprefix(" ")
        if not field and not value:
            if data:
                yield ServerSentEvent(kind, "\n".join(data), id)
            kind, id, data = "message", "", []
        elif field == "data":
            data.append(value)
        elif field == "event":
            kind = value
        elif field == "id":
            id = value

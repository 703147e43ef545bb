"""The service as its callers see it: requests, problems as errors, streams that go on after a break.

Only what Python brings is used, so that commands start fast.
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
    WattlineError,
)
from wattline.meter.caps.record import state_folder

API = "/api/v1"
PATIENCE_S = 300.0
"""How long a service may be away before who waits for it gives up."""

_ANSWER_S = 60.0  # how long an answer may take: looking ahead takes seconds
_QUIET_S = 60.0  # how long a stream may be silent: it says every 15 s that it is there
_TRIES = 5
_MOST_BYTES = 256 << 20
_HINT = "wattline serve starts one; --url, WATTLINE_URL or WATTLINE_DIR say where it is"
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
_GAP = ", and what comes meanwhile may be missing"
Query = Mapping[str, Any]


class _Lost(Unreachable):
    """It was there, and the connection broke."""


class _Busy(BackendError):
    """Too many requests; *after_s* says when to ask again."""

    def __init__(self, message: str, after_s: float) -> None:
        super().__init__(message, "ask less often, or wattline serve --rate")
        self.after_s = after_s


@dataclass(frozen=True)
class Told:
    """One event of a stream."""

    kind: str
    data: str
    id: str = ""


def service_folder(given: str | None = None) -> Path:
    """Where a service keeps its state: as said, $WATTLINE_DIR, or `service` in the state folder."""
    said = given or os.environ.get("WATTLINE_DIR")
    return Path(said) if said else state_folder() / "service"


def find_service(url: str | None = None, folder: str | None = None) -> Client:
    """The service that --url or $WATTLINE_URL names, else the one of the folder.

    The token is $WATTLINE_TOKEN, else the folder's own, which is shown to the folder's own service only.
    """
    place = service_folder(folder)
    here = _read(place / "url")
    said = url or os.environ.get("WATTLINE_URL") or here
    if said is None:
        raise Unreachable(f"no service is known here: {place / 'url'} does not exist", _HINT)
    token = os.environ.get("WATTLINE_TOKEN", "").strip()
    if not token and said.rstrip("/") == here:
        token = _read(place / "token") or ""
    return Client(said, token)


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace").strip().rstrip("/")
    except OSError:
        return None


class Client:
    """Asks one service; errors are of `wattline.errors`, an `Unreachable` if nobody answers."""

    def __init__(self, url: str, token: str = "", *, pause: Callable[[float], None] = time.sleep) -> None:
        self.url = url if "://" in url else f"http://{url}"
        self._at = _split(self.url)
        if not (token.isascii() and token.isprintable()):
            raise NotAllowed("the token has letters that no token has", "look at WATTLINE_TOKEN")
        self._token, self._pause = token, pause

    # -- one question, one answer

    def get(self, path: str, query: Query | None = None) -> Any:
        """Read something."""
        return self._ask("GET", path, query, None, "", again=True)

    def post(self, path: str, body: Any = None, query: Query | None = None, key: str = "") -> Any:
        """Do something; with a *key* it is asked again when the connection breaks, and done once."""
        return self._ask("POST", path, query, body, key, again=bool(key))

    def put(self, path: str, body: Any) -> Any:
        """Set something."""
        return self._ask("PUT", path, None, body, "", again=True)

    def patch(self, path: str, body: Any) -> Any:
        """Change something."""
        return self._ask("PATCH", path, None, body, "", again=True)

    def delete(self, path: str) -> None:
        """Remove something."""
        self._ask("DELETE", path, None, None, "", again=False)

    def jobs(self, query: Query | None = None) -> list[dict[str, Any]]:
        """All jobs that a query finds, whatever the number of pages."""
        found: list[dict[str, Any]] = []
        after = None
        while True:
            page = self.get("/jobs", {"limit": 1000, **(query or {}), "after": after})
            found += page["jobs"]
            after = page["next"]
            if after is None:
                return found

    def _ask(self, method: str, path: str, query: Query | None, body: Any, key: str, again: bool) -> Any:
        headers = {"Idempotency-Key": key} if key else {}
        lost: _Lost | None = None
        for number in range(_TRIES):
            try:
                with self._answer(method, path, query, body, headers) as answer:
                    return self._data(answer)
            except _Busy as error:
                if number == _TRIES - 1:
                    raise
                self._pause(error.after_s)
            except _Lost as error:
                if not again:
                    raise
                lost = error
                self._pause(0.2 * 2**number)
            except Unreachable:
                if lost is None:
                    raise
                self._pause(0.2 * 2**number)  # it was there a moment ago
        assert lost is not None
        raise lost

    def _data(self, answer: HTTPResponse) -> Any:
        sized = answer.chunked or answer.length is not None
        if (answer.length or 0) > _MOST_BYTES:
            raise self._foreign(answer)
        try:
            text = answer.read()
        except (HTTPException, OSError) as error:
            raise self._lost(error) from None
        if answer.status == 204:
            return None
        try:
            return json.loads(text)
        except ValueError:
            if not sized:  # it broke before it said how long it would be
                raise self._lost(HTTPException("half an answer")) from None
            raise self._foreign(answer) from None

    # -- streams

    def text(self, path: str, query: Query | None = None) -> Iterator[bytes]:
        """An answer that may be long, as it comes."""
        with self._answer("GET", path, query) as answer:
            while True:
                try:
                    block = answer.read1(1 << 16)
                except (HTTPException, OSError) as error:
                    raise self._lost(error) from None
                if not block:
                    return
                yield block

    def follow(
        self,
        path: str,
        query: Query | None = None,
        *,
        again: Query | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> Iterator[Told]:
        """Events until `end`. After a break it goes on after the last that had an id, else with *again*."""
        asked: dict[str, Any] = {**(query or {}), "follow": True}
        last, connected, wait_s, away_s = "", False, 0.2, 0.0
        while True:
            try:
                headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
                with self._answer("GET", path, asked, headers=headers, timeout_s=_QUIET_S) as answer:
                    if away_s:
                        tell(f"{self.url} answers again")
                    connected, wait_s, away_s = True, 0.2, 0.0
                    for told in _events(answer):
                        last = told.id or last
                        yield told
                        if told.kind == "end":
                            return
                problem = Unreachable(f"{self.url} ended the stream")
            except (HTTPException, OSError) as error:
                problem = self._lost(error)
            except Unreachable as error:
                if not connected:
                    raise
                problem = error
            if away_s >= PATIENCE_S:
                raise problem
            if not away_s:
                tell(f"{problem.message}; trying again{'' if last else _GAP}")
            if not last:
                asked.update(again or {})
            self._pause(wait_s)
            away_s, wait_s = away_s + wait_s, min(2 * wait_s, 5.0)

    # -- the wire

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = _ANSWER_S,
    ) -> Iterator[HTTPResponse]:
        """An answer that is no problem."""
        connection = self._connection(timeout_s)
        try:
            try:
                connection.connect()
            except OSError as error:
                raise Unreachable(f"{self.url} does not answer: {_said(error)}", _HINT) from None
            sent = {**self._headers(body), **(headers or {})}
            target = f"{self._at.path.rstrip('/')}{API}{path}{_query(query)}"
            try:
                connection.request(method, target, None if body is None else json.dumps(body), sent)
                answer = connection.getresponse()
            except (HTTPException, OSError) as error:
                raise self._lost(error) from None
            with answer:
                if not 200 <= answer.status < 300:
                    raise self._problem(answer)
                yield answer
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> HTTPConnection:
        host, port = str(self._at.hostname), self._at.port
        if self._at.scheme == "http":
            return HTTPConnection(host, port, timeout=timeout_s)
        return HTTPSConnection(host, port, timeout=timeout_s, context=ssl.create_default_context())

    def _headers(self, body: Any) -> dict[str, str]:
        token = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        return {**token, **({} if body is None else {"Content-Type": "application/json"})}

    def _problem(self, answer: HTTPResponse) -> WattlineError:
        try:
            said = json.loads(answer.read(1 << 20))
            detail, hint, code = str(said["detail"]), str(said.get("hint", "")), str(said["type"])
        except (HTTPException, OSError, ValueError, KeyError, TypeError):
            return self._foreign(answer)
        if answer.status == 429:
            return _Busy(detail, _seconds(answer.getheader("Retry-After")))
        if answer.status == 401:
            hint = hint or "WATTLINE_TOKEN, or the file token of the service's folder; wattline token add"
        error = _ERRORS.get(answer.status, BackendError)(detail, hint)
        error.code = code.removeprefix("urn:wattline:")
        return error

    def _foreign(self, answer: HTTPResponse) -> BackendError:
        return BackendError(
            f"{self.url} answered {answer.status} {answer.reason}, expected a wattline service", _HINT
        )

    def _lost(self, error: Exception) -> _Lost:
        return _Lost(f"the connection to {self.url} broke: {_said(error)}", _HINT)


def _split(url: str) -> SplitResult:
    try:
        at = urlsplit(url)
        good = at.scheme in ("http", "https") and at.hostname and at.port != 0
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"{url!r} is not the address of a service, expected http://127.0.0.1:7717")
    return at


def _query(query: Query | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value is not None}
    told = {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}
    return f"?{urlencode(told, doseq=True)}" if told else ""


def _said(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it takes too long"
    text = error.strerror if isinstance(error, OSError) else None
    return text or str(error) or type(error).__name__


def _seconds(text: str | None) -> float:
    return min(float(text), 10.0) if text and text.isdecimal() else 1.0


def _events(answer: HTTPResponse) -> Iterator[Told]:
    """Server-sent events, as they come."""
    kind, name, data = "message", "", list[str]()
    while line := answer.readline():
        word, _, value = line.decode("utf-8", "replace").rstrip("\n").partition(":")
        value = value.removeprefix(" ")
        if not word and not value:
            if data:
                yield Told(kind, "\n".join(data), name)
            kind, name, data = "message", "", []
        elif word == "data":
            data.append(value)
        elif word == "event":
            kind = value
        elif word == "id":
            name = value

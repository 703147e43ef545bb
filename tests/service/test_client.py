"""The client, when the service refuses, is slow, is away, or is another program."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

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
from wattline.service.client import Client, ServerSentEvent, find_service


class Script:
    """A server that answers each connection with the next of *answers*, and records the requests.

    An answer is sent as it is, and then the connection is closed; an incomplete one is a broken connection.
    """

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.answers: list[bytes] = []
        self.requests: list[str] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                self.requests.append(_request(connection))
                if self.answers:
                    connection.sendall(self.answers.pop(0))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)


def _request(connection: socket.socket) -> str:
    text = b""
    while b"\r\n\r\n" not in text:
        text += connection.recv(65536)
    head, _, body = text.partition(b"\r\n\r\n")
    words = [
        line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    ]
    while words and len(body) < int(words[0]):
        body += connection.recv(65536)
    return (head + b"\r\n\r\n" + body).decode()


@pytest.fixture
def script() -> Iterator[Script]:
    server = Script()
    yield server
    server.close()


def answer(status: int, body: Any, *headers: str, kind: str = "application/json") -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} So", f"Content-Type: {kind}", f"Content-Length: {len(text)}", *headers]
    return "\r\n".join((*lines, "", "")).encode() + text


def problem(status: int, code: str = "some", *headers: str) -> bytes:
    return answer(
        status, {"type": f"urn:wattline:{code}", "status": status, "detail": "no", "hint": "try"}, *headers
    )


def stream(*events: str) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    return head + "".join(event + "\n\n" for event in events).encode()


def client(script: Script, pauses: list[float] | None = None) -> Client:
    recorded: list[float] = [] if pauses is None else pauses
    return Client(script.url, "secret", pause=recorded.append)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ConfigError),
        (401, NotAllowed),
        (403, NotAllowed),
        (404, NotFound),
        (409, Conflict),
        (413, ConfigError),
        (422, ConfigError),
        (500, BackendError),
        (503, StoreError),
    ],
)
def test_a_problem_document_raises_the_matching_error(
    script: Script, status: int, kind: type[WattlineError]
) -> None:
    script.answers = [problem(status, "its_code")]
    with pytest.raises(kind) as raised:
        client(script).get("/jobs")
    assert (raised.value.message, raised.value.hint, raised.value.code) == ("no", "try", "its_code")


def test_a_request_has_its_query_and_token(script: Script) -> None:
    script.answers = [answer(200, {"fine": 1})]
    query = {"state": ["PENDING", "RUNNING"], "team": None, "held": True, "name": "a b"}
    assert client(script).get("/jobs", query) == {"fine": 1}
    first, _ = script.requests[0].split("\r\n", 1)
    assert first == "GET /api/v1/jobs?state=PENDING&state=RUNNING&held=true&name=a+b HTTP/1.1"
    assert "Authorization: Bearer secret" in script.requests[0]


def test_jobs_come_from_all_pages(script: Script) -> None:
    script.answers = [answer(200, {"jobs": [1, 2], "next": "2"}), answer(200, {"jobs": [3], "next": None})]
    assert client(script).jobs({"team": "a"}) == [1, 2, 3]
    assert "after=2" in script.requests[1]
    assert "after" not in script.requests[0].split("\r\n")[0]


def test_a_submission_is_sent_again_with_the_same_key_when_the_connection_breaks(script: Script) -> None:
    script.answers = [b"", b"HTTP/1.1 201 Created\r\nContent-Le", answer(201, {"jobs": []})]
    assert client(script).post("/jobs", {"run": "true"}, key="once") == {"jobs": []}
    assert len(script.requests) == 3
    assert all(
        "Idempotency-Key: once" in request and '{"run": "true"}' in request for request in script.requests
    )


def test_a_post_without_a_key_is_not_repeated(script: Script) -> None:
    with pytest.raises(Unreachable, match="broke"):
        client(script).post("/tokens", {})
    assert len(script.requests) == 1


def test_a_client_gives_up_after_five_tries(script: Script) -> None:
    pauses: list[float] = []
    with pytest.raises(Unreachable):
        client(script, pauses).get("/jobs")
    assert len(script.requests) == 5
    assert sum(pauses) < 10


def test_requests_above_the_rate_limit_are_repeated_later(script: Script) -> None:
    pauses: list[float] = []
    script.answers = [problem(429, "http", "Retry-After: 3"), answer(200, {})]
    assert client(script, pauses).get("/jobs") == {}
    assert pauses == [3.0]
    script.answers = [problem(429)] * 5
    with pytest.raises(BackendError, match="no"):
        client(script).get("/jobs")


def test_a_service_that_starts_is_asked_again_and_then_counts_as_unreachable(script: Script) -> None:
    pauses: list[float] = []
    script.answers = [problem(503, "starting"), problem(503, "starting"), answer(200, {})]
    assert client(script, pauses).get("/jobs") == {}
    assert pauses == [1.0, 1.0]
    script.answers = [problem(503, "starting")] * 5
    with pytest.raises(Unreachable):
        client(script).get("/jobs")


@pytest.mark.parametrize(
    "text",
    [
        answer(200, b"<html>", kind="text/html"),
        answer(404, b"<html>", kind="text/html"),
        answer(302, b"", "Location: http://elsewhere/"),
        answer(500, b"[]"),
    ],
)
def test_another_program_at_the_address_is_reported(script: Script, text: bytes) -> None:
    script.answers = [text]
    with pytest.raises(BackendError, match="expected a wattline service"):
        client(script).get("/jobs")
    assert len(script.requests) == 1


def test_a_stream_resumes_after_the_last_event_id(script: Script) -> None:
    notices: list[str] = []
    script.answers = [
        stream(
            "id: 4\nevent: started\ndata: a", ": keep-alive", "id: 5\ndata: b\ndata: c", "id: 6\ndata: lo"
        ),
        b"",
        stream("id: 7\ndata: d", "event: end\ndata: SUCCEEDED"),
    ]
    found = list(
        client(script).follow("/jobs/1/logs", {"rank": 0}, resume_query={"tail": 0}, on_notice=notices.append)
    )
    assert found == [
        ServerSentEvent("started", "a", "4"),
        ServerSentEvent("message", "b\nc", "5"),
        ServerSentEvent("message", "lo", "6"),
        ServerSentEvent("message", "d", "7"),
        ServerSentEvent("end", "SUCCEEDED"),
    ]
    assert "Last-Event-ID" not in script.requests[0]
    assert "Last-Event-ID: 6" in script.requests[2]
    assert "tail" not in script.requests[2]
    assert notices == [f"{script.url} ended the stream; trying again", f"{script.url} answers again"]


def test_a_stream_without_ids_resumes_at_its_end_and_warns_of_a_gap(script: Script) -> None:
    notices: list[str] = []
    script.answers = [stream("data: a"), stream("data: b", "event: end\ndata: FAILED")]
    found = list(client(script).follow("/x", resume_query={"tail": 0}, on_notice=notices.append))
    assert [one.data for one in found] == ["a", "b", "FAILED"]
    assert "tail=0" in script.requests[1]
    assert "may be missing" in notices[0]


def test_a_stream_that_cannot_be_opened_raises_at_once(script: Script) -> None:
    script.answers = [problem(404)]
    with pytest.raises(NotFound):
        list(client(script).follow("/jobs/9/logs"))
    with pytest.raises(Unreachable):
        list(client(script).follow("/jobs/9/logs"))
    assert len(script.requests) == 2


def test_a_broken_stream_raises_after_the_patience_is_over(script: Script) -> None:
    pauses: list[float] = []
    script.answers = [stream("data: a")]
    with pytest.raises(Unreachable):
        list(client(script, pauses).follow("/x"))
    assert 300 <= sum(pauses) < 320


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "http://a b", "http://x:99999", "http://x\n:1", "http://[::1"]
)
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="not the address of a service"):
        Client(url)


def test_an_invalid_token_is_refused() -> None:
    with pytest.raises(NotAllowed, match="characters other than printable ASCII"):
        Client("127.0.0.1:7717", "a\r\nX-More: b")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Script) -> Path:
    for name in ("WATTLINE_URL", "WATTLINE_TOKEN", "WATTLINE_DIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "url").write_text(f"{script.url}\n")
    (tmp_path / "token").write_text("own\n")
    return tmp_path


def sent_token(script: Script, find: Callable[[], Client]) -> str | None:
    """Return the token that a request has."""
    script.answers = [answer(200, {})]
    find().get("/jobs")
    lines = [line for line in script.requests[-1].split("\r\n") if line.startswith("Authorization")]
    return lines[0].rpartition(" ")[2] if lines else None


def test_a_service_is_found_in_its_folder(
    folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sent_token(script, lambda: find_service(folder=str(folder))) == "own"
    monkeypatch.setenv("WATTLINE_DIR", str(folder))
    assert sent_token(script, find_service) == "own"
    monkeypatch.setenv("WATTLINE_TOKEN", "mine")
    assert sent_token(script, find_service) == "mine"


def test_the_token_of_a_folder_is_sent_to_its_own_service_only(folder: Path, script: Script) -> None:
    assert sent_token(script, lambda: find_service(f"{script.url}/", str(folder))) == "own"
    (folder / "url").write_text("http://127.0.0.1:1\n")
    assert sent_token(script, lambda: find_service(script.url, str(folder))) is None


def test_a_missing_service_is_an_error_with_a_hint_to_start_one(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(Unreachable) as raised:
        find_service(folder=str(tmp_path / "nowhere"))
    assert "wattline serve" in raised.value.hint
    (folder / "url").write_text("http://127.0.0.1:9\n")
    with pytest.raises(Unreachable, match="does not answer"):
        find_service(folder=str(folder)).get("/jobs")

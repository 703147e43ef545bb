"""Sessions of browsers: cookies, CSRF tokens, Origin and Host, and the user header of a proxy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fastapi.testclient import TestClient

from wattline.errors import NotAllowed
from wattline.service.controller import Controller
from wattline.service.http.app import create_app
from wattline.service.http.auth import TokenStore
from wattline.service.http.sessions import SESSION_S, build_csrf_token, check_csrf_token
from wattline.service.web_settings import WebSettings

ORIGIN = "http://localhost:7717"


@contextmanager
def open_browser(
    controller: Controller, web: WebSettings | None = None, base: str = ORIGIN
) -> Iterator[TestClient]:
    """Open a client without a token, as a browser is one."""
    with TestClient(create_app(controller, rate=1e6, web=web or WebSettings()), base_url=base) as client:
        yield client


def log_in(client: TestClient, controller: Controller, role: str = "user") -> str:
    """Log in with a new token, and return the name of that token."""
    name = f"{role}-{len(controller.store.tokens())}"
    token = TokenStore(controller.store, controller.clock).create(name, role)
    origin = str(client.base_url).rstrip("/")
    answer = client.post("/api/v1/session", json={"token": token}, headers={"Origin": origin})
    assert answer.status_code == 204, answer.text
    return name


def csrf(client: TestClient) -> dict[str, str]:
    secret = next(iter(client.cookies.jar)).value
    assert secret
    return {"X-CSRF-Token": build_csrf_token(secret), "Origin": str(client.base_url).rstrip("/")}


def test_a_session_reads_and_submits_as_its_token(controller: Controller) -> None:
    with open_browser(controller) as client:
        assert client.get("/api/v1/me").status_code == 401
        name = log_in(client, controller)
        assert client.get("/api/v1/me").json() == {"name": name, "user": "", "role": "user"}
        answer = client.post("/api/v1/jobs?held=true", json={"run": "true"}, headers=csrf(client))
        assert answer.status_code == 201, answer.text


def test_the_cookie_is_for_this_site_and_not_for_scripts(controller: Controller) -> None:
    token = TokenStore(controller.store, controller.clock).create("cookie", "viewer")
    with open_browser(controller) as client:
        cookie = client.post("/api/v1/session", json={"token": token}).headers["set-cookie"]
    assert cookie.startswith("wattline_session=")
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Path=/" in cookie
    assert "Secure" not in cookie
    assert token not in cookie
    secure = WebSettings(origin="https://gpu.example.org")
    with open_browser(controller, secure, "https://gpu.example.org") as client:
        cookie = client.post("/api/v1/session", json={"token": token}).headers["set-cookie"]
    assert cookie.startswith("__Host-wattline_session=")
    assert "Secure" in cookie


def test_only_the_hash_of_a_session_is_stored(controller: Controller) -> None:
    with open_browser(controller) as client:
        log_in(client, controller)
        secret = next(iter(client.cookies.jar)).value
    assert secret not in str(controller.store.read_rows("SELECT * FROM session"))


def test_a_change_needs_the_csrf_token_and_the_own_origin(controller: Controller) -> None:
    with open_browser(controller) as client:
        log_in(client, controller)
        headers = csrf(client)
        submit = {"run": "true"}
        for wrong in (
            {"Origin": ORIGIN},
            {"Origin": ORIGIN, "X-CSRF-Token": build_csrf_token("another session")},
            {"Origin": ORIGIN, "X-CSRF-Token": "ä"},
            {**headers, "Origin": "http://localhost:8080"},
            {**headers, "Origin": "null"},
            {"X-CSRF-Token": headers["X-CSRF-Token"]},
        ):
            encoded = {name: value.encode() for name, value in wrong.items()}
            answer = client.post("/api/v1/jobs?held=true", json=submit, headers=encoded)
            assert answer.status_code == 403, wrong
        assert client.post("/api/v1/jobs?held=true", json=submit, headers=headers).status_code == 201


def test_a_login_from_another_site_is_refused(controller: Controller) -> None:
    token = TokenStore(controller.store, controller.clock).create("foreign", "viewer")
    with open_browser(controller) as client:
        headers = {"Origin": "http://evil.example"}
        assert client.post("/api/v1/session", json={"token": token}, headers=headers).status_code == 403
        assert not client.cookies


def test_another_host_name_is_refused(controller: Controller) -> None:
    token = TokenStore(controller.store, controller.clock).create("rebinding", "viewer")
    with open_browser(controller) as client:
        log_in(client, controller)
        for host in ("evil.example", "evil.example:7717", "localhost.evil.example", ""):
            headers = {"Host": host}
            assert client.get("/api/v1/jobs", headers=headers).status_code == 403
            assert client.post("/api/v1/session", json={"token": token}, headers=headers).status_code == 403
        for host in ("127.0.0.1:7717", "[::1]:7717", "LOCALHOST"):
            assert client.get("/api/v1/jobs", headers={"Host": host}).status_code == 200
        bearer = {"Host": "evil.example", "Authorization": f"Bearer {token}"}
        assert client.get("/api/v1/jobs", headers=bearer).status_code == 200
    with open_browser(controller, WebSettings(hosts=("gpu.example.org",))) as client:
        log_in(client, controller)
        assert client.get("/api/v1/jobs", headers={"Host": "gpu.example.org:7717"}).status_code == 200


def test_a_session_ends_with_its_token_its_time_and_the_log_out(controller: Controller) -> None:
    with open_browser(controller) as client:
        name = log_in(client, controller)
        assert client.get("/api/v1/me").status_code == 200
        TokenStore(controller.store, controller.clock).revoke(name)
        client.app.state.tokens._empty_cache()  # type: ignore[attr-defined]
        assert client.get("/api/v1/me").status_code == 401
    with open_browser(controller) as client:
        log_in(client, controller)
        secret = next(iter(client.cookies.jar)).value
        assert client.delete("/api/v1/session", headers=csrf(client)).status_code == 204
        client.cookies.set("wattline_session", secret or "", domain="localhost.local")
        assert client.get("/api/v1/me", headers={"Cookie": f"wattline_session={secret}"}).status_code == 401
    with open_browser(controller) as client:
        log_in(client, controller)
        controller.store.execute(("UPDATE session SET expires_s = expires_s - ?", (SESSION_S,)))
        assert client.get("/api/v1/me").status_code == 401


def test_tokens_are_not_managed_in_a_session(controller: Controller) -> None:
    with open_browser(controller) as client:
        log_in(client, controller, "operator")
        assert client.get("/api/v1/audit").status_code == 200
        assert client.get("/api/v1/tokens").status_code == 403
        new = {"name": "stolen", "role": "operator"}
        assert client.post("/api/v1/tokens", json=new, headers=csrf(client)).status_code == 403


def test_a_viewer_in_a_session_changes_nothing(controller: Controller) -> None:
    with open_browser(controller) as client:
        log_in(client, controller, "viewer")
        answer = client.post("/api/v1/jobs", json={"run": "true"}, headers=csrf(client))
        assert answer.status_code == 403
        assert "expected user" in answer.json()["detail"]


def test_the_user_header_counts_only_from_a_proxy(controller: Controller) -> None:
    TokenStore(controller.store, controller.clock).create("ann", "user")
    header = {"X-Remote-User": "ann"}
    trusted = WebSettings(user_header="X-Remote-User", proxies=("testclient",))
    with open_browser(controller, trusted) as client:
        assert client.get("/api/v1/me", headers=header).json()["name"] == "ann"
        assert client.get("/api/v1/me", headers={"X-Remote-User": "eve"}).status_code == 401
        assert client.post("/api/v1/jobs", json={"run": "true"}, headers=header).status_code == 401
        other = log_in(client, controller)
        assert client.get("/api/v1/me").json()["name"] == other
        assert client.get("/api/v1/me", headers=header).status_code == 403
    with open_browser(controller, WebSettings(user_header="X-Remote-User", proxies=("10.0.0.1",))) as client:
        assert client.get("/api/v1/me", headers=header).status_code == 401
    with open_browser(controller) as client:
        assert client.get("/api/v1/me", headers=header).status_code == 401


def test_csrf_tokens_differ_and_belong_to_one_session() -> None:
    tokens = {build_csrf_token("one") for _ in range(10)}
    assert len(tokens) == 10
    for token in tokens:
        check_csrf_token("one", token)
        with pytest.raises(NotAllowed):
            check_csrf_token("two", token)

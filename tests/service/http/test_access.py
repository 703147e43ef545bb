from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from support.controllers import open_client, submit_text, wait_until
from wattline.errors import Conflict
from wattline.service.controller import Controller
from wattline.service.http.auth import TokenStore, UnknownToken
from wattline.service.storage.store import Store


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def create(client: TestClient, name: str, **fields: object) -> str:
    response = client.post("/api/v1/tokens", json={"name": name, "role": "viewer", **fields})
    assert response.status_code == 201, response.text
    return str(response.json()["token"])


def test_names_of_tokens_are_unique(client: TestClient) -> None:
    create(client, "twice")
    again = client.post("/api/v1/tokens", json={"name": "twice", "role": "operator"})
    assert again.status_code == 409
    assert "twice" in again.json()["detail"]
    assert "token rotate twice" in again.json()["hint"]
    own = client.post("/api/v1/tokens", json={"name": "service", "role": "operator"})
    assert own.status_code == 409


@pytest.mark.parametrize("seconds", [True, "60"])
def test_a_validity_that_is_no_number_is_refused(client: TestClient, seconds: object) -> None:
    body = {"name": "lasting", "role": "viewer", "lasts_s": seconds}
    assert client.post("/api/v1/tokens", json=body).status_code == 422


def test_a_token_of_a_user_that_does_not_exist_is_refused(client: TestClient) -> None:
    body = {"name": "ghost", "role": "user", "user": "no-such-user"}
    response = client.post("/api/v1/tokens", json=body)
    assert response.status_code == 422
    assert response.json()["detail"].startswith("user: 'no-such-user' does not exist on this machine")
    assert "ghost" not in [token["name"] for token in client.get("/api/v1/tokens").json()["tokens"]]


def test_a_rotated_token_has_another_value_at_once(client: TestClient) -> None:
    old = create(client, "rotated")
    assert client.get("/api/v1/jobs", headers=bearer(old)).status_code == 200
    new = client.post("/api/v1/tokens/rotated/rotate", json={}).json()["token"]
    assert client.get("/api/v1/jobs", headers=bearer(old)).status_code == 401
    assert client.get("/api/v1/jobs", headers=bearer(new)).status_code == 200
    names = [token["name"] for token in client.get("/api/v1/tokens").json()["tokens"]]
    assert names.count("rotated") == 1


def test_the_old_value_is_valid_for_the_grace(tmp_path: Path) -> None:
    now_s = [1000.0]
    with Store.open(tmp_path) as store:
        tokens = TokenStore(store, lambda: now_s[0])
        old = tokens.create("graceful", "viewer")
        new = tokens.rotate("graceful", 600.0)
        for token in (old, new):
            assert tokens.authenticate(token).name == "graceful"
        now_s[0] += 601.0
        assert tokens.authenticate(new).name == "graceful"
        with pytest.raises(UnknownToken, match="expired"):
            tokens.authenticate(old)
        newest = tokens.rotate("graceful")
        assert tokens.authenticate(newest).role == "viewer"
        assert len(store.tokens("graceful")) == 1


def test_the_own_token_of_the_service_is_rotated_and_revoked(controller: Controller) -> None:
    tokens = TokenStore(controller.store, controller.clock, controller.folder)
    old, path = tokens.ensure_service_token(controller.folder), controller.folder / "token"
    new = tokens.rotate("service")
    assert path.read_text().strip() == new != old
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(UnknownToken):
        tokens.authenticate(old)
    tokens.revoke("service")
    assert not path.exists()
    with pytest.raises(UnknownToken):
        tokens.authenticate(new)
    again = tokens.ensure_service_token(controller.folder)  # as at the next start
    assert tokens.authenticate(again).role == "operator"
    assert len(controller.store.tokens("service")) == 1


def test_a_token_that_is_revoked_while_it_is_read_does_not_enter_the_cache(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = TokenStore(controller.store, controller.clock)
    token, read = tokens.create("raced", "viewer"), controller.store.token

    def read_then_revoke(hash: str) -> tuple[str, str, str, float | None] | None:
        row = read(hash)
        tokens.revoke("raced")
        return row

    monkeypatch.setattr(controller.store, "token", read_then_revoke)
    tokens.authenticate(token)  # it was valid when it was read
    monkeypatch.undo()
    with pytest.raises(UnknownToken):
        tokens.authenticate(token)


def test_rotating_what_does_not_exist_is_not_found(client: TestClient) -> None:
    assert client.post("/api/v1/tokens/unused/rotate", json={}).status_code == 404
    assert client.delete("/api/v1/tokens/unused").status_code == 404


@pytest.mark.slow
def test_a_quota_is_set_shown_and_removed(client: TestClient, controller: Controller) -> None:
    body = {"team": "vision", "gpus": 1, "gpu_hours_per_week": 500}
    shown = client.put("/api/v1/quotas", json=body).json()["quotas"]
    assert [(q["team"], q["gpus"], q["gpu_hours_per_week"], q["share"]) for q in shown] == [
        ("vision", 1, 500.0, None)
    ]
    shown = client.put("/api/v1/quotas", json={"team": "vision", "share": 2.5}).json()["quotas"]
    assert (shown[0]["gpus"], shown[0]["share"]) == (1, 2.5)
    first, second = submit_text(controller, "run: 'sleep ${n}'\nmatrix: {n: [60, 61]}\nteam: vision")
    wait_until(lambda: client.get(f"/api/v1/jobs/{first.id}").json()["state"] == "RUNNING")
    waiting = "Its team runs on 1 GPU, as many as its quota allows."
    wait_until(lambda: client.get(f"/api/v1/jobs/{second.id}").json()["reason"] == waiting)
    explained = client.get(f"/api/v1/jobs/{second.id}/explain").json()
    assert explained["code"] == "team_gpu_quota"
    assert any(fact.startswith("Quota of team vision: 1 of 1 GPUs") for fact in explained["evidence"])
    quota = client.get("/api/v1/quotas").json()["quotas"][0]
    assert quota["gpus_used"] == 1
    assert quota["gpu_hours_left"] == pytest.approx(500.0, abs=0.1)
    assert client.delete("/api/v1/quotas?team=vision").json()["quotas"] == []
    wait_until(lambda: client.get(f"/api/v1/jobs/{second.id}").json()["state"] == "RUNNING")
    for job in (first, second):
        controller.cancel(job.id)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"gpus": 1}, 409, "exactly one"),
        ({"gpus": 1, "team": "a", "user": "b"}, 409, "exactly one"),
        ({"team": "a"}, 409, "at least one of gpus"),
        ({"team": "a", "gpus": -1}, 422, "gpus"),
        ({"team": "a", "share": 0}, 422, "share"),
        ({"team": "a b", "gpus": 1}, 422, "team"),
    ],
)
def test_an_invalid_quota_is_refused(
    client: TestClient, body: dict[str, object], status: int, words: str
) -> None:
    response = client.put("/api/v1/quotas", json=body)
    assert response.status_code == status
    assert words in response.json()["detail"]


def test_only_operators_set_quotas_and_read_the_audit_log(controller: Controller) -> None:
    with open_client(controller, "viewer") as viewer:
        assert viewer.get("/api/v1/quotas").status_code == 200
        assert viewer.put("/api/v1/quotas", json={"team": "a", "gpus": 1}).status_code == 403
        assert viewer.delete("/api/v1/quotas?team=a").status_code == 403
        assert viewer.get("/api/v1/audit").status_code == 403


def test_the_audit_log_has_what_operators_did(client: TestClient, controller: Controller) -> None:
    job = submit_text(controller, "run: sleep 60", held=True)[0].id
    since_s = controller.clock()
    client.patch(f"/api/v1/jobs/{job}", json={"priority": 7})
    client.post(f"/api/v1/jobs/{job}/release")
    client.post(f"/api/v1/jobs/{job}/cancel")
    client.put("/api/v1/budgets", json={"budgets": ["900W"]})
    client.put("/api/v1/budgets", json={"budgets": []})
    client.put("/api/v1/quotas", json={"user": "ann", "gpus": 2})
    client.delete("/api/v1/quotas?user=ann")
    create(client, "audited")
    client.delete("/api/v1/tokens/audited")
    records = client.get(f"/api/v1/audit?since={since_s}").json()["records"]
    found = [(r["action"], r["subject"], r["before"], r["after"]) for r in records]
    quota = {"user": "ann", "gpus": 2}
    assert found == [
        ("priority", f"job {job}", 0.0, 7.0),
        ("release", f"job {job}", None, None),
        ("cancel", f"job {job}", "PENDING", "CANCELLED"),
        ("setting", "budgets", [], ["900W"]),
        ("setting", "budgets", ["900W"], []),
        ("quota", "user ann", None, quota),
        ("quota", "user ann", quota, None),
        ("token created", "audited", None, {"role": "viewer"}),
        ("token revoked", "audited", None, None),
    ]
    name = records[0]["by"]
    assert name.startswith("test-operator")
    assert {r["by"] for r in records} == {name}
    assert client.get(f"/api/v1/audit?since={since_s}&by=else").json()["records"] == []
    page = client.get(f"/api/v1/audit?since={since_s}&limit=2").json()["records"]
    rest = client.get(f"/api/v1/audit?since={since_s}&after={page[-1]['seq']}").json()["records"]
    assert page + rest == records


def test_what_users_do_with_their_jobs_is_not_audited(controller: Controller) -> None:
    me = "root" if os.geteuid() == 0 else ""
    with open_client(controller, "user", me) as user:
        job = user.post("/api/v1/jobs?held=true", json={"run": "true"}).json()["jobs"][0]["id"]
        since_s = controller.clock()
        user.post(f"/api/v1/jobs/{job}/cancel")
    with open_client(controller) as operator:
        assert operator.get(f"/api/v1/audit?since={since_s}").json()["records"][:-1] == []


def test_a_taken_name_raises_conflict_in_the_store(controller: Controller) -> None:
    tokens = TokenStore(controller.store, controller.clock)
    tokens.create("taken", "viewer")
    with pytest.raises(Conflict, match="names are unique"):
        tokens.create("taken", "operator")

from __future__ import annotations

import asyncio
import json
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from support.controllers import (
    open_client,
    submit_text,
    wait_until,
    wait_until_over,
    wait_until_running,
)
from wattline.service.controller import Controller
from wattline.service.http.app import create_app
from wattline.service.http.auth import TokenStore
from wattline.service.http.log_stream import LogStream

UNPRIVILEGED = pwd.getpwuid(65534).pw_name


def queue_length(controller: Controller) -> int | None:
    """Return the length of the queue at the last decision; None: there was none yet."""
    step = controller.view().step
    return None if step is None else len(step.state.queue)


@pytest.mark.slow
def test_a_job_is_submitted_shown_listed_and_runs(client: TestClient, controller: Controller) -> None:
    response = client.post("/api/v1/jobs", json={"run": ["sh", "-c", "echo hello"], "name": "greet"})
    assert response.status_code == 201
    (job,) = response.json()["jobs"]
    assert wait_until_over(controller, job["id"]).state == "SUCCEEDED"
    shown = client.get(f"/api/v1/jobs/{job['id']}").json()
    assert (shown["name"], shown["state"], shown["exit_code"]) == ("greet", "SUCCEEDED", 0)
    assert shown["energy_method"] == "simulated"
    assert job["id"] in [one["id"] for one in client.get("/api/v1/jobs?state=SUCCEEDED").json()["jobs"]]
    assert client.get(f"/api/v1/jobs/{job['id']}/logs").text == "hello\n"


def test_lists_come_in_pages(client: TestClient, controller: Controller) -> None:
    made = [one.id for one in submit_text(controller, "run: 'true ${n}'\nmatrix: {n: 1..5}\nteam: pages")]
    first = client.get("/api/v1/jobs?team=pages&limit=3").json()
    rest = client.get(f"/api/v1/jobs?team=pages&limit=3&after={first['next']}").json()
    assert [one["id"] for one in first["jobs"] + rest["jobs"]] == made
    assert rest["next"] is None


def test_the_same_key_submits_once(client: TestClient) -> None:
    headers = {"Idempotency-Key": "abc"}
    first = client.post("/api/v1/jobs", json={"run": "true"}, headers=headers).json()
    again = client.post("/api/v1/jobs", json={"run": "true"}, headers=headers).json()
    assert [j["id"] for j in first["jobs"]] == [j["id"] for j in again["jobs"]]
    other = client.post("/api/v1/jobs", json={"run": "false"}, headers=headers)
    assert other.status_code == 409
    assert "Idempotency-Key" in other.json()["detail"]


def test_an_invalid_job_is_reported_as_for_a_job_file(client: TestClient) -> None:
    response = client.post("/api/v1/jobs", json={"run": "true", "resources": {"gpu": 1}})
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert "resources.gpu" in response.json()["detail"]
    assert response.json()["hint"] == "did you mean resources.gpus?"


def test_bodies_that_are_too_large_are_refused(client: TestClient, controller: Controller) -> None:
    before = len(controller.store.jobs())
    response = client.post("/api/v1/jobs", content=b'{"run": "' + b"x" * 2_000_000 + b'"}')
    assert response.status_code == 413

    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * 50_000

    response = client.post("/api/v1/jobs", content=chunks(), headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    assert len(controller.store.jobs()) == before


def test_requests_without_a_valid_token_are_refused(controller: Controller) -> None:
    tokens = TokenStore(controller.store, controller.clock)
    short = tokens.create("guest", "viewer", lasts_s=1e-6)
    with TestClient(create_app(controller)) as client:
        assert client.get("/healthz").status_code == 200
        for header, words in (
            ({}, "the request has no token"),
            ({"Authorization": "Bearer nonsense"}, "the token is unknown"),
            ({"Authorization": "Basic abc"}, "the request has no token"),
            ({"Authorization": f"Bearer {short}"}, "the token of guest has expired"),
        ):
            response = client.get("/api/v1/jobs", headers=header)
            assert response.status_code == 401
            assert words in response.json()["detail"]
            assert response.headers["www-authenticate"] == "Bearer"


def test_each_role_has_its_rights(controller: Controller) -> None:
    job = submit_text(controller, "run: sleep 60\nname: mine", held=True)[0].id
    with open_client(controller, "viewer") as viewer:
        assert viewer.get("/api/v1/jobs").status_code == 200
        assert viewer.post("/api/v1/jobs", json={"run": "true"}).status_code == 403
        assert viewer.post(f"/api/v1/jobs/{job}/cancel").status_code == 403
    with open_client(controller, "user", UNPRIVILEGED) as user:
        assert user.post(f"/api/v1/jobs/{job}/cancel").status_code == 403
        assert user.put("/api/v1/budgets", json={"budgets": []}).status_code == 403
        assert user.get("/api/v1/tokens").status_code == 403
    controller.cancel(job)


def test_only_hashes_of_tokens_are_stored(controller: Controller, client: TestClient) -> None:
    token = client.post("/api/v1/tokens", json={"name": "ann", "role": "viewer"}).json()["token"]
    for path in controller.folder.glob("state.db*"):
        assert token.encode() not in path.read_bytes()
    headers = {"Authorization": f"Bearer {token}"}
    assert client.get("/api/v1/jobs", headers=headers).status_code == 200
    assert client.delete("/api/v1/tokens/ann").status_code == 204
    assert client.get("/api/v1/jobs", headers=headers).status_code == 401


def test_too_many_requests_of_one_caller_are_refused(controller: Controller) -> None:
    app = create_app(controller, rate=2)
    token = TokenStore(controller.store, controller.clock).create("eager", "viewer")
    with TestClient(app, headers={"Authorization": f"Bearer {token}"}) as client:
        codes = [client.get("/api/v1/cluster").status_code for _ in range(30)]
    assert 429 in codes
    assert codes[:4] == [200] * 4


def test_a_job_is_held_released_prioritised_and_cancelled(client: TestClient, controller: Controller) -> None:
    (job,) = client.post("/api/v1/jobs?held=true", json={"run": "sleep 60"}).json()["jobs"]
    path = f"/api/v1/jobs/{job['id']}"
    assert client.get(path).json()["reason"] == "Held by its owner or an operator."
    assert client.patch(path, json={"priority": 7}).json()["priority"] == 7
    assert client.post(f"{path}/release").json()["held"] is False
    wait_until_running(controller, job["id"])
    assert client.post(f"{path}/hold").status_code == 409
    assert client.post(f"{path}/cancel").status_code == 200
    assert wait_until_over(controller, job["id"]).state == "CANCELLED"
    assert client.post(f"{path}/cancel").status_code == 409


def test_logs_are_followed_to_the_end(client: TestClient) -> None:
    script = "for i in 1 2 3; do echo line $i; sleep 0.1; done; exit 3"
    (job,) = client.post("/api/v1/jobs", json={"run": ["sh", "-c", script]}).json()["jobs"]
    path = f"/api/v1/jobs/{job['id']}/logs?follow=true"
    with client.stream("GET", path) as stream:
        lines = [line for line in stream.iter_lines() if line and not line.startswith((":", "id:"))]
    assert lines == ["data: line 1", "data: line 2", "data: line 3", "event: end", "data: FAILED"]
    with client.stream("GET", path, headers={"Last-Event-ID": f"1:{len('line 1 ')}"}) as stream:
        lines = [line for line in stream.iter_lines() if line]
    assert lines[0] == "data: line 2"
    assert lines[1].startswith("id: 1:21:")
    assert lines[2:] == ["data: line 3", "event: end", "data: FAILED"]
    with client.stream("GET", path, headers={"Last-Event-ID": lines[1].removeprefix("id: ")}) as stream:
        assert [line for line in stream.iter_lines() if line] == ["event: end", "data: FAILED"]
    assert client.get(f"/api/v1/jobs/{job['id']}/logs?tail=2").text == "line 2\nline 3\n"
    assert client.get(f"/api/v1/jobs/{job['id']}/logs?tail=0").text == ""


def test_a_progress_bar_is_sent_while_it_is_drawn(
    client: TestClient, controller: Controller, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    script = rf"printf '\r 10 %%\r 50 %%\377'; while [ ! -e {seen} ]; do sleep 0.02; done; printf '\r100 %%'"
    (job,) = client.post("/api/v1/jobs", json={"run": ["sh", "-c", script]}).json()["jobs"]
    log = controller.folder / "jobs" / job["id"] / "attempts" / "1" / "rank0.log"
    wait_until(lambda: log.exists() and b"50 %" in log.read_bytes())
    stream = LogStream(controller, job["id"], None, 0, raw=False).send()
    events = list[str]()

    async def follow() -> None:
        async for event in stream:
            events.append(event)
            if "50 %" in event:
                seen.touch()

    asyncio.run(follow())
    assert events[0] == "event: bar\ndata:  50 %\N{REPLACEMENT CHARACTER}\n\n"
    assert events[-2].endswith("data: 100 %\n\n")
    assert events[-1] == "event: end\ndata: SUCCEEDED\n\n"
    with client.stream("GET", f"/api/v1/jobs/{job['id']}/logs?follow=true&raw=true") as response:
        (text,) = [line for line in response.iter_lines() if line.startswith('data: "')]
    written = json.loads(text.removeprefix("data: ")).encode("utf-8", "surrogateescape")
    assert written == b"\r 10 %\r 50 %\xff\r100 %"


@pytest.mark.slow
def test_a_stream_goes_on_with_the_next_attempt(client: TestClient, controller: Controller) -> None:
    script = "printf attempt; test $WATTLINE_RESTART_COUNT = 1 || exit 75"
    (job,) = client.post("/api/v1/jobs", json={"run": ["sh", "-c", script]}).json()["jobs"]
    wait_until_over(controller, job["id"])
    path = f"/api/v1/jobs/{job['id']}/logs?follow=true"
    with client.stream("GET", path, headers={"Last-Event-ID": "1:3"}) as stream:
        data = [line for line in stream.iter_lines() if line.startswith("data:")]
    assert data == ["data: empt", "data: attempt", "data: SUCCEEDED"]


@pytest.mark.parametrize("job", ["../../token", "1%2f..%2f2", "%2e%2e", "1;ls", "-1", "a" * 20])
def test_log_paths_outside_the_job_are_refused(client: TestClient, job: str) -> None:
    response = client.get(f"/api/v1/jobs/{job}/logs")
    assert response.status_code in (404, 422)


def test_events_list_the_history_of_a_job(client: TestClient, controller: Controller) -> None:
    (job,) = client.post("/api/v1/jobs", json={"run": "true"}).json()["jobs"]
    wait_until_over(controller, job["id"])
    events = client.get(f"/api/v1/events?job={job['id']}").json()["events"]
    assert [event["kind"] for event in events] == ["accepted", "started", "ended"]
    page = client.get(f"/api/v1/events?job={job['id']}&limit=2").json()
    assert page["next"] == page["events"][-1]["seq"]
    rest = client.get(f"/api/v1/events?job={job['id']}&after={page['next']}").json()
    assert ([event["kind"] for event in rest["events"]], rest["next"]) == (["ended"], None)
    since = client.get(f"/api/v1/events?job={job['id']}&since={events[1]['at_s']}").json()["events"]
    assert [event["kind"] for event in since] == ["started", "ended"]


def test_explain_gives_reason_evidence_forecast_and_alternatives(
    client: TestClient, controller: Controller
) -> None:
    first = submit_text(controller, "run: sleep 60\nresources: {gpus: 3, time: 1h}")[0].id
    wait_until_running(controller, first)
    second = submit_text(controller, "run: sleep 1\nresources: {gpus: 2, time: 1h}")[0].id
    wait_until(lambda: queue_length(controller) == 2)
    response = client.get(f"/api/v1/jobs/{second}/explain").json()
    assert response["code"] == "no_room"
    assert "fewer GPUs are free than it requests" in response["reason"]
    assert any("requests 2 GPUs" in line for line in response["evidence"])
    assert response["expected"]["starts_s"] == pytest.approx(controller.job(first).start_s + 3600, abs=5)
    assert [change["scenario"] for change in response["changes"]] == ["with 1 GPU"]  # a priority: nothing
    running = client.get(f"/api/v1/jobs/{first}/explain").json()
    assert running["reason"].startswith("Since ")
    assert running["reason"].endswith(" on 3 a100 GPUs.")
    for job in (second, first):
        controller.cancel(job)
        wait_until_over(controller, job)


def test_a_plan_forecasts_a_job_without_submitting_it(client: TestClient, controller: Controller) -> None:
    wait_until(lambda: not controller.store.live_jobs() and not queue_length(controller))  # follows the store
    before = len(controller.store.jobs())
    job = {"run": "python train.py", "model": "resnet50", "resources": {"gpus": 2, "time": "10m"}}
    response = client.post("/api/v1/plan", json=job).json()
    assert response["feasible"]
    assert response["expected"]["gpus"] == 2
    assert response["expected"]["energy_j"] > 0
    slower = next(one for one in response["alternatives"] if one["gpus"] == 1)
    assert slower["ends_s"] > response["expected"]["ends_s"]
    too_big = client.post("/api/v1/plan", json={"run": "x", "resources": {"gpus": 64}}).json()
    assert (too_big["feasible"], too_big["field"]) == (False, "resources.gpus")
    assert len(controller.store.jobs()) == before


def test_budgets_are_set_shown_and_change_the_policy(client: TestClient, controller: Controller) -> None:
    answer = {"budgets": ["800W"], "overshoot": 1.0}
    assert answer.items() <= client.put("/api/v1/budgets", json={"budgets": ["800W"]}).json().items()
    assert "market" in client.get("/api/v1/cluster").json()["policy"]
    assert client.put("/api/v1/budgets", json={"budgets": ["lots"]}).status_code == 422
    shown = client.get("/api/v1/budgets").json()
    assert answer.items() <= shown.items()
    assert [one["limit"] for one in shown["usage"]] == [800.0]
    client.put("/api/v1/budgets", json={"budgets": ["eta=0.5"]})
    wait_until(lambda: "powerflow" in client.get("/api/v1/cluster").json()["policy"])
    client.put("/api/v1/budgets", json={"budgets": []})
    wait_until(lambda: "market" in client.get("/api/v1/cluster").json()["policy"])


@pytest.mark.slow
def test_replaying_the_run_log_decides_the_same(
    client: TestClient, controller: Controller, tmp_path: Path
) -> None:
    from wattline.backend.replay import Replay
    from wattline.loop.log_reader import read_log
    from wattline.loop.run import run

    jobs = submit_text(controller, "run: sleep 0.${n}\nmatrix: {n: 0..7}\nteam: late")
    for job in jobs:
        wait_until_over(controller, job.id)
    wait_until(lambda: queue_length(controller) == 0)
    path = tmp_path / "run.jsonl"
    path.write_text(client.get("/api/v1/log").text)
    log = read_log(path)
    again = Replay(log)
    view = controller.view()
    run(again, view.policy, view.models, place=view.placer, initial_state=again.initial_state)
    assert sum(len(one.actions) for one in log) >= len(jobs)


def test_lines_of_a_log_are_read_in_pages_and_followed_from_there(client: TestClient) -> None:
    script = "for n in 1 2 3 4 5; do echo line $n; done; printf 'step 1\\rstep 2'"
    (job,) = client.post("/api/v1/jobs", json={"run": ["sh", "-c", script]}).json()["jobs"]
    path = f"/api/v1/jobs/{job['id']}/logs/lines"
    wait_until(lambda: client.get(path).json()["unfinished"] == "step 2")
    page = client.get(f"{path}?lines=2").json()
    assert (page["lines"], page["attempt"], page["ranks"]) == (["line 4", "line 5"], 1, [0])
    earlier = client.get(f"{path}?lines=2&before={page['before']}").json()
    assert (earlier["lines"], earlier["end"], earlier["unfinished"]) == (["line 2", "line 3"], None, None)
    first = client.get(f"{path}?lines=2&before={earlier['before']}").json()
    assert (first["lines"], first["before"]) == (["line 1"], None)
    assert client.get(f"{path}?search=LINE 3").json()["lines"] == ["line 3"]
    followed = client.get(f"/api/v1/jobs/{job['id']}/logs?follow=true&since={page['end']}").text
    assert followed.count("id: ") == 1  # the unfinished line; before its end it may come as a bar, too
    assert "data: step 2\n" in followed
    assert "data: line" not in followed
    assert followed.endswith("event: end\ndata: SUCCEEDED\n\n")
    assert client.get(f"{path}?before=1:5").status_code == 422
    assert client.get(f"{path}?rank=3").status_code == 404
    assert client.get(f"{path}?before=1:5:1").json()["lost"] is True

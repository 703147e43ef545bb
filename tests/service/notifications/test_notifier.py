"""Webhooks against a real HTTP server on this machine."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.controllers import open_client, run_controller, submit_text, wait_until, wait_until_over
from wattline.errors import ConfigError, Conflict
from wattline.service.notifications import notifier
from wattline.service.notifications.outbox import Outbox
from wattline.service.notifications.settings import EVENTS, Webhook, WebhookSettings, parse_webhooks
from wattline.service.settings import ServiceSettings


class Receiver:
    """A server that keeps the requests it gets, and answers the next of *answers*, then 200."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[int] = []

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, _, body in self.requests]


@contextmanager
def receive() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            answer = receiver.answers.pop(0) if receiver.answers else 200
            receiver.requests.append((self.path, dict(self.headers.items()), body))
            self.send_response(answer)
            if answer == 302:
                self.send_header("Location", f"{receiver.url}/elsewhere")
            self.end_headers()

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def settings_for(receiver: Receiver, **teams: Webhook) -> ServiceSettings:
    return ServiceSettings(webhooks=WebhookSettings((receiver.url,), teams))


def test_the_end_of_a_job_is_sent_signed_to_its_own_url_and_to_its_team(tmp_path: Path) -> None:
    with receive() as receiver:
        settings = settings_for(receiver, vision=Webhook(f"{receiver.url}/team"))
        with run_controller(tmp_path, settings=settings) as controller:
            text = f"run: 'true'\nteam: vision\nnotify: {receiver.url}/mine\nenv: {{SECRET: hunter2}}"
            (job,) = submit_text(controller, text)
            row = wait_until_over(controller, job.id)
            wait_until(lambda: len(receiver.requests) == 2)
            secret = (tmp_path / "webhook-secret").read_text().strip().encode()
            assert (tmp_path / "webhook-secret").stat().st_mode & 0o777 == 0o600
        assert sorted(path for path, _, _ in receiver.requests) == ["/mine", "/team"]
        for _, headers, body in receiver.requests:
            signed = headers["X-Wattline-Timestamp"].encode() + b"." + body
            expected = hmac.new(secret, signed, hashlib.sha256).hexdigest()
            assert headers["X-Wattline-Signature"] == f"sha256={expected}"
            assert abs(time.time() - int(headers["X-Wattline-Timestamp"])) < 60
            message = json.loads(body)
            assert (message["event"], message["job"]["id"]) == ("end", job.id)
            assert message["job"]["energy_j"] == row.energy_j
            assert message["job"]["energy_method"] == "simulated"
            assert b"hunter2" not in body


def test_a_failure_is_sent_where_only_failures_are_wanted(tmp_path: Path) -> None:
    with receive() as receiver:
        settings = settings_for(receiver, vision=Webhook(f"{receiver.url}/", ("failure",)))
        with run_controller(tmp_path, settings=settings) as controller:
            jobs = [submit_text(controller, f"run: '{word}'\nteam: vision")[0] for word in ("true", "false")]
            for job in jobs:
                wait_until_over(controller, job.id)
            (message,) = wait_until(lambda: receiver.messages)
            wait_until(lambda: controller.notifier and not controller.notifier.outbox.count())
        assert (message["event"], message["job"]["state"]) == ("failure", "FAILED")
        assert message["job"]["exit_code"] == 1
        assert len(receiver.requests) == 1


def test_a_message_is_tried_again_after_a_failure_with_the_same_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "BACKOFF_S", (0.05, 0.1))
    with receive() as receiver:
        receiver.answers = [500, 302, 503]
        with run_controller(tmp_path, settings=settings_for(receiver)) as controller:
            submit_text(controller, f"run: 'true'\nnotify: {receiver.url}/mine")
            wait_until(lambda: len(receiver.requests) == 4)
            wait_until(lambda: controller.notifier and not controller.notifier.outbox.count())
        assert {path for path, _, _ in receiver.requests} == {"/mine"}, "a redirect was followed"
        assert len({headers["X-Wattline-Delivery"] for _, headers, _ in receiver.requests}) == 1


def test_messages_survive_a_restart(tmp_path: Path) -> None:
    with receive() as receiver:
        receiver.answers = [500]
        with run_controller(tmp_path, settings=settings_for(receiver)) as controller:
            submit_text(controller, f"run: 'true'\nnotify: {receiver.url}/mine")
            wait_until(lambda: len(receiver.requests) == 1)
            assert controller.notifier is not None
            outbox = controller.notifier.outbox
            wait_until(lambda: (outbox.next_due_s() or 0.0) > controller.clock() + 1.0)
        kept = Outbox(tmp_path / "notifications.db", 0)
        (message,) = kept.due(time.time() + 60)
        kept.postpone(message.id, 0.0, "due now")
        kept.close()
        with run_controller(tmp_path, settings=settings_for(receiver)) as controller:
            wait_until(lambda: len(receiver.requests) == 2)
            wait_until(lambda: controller.notifier and not controller.notifier.outbox.count())
        first, second = (headers["X-Wattline-Delivery"] for _, headers, _ in receiver.requests)
        assert first == second


def test_jobs_that_ended_while_no_webhook_was_set_are_not_sent_later(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        wait_until_over(controller, submit_text(controller, "run: 'true'\nteam: vision")[0].id)
    with receive() as receiver:
        settings = settings_for(receiver, vision=Webhook(f"{receiver.url}/"))
        with run_controller(tmp_path, settings=settings) as controller:
            (job,) = submit_text(controller, "run: 'true'\nteam: vision")
            wait_until(lambda: receiver.requests)
        assert [message["job"]["id"] for message in receiver.messages] == [job.id]


def test_an_exhausted_budget_is_sent_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "_BUDGET_S", 0.1)
    with receive() as receiver:
        settings = settings_for(receiver, vision=Webhook(f"{receiver.url}/", ("budget",)))
        with run_controller(tmp_path, settings=settings) as controller:
            controller.set_budgets(["vision:1J"])
            submit_text(controller, "run: 'true'\nteam: vision")
            controller.store.add_meter_readings([(controller.clock(), "vision", 5.0)])
            (message,) = wait_until(lambda: receiver.messages)
            until_s = controller.clock() + 0.5
            wait_until(lambda: controller.clock() > until_s)
        assert len(receiver.requests) == 1
        assert message["budget"]["budget"] == "vision:1J"
        assert message["budget"]["left"] < 0


def test_a_message_that_cannot_be_delivered_is_given_up_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notifier, "GIVE_UP_S", 0.0)
    settings = ServiceSettings(webhooks=WebhookSettings(("http://127.0.0.1:9",)))
    with caplog.at_level(logging.WARNING), run_controller(tmp_path, settings=settings) as controller:
        submit_text(controller, "run: 'true'\nnotify: http://127.0.0.1:9/x")
        wait_until(lambda: controller.notifier and controller.notifier.given_up == 1)
    assert "webhook http://127.0.0.1:9/x is given up after 1 tries" in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1:22/",
        "https://hooks.example.org.evil.example/x",
        "https://hooks.example.org@evil.example/x",
        "http://hooks.example.org/x",
        "https://hooks.example.org:8443/x",
        "file:///etc/passwd",
        "https://hooks.example.org\\@evil.example/",
        "https://",
    ],
)
def test_urls_that_operators_did_not_allow_are_refused(url: str) -> None:
    settings = WebhookSettings(("https://hooks.example.org",))
    settings.check_url("https://HOOKS.example.org:443/x?y=1", "notify")
    with pytest.raises(ConfigError, match="notify is"):
        settings.check_url(url, "notify")


def test_a_job_with_a_url_that_is_not_allowed_is_not_accepted(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller, open_client(controller) as client:
        with pytest.raises(Conflict, match=r"may not call http://127\.0\.0\.1:81; allowed: none") as caught:
            submit_text(controller, "run: 'true'\nnotify: http://127.0.0.1:81/x")
        assert "settings.toml" in caught.value.hint
        assert client.get("/api/v1/jobs").json()["jobs"] == []


def test_the_url_of_a_job_is_not_shown_to_viewers(tmp_path: Path) -> None:
    with receive() as receiver:
        settings = settings_for(receiver)
        with run_controller(tmp_path, settings=settings) as controller, open_client(controller) as client:
            submit_text(controller, f"run: 'true'\nnotify: {receiver.url}/token-1234")
            assert "token-1234" not in client.get("/api/v1/events").text
            assert "token-1234" not in client.get("/api/v1/jobs").text


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"alow": []}, "webhooks.alow is unknown"),
        ({"allow": "https://a.example"}, "webhooks.allow is 'https://a.example', expected a list of origins"),
        ({"allow": ["https://a.example/path"]}, "expected an origin such as"),
        ({"teams": {"a": "https://a.example/x"}}, "webhooks may not call https://a.example"),
        (
            {"allow": ["https://a.example"], "teams": {"a": {"url": "https://a.example", "on": ["x"]}}},
            "on is",
        ),
        ({"secret_file": "here"}, "webhooks.secret_file is 'here', expected an absolute path"),
    ],
)
def test_wrong_settings_are_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_webhooks(table, "settings.toml")
    assert message in caught.value.message


def test_settings_name_origins_teams_and_occasions() -> None:
    table = {"allow": ["https://a.example:443"], "teams": {"v": "https://a.example/x"}}
    settings = parse_webhooks(table, "settings.toml")
    assert settings.allow == ("https://a.example",)
    assert settings.teams == {"v": Webhook("https://a.example/x", EVENTS)}

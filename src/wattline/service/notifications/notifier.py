"""Sending of messages on the end of jobs and the exhaustion of budgets, in a thread.

Messages are stored before they are sent, together with the position in the events, so that a restart neither
loses nor repeats one. A receiver may get a message twice if the service is killed while it sends; both have
the same id.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wattline.errors import StoreError
from wattline.service.budget_usage import read_budget_usage
from wattline.service.notifications.delivery import deliver, read_secret
from wattline.service.notifications.outbox import Message, Outbox
from wattline.service.notifications.settings import Webhook, WebhookSettings
from wattline.service.storage.events import StoredEvent
from wattline.service.storage.projection import JobRow
from wattline.service.storage.store import Store
from wattline.service.store_thread import StoreThread
from wattline.service.view import ControllerView

BACKOFF_S = (10.0, 30.0, 120.0, 600.0, 3600.0)
"""Pauses between tries; the last one repeats."""
GIVE_UP_S = 86400.0
"""Age at which a message is given up."""
_BUDGET_S = 30.0  # between two looks at the budgets
_PAGE = 1000
_NAMESPACE = uuid.UUID("6f6b8d64-6f0f-4c52-9d3c-2f4f4bb0c7a1")
_logger = logging.getLogger(__name__)


class Notifier(StoreThread):
    """Finds what is to be sent, and sends it. Without allowed origins nothing is done."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        settings: WebhookSettings,
        clock: Callable[[], float],
        view: Callable[[], ControllerView],
    ) -> None:
        self._settings, self._clock, self._view = settings, clock, view
        self._secret = read_secret(Path(settings.secret_file or folder / "webhook-secret"))
        self.outbox = Outbox(folder / "notifications.db", store.last_seq)
        self.given_up = 0  # messages, since the start of this process
        self._next_budget_s = 0.0
        super().__init__(store, "wattline-webhooks")

    def stop(self) -> None:
        """End the thread, after a message that is being sent; others are kept."""
        super().stop()
        self.outbox.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._changed.clear()
            try:
                self._collect()
                self._send()
            except StoreError as error:
                _logger.warning("webhooks wait until the state can be read: %s", error.message)
            due_s, now_s = self.outbox.next_due_s(), self._clock()
            waits_s = (
                self._next_budget_s - now_s if due_s is None else min(due_s, self._next_budget_s) - now_s
            )
            self._changed.wait(min(max(waits_s, 0.05), _BUDGET_S))

    # -- what is to be sent

    def _collect(self) -> None:
        while True:
            position = self.outbox.position
            events = self._store.events(position, None, _PAGE)
            if not events:
                break
            messages = [one for event in events if event.kind == "ended" for one in self._build(event)]
            self.outbox.add(messages, self._clock(), events[-1].seq)
            if len(events) < _PAGE:
                break
        if self._clock() >= self._next_budget_s:
            self._next_budget_s = self._clock() + _BUDGET_S
            self._collect_budgets()

    def _build(self, event: StoredEvent) -> list[tuple[str, str, str, dict[str, Any]]]:
        """Return the messages on the end of a job."""
        job = self._store.job(str(event.job))
        if job is None:  # deleted meanwhile
            return []
        kind = "end" if event.data["state"] in ("SUCCEEDED", "CANCELLED") else "failure"
        hooks = [Webhook(url)] if (url := str(job.submission.get("notify") or "")) else []
        hooks += [hook for team, hook in self._settings.teams.items() if team == job.team]
        urls = dict.fromkeys(hook.url for hook in hooks if kind in hook.on)
        content = {"event": kind, "at_s": event.at_s, "job": describe_job(job)}
        return [(self._name(f"{event.seq} {url}"), url, kind, content) for url in urls]

    def _collect_budgets(self) -> None:
        view = self._view()
        for usage in read_budget_usage(self._store, view):
            if usage.unit != "J" or usage.left is None or usage.left > 0:
                continue
            period = usage.resets_s or float(self._store.setting("budgets_s") or 0.0)
            key = f"budget {usage.budget} {period:.0f}"
            teams = [usage.team] if usage.team else list(self._settings.teams)
            urls = dict.fromkeys(
                self._settings.teams[team].url
                for team in teams
                if team in self._settings.teams and "budget" in self._settings.teams[team].on
            )
            content = {"event": "budget", "at_s": self._clock(), "budget": asdict(usage)}
            messages = [(self._name(f"{key} {url}"), url, "budget", content) for url in urls]
            self.outbox.add(messages, self._clock(), key=key)

    def _name(self, text: str) -> str:
        """Return the id of a message: the same if it is built again."""
        return str(uuid.uuid5(_NAMESPACE, f"{self._store.path} {text}"))

    # -- sending

    def _send(self) -> None:
        for message in self.outbox.due(self._clock()):
            if self._stopping.is_set():
                return
            self._send_one(message)

    def _send_one(self, message: Message) -> None:
        try:
            self._settings.check_url(message.url, "webhook")
            problem = deliver(message, self._secret, self._clock())
        except (
            Exception
        ) as error:  # an origin that is not allowed any more, or a bug: tried again, then given up
            problem = str(error)
        if not problem:
            self.outbox.remove(message.id)
            return
        now_s = self._clock()
        if now_s - message.created_s >= GIVE_UP_S:
            self.outbox.remove(message.id)
            self.given_up += 1
            _logger.warning(
                "webhook %s is given up after %d tries: %s", message.url, message.tries + 1, problem
            )
            return
        pause_s = BACKOFF_S[min(message.tries, len(BACKOFF_S) - 1)]
        self.outbox.postpone(message.id, now_s + pause_s, problem)
        if not message.tries:
            _logger.warning("webhook %s failed and is tried again: %s", message.url, problem)


def describe_job(job: JobRow) -> dict[str, Any]:
    """Return what a message states about a job; neither its command nor its environment."""
    return {
        "id": job.id,
        "name": job.name,
        "user": job.user,
        "team": job.team,
        "sweep": job.sweep,
        "state": job.state,
        "message": job.message,
        "exit_code": job.exit_code,
        "submit_s": job.submit_s,
        "end_s": job.end_s,
        "run_s": job.service_s,
        "energy_j": None if job.energy_method in ("", "unmetered") else job.energy_j,
        "energy_method": job.energy_method,
    }

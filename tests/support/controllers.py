"""Controllers with simulated GPUs, and clients of their API."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from wattline.jobfile import read_job
from wattline.service.controller import Controller
from wattline.service.http.app import create_app
from wattline.service.http.auth import TokenStore
from wattline.service.states import FINAL_STATES
from wattline.service.storage.projection import JobRow

TIMEOUT_S = 60.0


@contextmanager
def run_controller(folder: Path, gpus: str = "simulated:4xa100", **more: Any) -> Iterator[Controller]:
    """Run a controller for the duration of the block; cancel its jobs at the end."""
    controller = Controller(folder, gpus=gpus, **more)
    controller.start()
    try:
        yield controller
    finally:
        for job in controller.store.live_jobs():
            controller.backend.cancel(job.id)
        controller.stop()


@contextmanager
def open_client(controller: Controller, role: str = "operator", user: str = "") -> Iterator[TestClient]:
    """Open an API client with a token of this role."""
    app = create_app(controller, rate=1e6)
    name = f"test-{role}-{secrets.token_hex(4)}"
    token = TokenStore(controller.store, controller.clock).create(name, role, user)
    with TestClient(app, headers={"Authorization": f"Bearer {token}"}) as client:
        yield client


def submit_text(controller: Controller, text: str, **more: Any) -> list[JobRow]:
    """Submit the text of a job file."""
    return controller.submit(read_job(text, "job.yaml"), "", "/tmp", **more)


def wait_until(condition: Callable[[], Any], message: str = "") -> Any:
    """Wait until *condition* returns a true value and return it."""
    end_s = time.monotonic() + TIMEOUT_S
    while not (value := condition()):
        assert time.monotonic() < end_s, message or f"timed out after {TIMEOUT_S} s"
        time.sleep(0.01)
    return value


def wait_until_over(controller: Controller, job: str) -> JobRow:
    """Wait until a job has ended and return it."""

    def over() -> JobRow | None:
        row = controller.job(job)
        return row if row.state in FINAL_STATES else None

    return wait_until(over, f"job {job} has not ended")  # type: ignore[no-any-return]


def wait_until_running(controller: Controller, job: str) -> JobRow:
    """Wait until a job is running and return it."""
    wait_until(lambda: controller.job(job).state == "RUNNING", f"job {job} does not run")
    return controller.job(job)

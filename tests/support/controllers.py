"""A service to try things on: a controller with simulated GPUs, and a client of its API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from wattline.jobfile import read_job
from wattline.service.controller import Controller
from wattline.service.http.app import create_app
from wattline.service.http.auth import Tokens
from wattline.service.states import OVER
from wattline.service.storage.projection import Folded

TIMEOUT_S = 60.0


@contextmanager
def run_controller(folder: Path, gpus: str = "simulated:4xa100", **more: Any) -> Iterator[Controller]:
    """A controller that decides, until the block ends; jobs that still run are ended."""
    controller = Controller(folder, gpus=gpus, **more)
    controller.start()
    try:
        yield controller
    finally:
        for job in controller.store.jobs("state IN ('PENDING', 'RUNNING')"):
            controller.local.cancel(job.id)
        controller.stop()


@contextmanager
def open_client(controller: Controller, role: str = "operator", user: str = "") -> Iterator[TestClient]:
    """A client that has a token."""
    app = create_app(controller, rate=1e6)
    token = Tokens(controller.store, controller.clock).make("somebody", role, user)
    with TestClient(app, headers={"Authorization": f"Bearer {token}"}) as client:
        yield client


def submit_text(controller: Controller, text: str, **more: Any) -> list[Folded]:
    """Jobs from the text of a job file."""
    return controller.submit(read_job(text, "job.yaml"), "", "/tmp", **more)


def wait_until(true: Callable[[], Any], what: str = "") -> Any:
    """Wait for something to become true; answers it."""
    end_s = time.monotonic() + TIMEOUT_S
    while not (found := true()):
        assert time.monotonic() < end_s, what or "it did not happen"
        time.sleep(0.01)
    return found


def wait_until_over(controller: Controller, job: str) -> Folded:
    """Wait for a job to be over."""

    def over() -> Folded | None:
        found = controller.job(job)
        return found if found.state in OVER else None

    return wait_until(over, f"job {job} is not over")  # type: ignore[no-any-return]


def wait_until_running(controller: Controller, job: str) -> Folded:
    """Wait for a job to run."""
    wait_until(lambda: controller.job(job).state == "RUNNING", f"job {job} does not run")
    return controller.job(job)

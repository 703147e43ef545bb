"""Spans of a job's times and energy in a response: all attempts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.controllers import open_client, run_controller, submit_text, wait_until
from wattline.service.http.schemas import JobResponse
from wattline.service.storage.projection import JobRow


@pytest.fixture
def row(tmp_path: Path) -> JobRow:
    with run_controller(tmp_path, "simulated:1xa100") as controller:
        return submit_text(controller, "run: sleep 60", held=True)[0]


def respond(
    row: JobRow, live: dict[str, Any] | None = None, now_s: float = 1000.0, **more: Any
) -> JobResponse:
    return JobResponse.from_row(replace(row, submit_s=0.0, **more), live or {}, "", now_s, "rank0.log")


def test_a_job_that_never_ran_has_no_energy(row: JobRow) -> None:
    job = respond(row)
    assert (job.energy_j, job.energy_method, job.run_s, job.wait_s) == (None, "", 0.0, 1000.0)


def test_times_and_energy_of_a_running_job_cover_all_attempts(row: JobRow) -> None:
    more = {"state": "RUNNING", "starts": 2, "start_s": 900.0, "service_s": 300.0, "energy_j": 50.0}
    job = respond(row, {"energy_j": 70.0, "energy_method": "simulated"}, **more)
    assert (job.run_s, job.wait_s, job.energy_j) == (400.0, 600.0, 70.0)


@pytest.mark.parametrize("state", ["PENDING", "CANCELLED"])
def test_a_preempted_job_ran_as_long_as_its_attempts_also_if_it_is_cancelled(row: JobRow, state: str) -> None:
    end_s = 1000.0 if state == "CANCELLED" else None
    more = {"starts": 2, "start_s": 100.0, "service_s": 300.0, "energy_j": 50.0, "energy_method": "simulated"}
    job = respond(row, state=state, end_s=end_s, **more)
    assert (job.run_s, job.wait_s, job.energy_j) == (300.0, 700.0, 50.0)


def test_energy_that_was_not_counted_is_null(row: JobRow) -> None:
    job = respond(row, state="PENDING", starts=1, energy_j=None, energy_method="simulated")
    assert (job.energy_j, job.energy_method) == (None, "simulated")


@pytest.mark.slow
def test_the_joules_of_a_job_never_fall_from_its_start_to_its_end(tmp_path: Path) -> None:
    with run_controller(tmp_path, "simulated:1xa100") as controller, open_client(controller) as client:
        job = submit_text(controller, "run: sleep 1.5")[0].id
        shown: list[float] = []

        def is_over() -> bool:
            found = client.get(f"/api/v1/jobs/{job}").json()
            shown.append(found["energy_j"] or 0.0)
            return bool(found["state"] == "SUCCEEDED")

        wait_until(is_over)
        assert shown == sorted(shown)
        assert shown[-1] > 0

"""Preemption, checkpoints and retries of real processes under the service."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from support.controllers import open_client, run_controller, submit_text, wait_until, wait_until_over
from wattline.service.controller import Controller

GPUS = "simulated:2xa100"
LAS = "las:quantum=1s"

SAVING = """
import os, signal, sys, time
path = os.path.join(os.environ["WATTLINE_CHECKPOINT_DIR"], "state")
done = int(open(path).read()) if os.path.exists(path) else 0
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
while done < int(sys.argv[1]):
    time.sleep(0.1)
    done += 1
    with open(path, "w") as file:
        file.write(str(done))
    if stop:
        sys.exit(75)
"""

SESSION = """
import os, signal, time, wattline
with wattline.Session(save=lambda path: path.write_text("x"), load=lambda path: None, aim="none") as run:
    for epoch in run.epochs(10):
        for batch in run.steps(range(2)):
            time.sleep(0.05)
        if epoch == 5 and os.environ["WATTLINE_RESTART_COUNT"] == "0":
            time.sleep(1.2)
            os.kill(os.getpid(), signal.SIGKILL)
"""


def submit(controller: Controller, *words: str, more: str = "") -> str:
    (row,) = submit_text(controller, f"run: {json.dumps(list(words))}\n{more}")
    return row.id


@pytest.mark.slow
def test_jobs_that_never_save_run_one_after_the_other(tmp_path: Path) -> None:
    with run_controller(tmp_path, GPUS, policy=LAS) as controller, open_client(controller) as client:
        both = [submit(controller, "sleep", "4", more="resources: {gpus: 2}") for _ in range(2)]
        wait_until(lambda: client.get(f"/api/v1/jobs/{both[0]}").json()["state"] == "RUNNING")
        wait_until(lambda: client.get(f"/api/v1/jobs/{both[0]}").json()["protection"])
        first = client.get(f"/api/v1/jobs/{both[0]}").json()
        assert first["protection"] == "not before it has saved a checkpoint"
        assert (first["preemptible"], first["saved_progress"]) == (None, None)
        rows = [wait_until_over(controller, job) for job in both]
        assert [(row.state, row.starts) for row in rows] == [("SUCCEEDED", 1)] * 2


@pytest.mark.slow
def test_jobs_that_save_at_a_stop_are_still_preempted(tmp_path: Path) -> None:
    more = "resources: {gpus: 2}\ncheckpoint: {min_runtime: 1s}\n"
    with run_controller(tmp_path, GPUS, policy=LAS) as controller:
        both = [submit(controller, sys.executable, "-c", SAVING, "40", more=more) for _ in range(2)]
        rows = [wait_until_over(controller, job) for job in both]
        assert [row.state for row in rows] == ["SUCCEEDED"] * 2
        assert max(row.starts for row in rows) > 1
        assert all(row.results["saves"] for row in rows if row.starts > 1)


@pytest.mark.slow
def test_a_job_that_is_never_preemptible_keeps_its_gpus(tmp_path: Path) -> None:
    more = "resources: {gpus: 2}\npreemptible: false\n"
    with run_controller(tmp_path, GPUS, policy=LAS) as controller:
        first = submit(controller, sys.executable, "-c", SAVING, "40", more=more)
        wait_until(lambda: controller.job(first).state == "RUNNING")
        second = submit(controller, "true", more="resources: {gpus: 2}")
        assert wait_until_over(controller, first).starts == 1
        assert wait_until_over(controller, second).starts == 1


@pytest.mark.slow
def test_a_killed_job_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SESSION)
    with run_controller(tmp_path / "state", GPUS) as controller:
        job = submit(controller, sys.executable, str(script))
        wait_until(lambda: controller.job(job).kill_count == 1)
        # Five epochs are in the checkpoint; the first report was of less, the last of more.
        assert controller.job(job).completed_fraction == pytest.approx(0.5)
        assert controller.job(job).results["signal"] == "SIGKILL"
        assert wait_until_over(controller, job).state == "SUCCEEDED"


@pytest.mark.slow
def test_a_restarted_service_keeps_a_running_job_protected(tmp_path: Path) -> None:
    controller = Controller(tmp_path, gpus=GPUS, policy=LAS)
    controller.start()
    first = submit(controller, "sleep", "6", more="resources: {gpus: 2}")
    wait_until(lambda: controller.job(first).state == "RUNNING")
    controller.stop()
    with run_controller(tmp_path, GPUS, policy=LAS) as again:
        second = submit(again, "true", more="resources: {gpus: 2}")
        time.sleep(2.5)  # more than two quanta, in which the second job has less service
        assert again.job(first).state == "RUNNING"
        assert wait_until_over(again, second).starts == 1
        assert again.job(first).starts == 1


@pytest.mark.slow
def test_a_job_that_crashes_at_once_fails_after_one_retry_and_shows_why(tmp_path: Path) -> None:
    crash = "import os, signal; print('loading weights', flush=True); os.kill(os.getpid(), signal.SIGSEGV)"
    more = "retry: {delay: 0s}\n"
    with run_controller(tmp_path, GPUS) as controller, open_client(controller) as client:
        job = submit(controller, sys.executable, "-c", crash, more=more)
        row = wait_until_over(controller, job)
        assert (row.state, row.starts) == ("FAILED", 2)
        shown = client.get(f"/api/v1/jobs/{job}").json()
        assert shown["signal"] == "SIGSEGV"
        assert "killed by SIGSEGV" in shown["reason"]
        assert "after its start" in shown["reason"]
        assert shown["log_tail"] == ["loading weights"]
        once = submit(controller, sys.executable, "-c", crash, more="retry: {limit: 0}\n")
        assert wait_until_over(controller, once).starts == 1
        errs = submit(controller, "false", more="retry: {limit: 2, delay: 0s, on: [error]}\n")
        assert wait_until_over(controller, errs).starts == 3


BUSY = """
import time, wattline
with wattline.Session(aim="none") as run:
    for epoch in run.epochs(1):
        for batch in run.steps(range(10**6)):
            time.sleep(0.02)
"""


@pytest.mark.slow
def test_a_budget_stops_a_job_that_has_not_saved_and_says_so(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BUSY)
    with run_controller(tmp_path / "state", GPUS) as controller, open_client(controller) as client:
        lost = submit(controller, sys.executable, str(script))
        kept = submit(controller, sys.executable, str(script), more="preemptible: false\n")
        for job in (lost, kept):
            wait_until(lambda job=job: (controller.live_status(job).get("power_w") or 0.0) > 100.0)
        controller.set_budgets(["1W"])
        wait_until(lambda: controller.job(lost).state == "PENDING")
        assert "It was stopped to hold the energy budget" in controller.job(lost).message
        path = f"/api/v1/jobs/{kept}/explain"
        wait_until(lambda: "more than the energy budget allows" in str(client.get(path).json()["evidence"]))
        assert controller.job(kept).state == "RUNNING"

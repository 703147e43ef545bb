from __future__ import annotations

import os
import pwd
import sys
import threading
import time
from pathlib import Path

import pytest

from support.controllers import run_controller, submit_text, wait_until, wait_until_over, wait_until_running
from wattline.errors import ConfigError, Conflict, NotAllowed, NotFound, StoreError
from wattline.jobfile import read_job
from wattline.service.controller import Controller
from wattline.service.storage.events import NewEvent

UNPRIVILEGED = pwd.getpwuid(65534).pw_name
SWEEP = Path(__file__).parent.parent.parent / "demo" / "sweep.py"


@pytest.mark.slow
def test_jobs_run_in_order_of_priority_then_arrival(tmp_path: Path) -> None:
    with run_controller(tmp_path, "simulated:1xa100") as controller:
        first = submit_text(controller, "run: sleep 0.3")[0].id
        wait_until_running(controller, first)
        low = submit_text(controller, "run: 'true'")[0].id
        high = submit_text(controller, "run: 'true'\npriority: 5")[0].id
        assert wait_until_over(controller, low).start_s > wait_until_over(controller, high).start_s  # type: ignore[operator]


def test_jobs_run_on_without_a_controller_and_are_adopted_by_the_next(tmp_path: Path) -> None:
    controller = Controller(tmp_path, gpus="simulated:2xa100")
    controller.start()
    runs, waits = (submit_text(controller, text)[0].id for text in ("run: sleep 1", "run: 'true'"))
    held = submit_text(controller, "run: 'true'", held=True)[0].id
    wait_until_running(controller, runs)
    wait_until_over(controller, waits)
    controller.stop()
    with run_controller(tmp_path, "simulated:2xa100") as again:
        assert wait_until_over(again, runs).starts == 1
        assert again.job(held).state == "PENDING"
        again.release(held)
        assert wait_until_over(again, held).state == "SUCCEEDED"


def test_a_cancellation_before_a_crash_is_done_by_the_next_controller(tmp_path: Path) -> None:
    controller = Controller(tmp_path, gpus="simulated:2xa100")
    controller.start()
    job = submit_text(controller, "run: sleep 60")[0].id
    wait_until_running(controller, job)
    controller.store.append(NewEvent(controller.clock(), "cancel", job, {}))  # and then it is killed
    controller.stop()
    with run_controller(tmp_path, "simulated:2xa100") as again:
        assert wait_until_over(again, job).state == "CANCELLED"


def test_a_second_controller_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with run_controller(tmp_path), pytest.raises(ConfigError, match="serves it already"):
        Controller(tmp_path, gpus="simulated:1xa100")


def test_a_machine_without_gpus_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no GPU can be used on this machine") as caught:
        Controller(tmp_path)
    assert "simulated:4xa100" in caught.value.hint
    with run_controller(tmp_path):
        pass  # the lock was released


def test_concurrent_submissions_with_one_key_submit_once(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        ids: list[str] = []
        threads = [
            threading.Thread(target=lambda: ids.append(submit_text(controller, "run: 'true'", key="k")[0].id))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ids) == 8
        assert set(ids) == {"1"}
        with pytest.raises(Conflict):
            submit_text(controller, "run: 'false'", key="k")


def test_a_key_that_is_used_between_a_look_and_a_submission_submits_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_controller(tmp_path) as controller:
        read, looked = controller.store.idempotent_submission, threading.Event()

        def read_slowly(key: str) -> tuple[str, list[str]] | None:
            found, first = read(key), not looked.is_set()
            looked.set()
            time.sleep(0.5 if first else 0.0)
            return found

        monkeypatch.setattr(controller.store, "idempotent_submission", read_slowly)
        slow = threading.Thread(target=lambda: submit_text(controller, "run: 'true'", key="k"))
        slow.start()
        looked.wait()
        submit_text(controller, "run: 'true'", key="k")
        slow.join()
        assert len(controller.store.jobs()) == 1


@pytest.mark.slow
def test_a_full_disk_loses_nothing_and_the_service_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wattline.service.controller._RETRY_S", 0.05)
    with run_controller(tmp_path) as controller:
        job = submit_text(controller, "run: sleep 0.2")[0].id
        wait_until_running(controller, job)
        connection = controller.store._writer_connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(StoreError, match="disk is full"):
            submit_text(controller, "run: 'true ${n}'\nmatrix: {n: 1..2000}")
        assert len(controller.store.jobs()) == 1
        wait_until(lambda: controller.problem or controller.job(job).state == "SUCCEEDED")
        connection.execute("PRAGMA max_page_count=1000000")
        assert wait_until_over(controller, job).state == "SUCCEEDED"
        assert wait_until_over(controller, submit_text(controller, "run: 'true'")[0].id).state == "SUCCEEDED"
        wait_until(lambda: not controller.problem)


def test_a_failing_policy_is_reported_and_does_not_end_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wattline.service.controller._RETRY_S", 0.05)
    with run_controller(tmp_path) as controller:
        policy = controller.view().policy

        def broken(*_: object) -> None:
            raise ValueError("policies may be wrong")

        controller._change_policy(policy=broken)
        job = submit_text(controller, "run: 'true'")[0].id
        wait_until(lambda: "policies may be wrong" in controller.problem)
        controller._change_policy(policy=policy)
        assert wait_until_over(controller, job).state == "SUCCEEDED"


@pytest.mark.slow
def test_a_table_of_mostly_finished_jobs_starts_a_new_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wattline.service.controller._SPARE_ROWS", 10)
    with run_controller(tmp_path) as controller:
        for _ in range(3):
            for job in submit_text(controller, "run: 'true ${n}'\nmatrix: {n: 1..6}"):
                assert wait_until_over(controller, job.id).starts == 1
        wait_until(lambda: controller.view().epoch > 1)
        assert len(controller.backend.jobs) < 18


def test_unknown_users_and_jobs_are_refused(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        job = read_job("run: id", "job.yaml")
        with pytest.raises(NotAllowed, match="user 'no-such-user' does not exist"):
            controller.submit(job, "no-such-user")
        with pytest.raises(NotFound, match="there is no job '99'"):
            controller.job("99")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs of other users")
def test_jobs_run_as_the_user_of_the_token(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:3]:
        parent.chmod(0o755)
    with run_controller(tmp_path / "service") as controller:
        job = controller.submit(read_job("run: id -un", "job.yaml"), UNPRIVILEGED, "/")[0]
        assert wait_until_over(controller, job.id).state == "SUCCEEDED"
        log = tmp_path / "service" / "jobs" / job.id / "attempts" / "1" / "rank0.log"
        assert log.read_text().strip() == UNPRIVILEGED
        assert log.stat().st_uid == 0


def test_members_of_a_sweep_share_a_fusion_key_only_if_their_script_is_fusible(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        python = sys.executable
        text = f"run: {python} {SWEEP} lr=${{lr}} seed=0\nmatrix: {{lr: [1, 2, 3, 4]}}\nfuse: 2"
        members = submit_text(controller, text, held=True)
        keys = [job.fuse for job in members]
        assert keys[0] == keys[1] != keys[2] == keys[3]
        assert all(job.submission["columns"]["always_fuse"] for job in members)
        assert {
            job.fuse for job in submit_text(controller, text.replace("fuse: 2", "fuse: off"), held=True)
        } == {""}
        plain = "run: 'true lr=${lr}'\nmatrix: {lr: [1, 2]}"
        assert {job.fuse for job in submit_text(controller, plain, held=True)} == {""}


@pytest.mark.slow
def test_a_sweep_is_trained_as_one_array_and_its_members_stay_jobs(tmp_path: Path) -> None:
    with run_controller(tmp_path, "simulated:1xv100") as controller:
        text = f"""
run: {sys.executable} {SWEEP} lr=${{lr}} seed=0
matrix: {{lr: [1e-3, 3e-3, 1e-2, 3e-2]}}
fuse: 4
model: resnet50
batch_size: 64
env: {{OMP_NUM_THREADS: 1}}
"""
        jobs = [job.id for job in submit_text(controller, text)]
        for job in jobs:
            wait_until_running(controller, job)
        assert controller.job(jobs[0]).allocation["fused_with"] == jobs[1:]
        wait_until(lambda: (controller.live_status(jobs[2]).get("fraction") or 0) > 0)
        controller.cancel(jobs[2])
        assert wait_until_over(controller, jobs[2]).state == "CANCELLED"
        assert controller.job(jobs[0]).state == "RUNNING"
        over = [wait_until_over(controller, job) for job in jobs]
        assert [job.state for job in over] == ["SUCCEEDED", "SUCCEEDED", "CANCELLED", "SUCCEEDED"]
        for job in over:
            log = (tmp_path / "jobs" / job.id / "attempts" / "1" / "rank0.log").read_text()
            assert job.energy_j is not None
            if job.state == "SUCCEEDED":
                assert "accuracy" in log
                assert 0 < job.results["metrics"]["accuracy"] <= 1
                assert list((tmp_path / "jobs" / job.id / "checkpoint").glob("[0-9]*"))


@pytest.mark.slow
def test_a_recurring_job_tries_batch_sizes_and_its_runs_are_recorded(tmp_path: Path) -> None:
    script = SWEEP.parent / "train.py"
    text = f"""
run: {sys.executable} {script} --epochs 1
recurring: {{group: nightly, batch_sizes: [32, 64, 128]}}
batch_size: 64
model: resnet50
env: {{OMP_NUM_THREADS: 1}}
"""
    with run_controller(tmp_path, "simulated:1xv100") as controller:
        batch_sizes = []
        for _ in range(3):
            job = wait_until_over(controller, submit_text(controller, text)[0].id)
            assert job.state == "SUCCEEDED"
            batch_sizes.append(job.allocation["batch"])
        assert batch_sizes[0] == 64
        assert len(set(batch_sizes)) > 1
        # The run is recorded after the job's end is known.
        wait_until(lambda: len(controller.backend._recurring._memory.runs("nightly", "v100")) == 3)


@pytest.mark.slow
def test_a_job_held_during_its_back_off_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wattline.backend.engine.job_exits._RETRY_DELAYS_S", (0.3,))
    with run_controller(tmp_path) as controller:
        job = submit_text(controller, "run: [sh, -c, 'kill -9 $$$$']")[0].id
        wait_until(lambda: controller.job(job).kill_count == 1)
        controller.hold(job)
        other = submit_text(controller, "run: sleep 0.5")[0].id
        wait_until_over(controller, other)
        assert (controller.job(job).state, controller.job(job).starts) == ("PENDING", 1)
        controller.release(job)
        wait_until(lambda: controller.job(job).starts == 2)


def test_values_of_environment_variables_are_not_shown(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        submit_text(controller, "run: 'true'\nenv: {SECRET: abc123}", held=True)
        (event,) = controller.store.events(job="1")
        assert "abc123" not in str(event.redacted().data)
        assert event.redacted().data["submission"]["spec"]["env"] == {"SECRET": "…"}
        assert (tmp_path / "state.db").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_job_that_is_held_and_then_cancelled_never_runs(tmp_path: Path) -> None:
    with run_controller(tmp_path, "simulated:1xa100") as controller:
        first = submit_text(controller, "run: sleep 0.3")[0].id
        wait_until_running(controller, first)
        job = submit_text(controller, "run: 'true'")[0].id
        controller.hold(job)
        controller.cancel(job)
        assert wait_until_over(controller, job).state == "CANCELLED"
        wait_until_over(controller, first)
        assert controller.job(job).starts == 0
        again = submit_text(controller, "run: 'true'", held=True)[0].id
        controller.release(again)
        controller.hold(again)
        controller.release(again)
        assert wait_until_over(controller, again).starts == 1


def test_read_connections_are_reused(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        for _ in range(5):
            threads = [threading.Thread(target=controller.store.jobs) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert controller.store._idle.qsize() <= 25


def test_a_team_cannot_be_called_star(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"team is '\*'"):
        read_job("run: x\nteam: '*'", "job.yaml")

from __future__ import annotations

import os
import pwd
import sys
import threading
from pathlib import Path

import pytest

from support.controllers import run_controller, submit_text, wait_until, wait_until_over, wait_until_running
from wattline.errors import ConfigError, Conflict, NotAllowed, NotFound, StoreError
from wattline.jobfile import read_job
from wattline.service.controller import Controller
from wattline.service.storage.store import Happened

SWEEP = Path(__file__).parent.parent.parent / "demo" / "sweep.py"


def test_who_comes_first_runs_first_unless_somebody_has_priority(tmp_path: Path) -> None:
    with run_controller(tmp_path, "simulated:1xa100") as controller:
        first = submit_text(controller, "run: sleep 0.3")[0].id
        wait_until_running(controller, first)
        low = submit_text(controller, "run: 'true'")[0].id
        high = submit_text(controller, "run: 'true'\npriority: 5")[0].id
        assert wait_until_over(controller, low).start_s > wait_until_over(controller, high).start_s  # type: ignore[operator]


def test_jobs_go_on_while_nobody_serves_and_are_found_again(tmp_path: Path) -> None:
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
        again.hold(held, False)
        assert wait_until_over(again, held).state == "SUCCEEDED"


def test_a_cancel_that_nobody_heard_is_done_by_the_next(tmp_path: Path) -> None:
    controller = Controller(tmp_path, gpus="simulated:2xa100")
    controller.start()
    job = submit_text(controller, "run: sleep 60")[0].id
    wait_until_running(controller, job)
    controller.store.append(Happened(controller.clock(), "cancel", job, {}))  # and then it is killed
    controller.stop()
    with run_controller(tmp_path, "simulated:2xa100") as again:
        assert wait_until_over(again, job).state == "CANCELLED"


def test_a_second_controller_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with run_controller(tmp_path), pytest.raises(ConfigError, match="serves it already"):
        Controller(tmp_path, gpus="simulated:1xa100")


def test_without_gpus_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no GPU can be used on this machine") as caught:
        Controller(tmp_path)
    assert "simulated:4xa100" in caught.value.hint
    with run_controller(tmp_path):
        pass  # and nothing was left behind


def test_one_key_submits_once_whoever_asks_at_the_same_time(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        found: list[str] = []
        threads = [
            threading.Thread(
                target=lambda: found.append(submit_text(controller, "run: 'true'", key="k")[0].id)
            )
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8
        assert set(found) == {"1"}
        with pytest.raises(Conflict):
            submit_text(controller, "run: 'false'", key="k")


def test_a_full_disk_loses_nothing_and_is_got_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_policy_that_breaks_is_told_and_does_not_end_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wattline.service.controller._RETRY_S", 0.05)
    with run_controller(tmp_path) as controller:
        good = controller.policy

        def broken(*_: object) -> None:
            raise ValueError("policies may be wrong")

        controller.policy = broken  # type: ignore[assignment]
        controller.local.leave()
        job = submit_text(controller, "run: 'true'")[0].id
        wait_until(lambda: "policies may be wrong" in controller.problem)
        controller.policy = good
        assert wait_until_over(controller, job).state == "SUCCEEDED"


def test_a_table_that_is_mostly_past_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wattline.service.controller._SPARE_ROWS", 10)
    with run_controller(tmp_path) as controller:
        for _ in range(3):
            for job in submit_text(controller, "run: 'true ${n}'\nmatrix: {n: 1..6}"):
                assert wait_until_over(controller, job.id).starts == 1
        wait_until(lambda: controller.epoch > 1)
        assert len(controller.local.jobs) < 18


def test_users_that_do_not_exist_or_cannot_be_are_refused(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        job = read_job("run: id", "job.yaml")
        with pytest.raises(NotAllowed, match="user 'no-such-user' does not exist"):
            controller.submit(job, "no-such-user")
        with pytest.raises(NotFound, match="there is no job '99'"):
            controller.job("99")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs as others")
def test_jobs_run_as_who_submitted_them(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:3]:
        parent.chmod(0o755)
    with run_controller(tmp_path / "service") as controller:
        job = controller.submit(read_job("run: id -un", "job.yaml"), "nobody", "/")[0]
        assert wait_until_over(controller, job.id).state == "SUCCEEDED"
        log = tmp_path / "service" / "jobs" / job.id / "attempts" / "1" / "rank0.log"
        assert log.read_text().strip() == pwd.getpwnam("nobody").pw_name
        assert log.stat().st_uid == 0


def test_members_of_a_sweep_have_one_key_only_where_their_script_is_fusible(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        python = sys.executable
        text = f"run: {python} {SWEEP} lr=${{lr}} seed=0\nmatrix: {{lr: [1, 2, 3, 4]}}\nfuse: 2"
        keys = [job.fuse for job in submit_text(controller, text, held=True)]
        assert keys[0] == keys[1] != keys[2] == keys[3]
        assert all(key.endswith("!") for key in keys)
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
        assert controller.job(jobs[0]).given["with"] == jobs[1:]
        wait_until(lambda: (controller.local.view(jobs[2]).get("fraction") or 0) > 0)
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
                assert 0 < job.told["metrics"]["accuracy"] <= 1
                assert list((tmp_path / "jobs" / job.id / "checkpoint").glob("[0-9]*"))


@pytest.mark.slow
def test_a_recurring_job_is_given_batch_sizes_and_what_came_of_them_is_remembered(tmp_path: Path) -> None:
    script = SWEEP.parent / "train.py"
    text = f"""
run: {sys.executable} {script} --epochs 1
recurring: {{group: nightly, batch_sizes: [32, 64, 128]}}
batch_size: 64
model: resnet50
env: {{OMP_NUM_THREADS: 1}}
"""
    with run_controller(tmp_path, "simulated:1xv100") as controller:
        given = []
        for _ in range(3):
            job = wait_until_over(controller, submit_text(controller, text)[0].id)
            assert job.state == "SUCCEEDED"
            given.append(job.given["batch"])
        assert given[0] == 64
        assert len(set(given)) > 1
        assert len(controller.local._recurrences._memory.runs("nightly", "v100")) == 3


def test_who_is_held_in_its_back_off_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wattline.backend.engine.local.backend._BACK_OFF_S", (0.3,))
    with run_controller(tmp_path) as controller:
        job = submit_text(controller, "run: [sh, -c, 'kill -9 $$$$']")[0].id
        wait_until(lambda: controller.job(job).kills == 1)
        controller.hold(job, True)
        other = submit_text(controller, "run: sleep 0.5")[0].id
        wait_until_over(controller, other)
        assert (controller.job(job).state, controller.job(job).starts) == ("PENDING", 1)
        controller.hold(job, False)
        wait_until(lambda: controller.job(job).starts == 2)


def test_environments_are_nobody_elses_business(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        submit_text(controller, "run: 'true'\nenv: {SECRET: abc123}", held=True)
        (event,) = controller.store.events(job="1")
        assert "abc123" not in str(event.public().data)
        assert event.public().data["asked"]["work"]["env"] == {"SECRET": "…"}
        assert (tmp_path / "state.db").stat().st_mode & 0o077 == 0


def test_a_job_that_is_held_and_then_cancelled_never_runs(tmp_path: Path) -> None:
    with run_controller(tmp_path, "simulated:1xa100") as controller:
        first = submit_text(controller, "run: sleep 0.3")[0].id
        wait_until_running(controller, first)
        job = submit_text(controller, "run: 'true'")[0].id
        controller.hold(job, True)
        controller.cancel(job)
        assert wait_until_over(controller, job).state == "CANCELLED"
        wait_until_over(controller, first)
        assert controller.job(job).starts == 0
        again = submit_text(controller, "run: 'true'", held=True)[0].id
        for held in (False, True, False):
            controller.hold(again, held)
        assert wait_until_over(controller, again).starts == 1


def test_readers_do_not_pile_up(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        for _ in range(5):
            threads = [threading.Thread(target=controller.store.jobs) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert controller.store._idle.qsize() <= 25


def test_a_team_cannot_be_called_everybody(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"team is '\*'"):
        read_job("run: x\nteam: '*'", "job.yaml")

from __future__ import annotations

from pathlib import Path

import pytest

from support.controllers import (
    open_client,
    run_controller,
    submit_text,
    wait_until,
    wait_until_over,
    wait_until_running,
)
from wattline.errors import Conflict, NotFound, StoreError
from wattline.service.controller import Controller
from wattline.service.explain import describe_reason, explain
from wattline.service.storage.events import NewEvent
from wattline.service.storage.selection import JobSelection

ENDED = {"message": "", "completed_fraction": 0.0, "service_s": 0.0, "energy_j": 0.0, "energy_method": ""}


def wait_for_reason(controller: Controller, job: str, text: str) -> None:
    wait_until(lambda: describe_reason(controller.view(), controller.job(job)) == text, text)


@pytest.mark.slow
def test_a_job_starts_after_the_success_of_another(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        first = submit_text(controller, "run: sleep 60")[0].id
        second = submit_text(controller, f"run: 'true'\ndepends_on: [{first}]")[0].id
        third = submit_text(controller, f"run: 'true'\ndepends_on: {{job: {second}, when: success}}")[0].id
        any_end = submit_text(controller, f"run: 'true'\ndepends_on: {first}:end")[0].id
        wait_until_running(controller, first)
        wait_for_reason(controller, second, f"Waits for job {first} to succeed.")
        wait_for_reason(controller, any_end, f"Waits for job {first} to end.")
        assert explain(controller.view(), controller.job(second)).code == "dependency"
        assert controller.job(any_end).state == "PENDING"
        controller.cancel(first)
        assert wait_until_over(controller, any_end).state == "SUCCEEDED"
        ended = wait_until_over(controller, second)
        assert ended.state == "CANCELLED"
        assert ended.message == f"It depends on the success of job {first}, which is CANCELLED."
        assert wait_until_over(controller, third).message == (
            f"It depends on the success of job {second}, which is CANCELLED."
        )
        assert ended.starts == 0


def test_dependencies_name_sweeps_and_jobs_by_name(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        flag = tmp_path / "go"
        script = f"while [ ! -e {flag} ]; do sleep 0.02; done"
        sweep = submit_text(
            controller, f"run: [sh, -c, '{script}', x, '${{n}}']\nname: part${{n}}\nmatrix: {{n: 1..3}}"
        )
        after = submit_text(controller, f"run: 'true'\nname: after\ndepends_on: 'sweep:{sweep[0].id}'")[0].id
        last = submit_text(controller, "run: 'true'\ndepends_on: [after, part2]")[0].id
        assert controller.job(last).depends_on == [
            {"job": after, "when": "success"},
            {"job": sweep[1].id, "when": "success"},
        ]
        wait_for_reason(controller, after, f"Waits for sweep {sweep[0].id} to succeed.")
        flag.touch()
        assert wait_until_over(controller, last).state == "SUCCEEDED"
        rows = [controller.job(id) for id in (sweep[0].id, sweep[2].id, after, last)]
        assert rows[2].start_s >= max(rows[0].end_s, rows[1].end_s)  # type: ignore[operator, type-var]
        assert rows[3].start_s >= rows[2].end_s  # type: ignore[operator]


@pytest.mark.parametrize("text", ["99", "sweep:99", "nonsense", "{job: 99}", "{sweep: 99, when: end}"])
def test_an_unknown_dependency_is_refused_with_its_value(tmp_path: Path, text: str) -> None:
    with run_controller(tmp_path) as controller:
        with pytest.raises(NotFound, match=r"depends_on is .*(99|nonsense)"):
            submit_text(controller, f"run: 'true'\ndepends_on: {text}")
        assert controller.store.jobs() == []


@pytest.mark.slow
def test_a_dependency_that_has_failed_already_is_refused(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        failed = submit_text(controller, "run: 'false'")[0].id
        wait_until_over(controller, failed)
        with pytest.raises(
            Conflict, match=f"job {failed} is FAILED, so this job could never start"
        ) as caught:
            submit_text(controller, f"run: 'true'\ndepends_on: {failed}")
        assert "when: end" in caught.value.hint
        after = submit_text(controller, f"run: 'true'\ndepends_on: {failed}:end")[0].id
        assert wait_until_over(controller, after).state == "SUCCEEDED"


@pytest.mark.slow
def test_at_most_max_parallel_jobs_of_a_sweep_run_at_once(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        jobs = submit_text(controller, "run: sleep 0.${n}\nmatrix: {n: 1..7}\nmax_parallel: 2")
        wait_for_reason(controller, jobs[6].id, "Its sweep runs at most 2 at once.")
        wait_until(lambda: not controller.store.has_live_jobs())
        spans = [(row.start_s, row.end_s) for row in controller.store.jobs()]
        for start_s, _ in spans:
            assert sum(a <= start_s < b for a, b in spans) <= 2  # type: ignore[operator]
        assert {row.state for row in controller.store.jobs()} == {"SUCCEEDED"}


@pytest.mark.slow
def test_the_limit_holds_under_holds_releases_and_priorities(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        text = "run: sleep 60${n}\nmatrix: {n: 1..5}\nmax_parallel: 2"
        one, two, three, four, five = (job.id for job in submit_text(controller, text, held=True))
        controller.actions.change_all("release", JobSelection(all=True))
        wait_until_running(controller, two)
        assert controller.store.count_admitted({one}) == {one: 2}
        controller.hold(three)
        controller.cancel(one)
        wait_until_running(controller, four)
        controller.release(three)
        wait_for_reason(controller, three, "Its sweep runs at most 2 at once.")
        controller.prioritise(five, 9.0)
        controller.cancel(two)
        wait_until_running(controller, five)
        controller.cancel(three)
        assert wait_until_over(controller, three).state == "CANCELLED"
        assert controller.store.count_admitted({one}) == {one: 2}


def test_withheld_jobs_survive_a_restart(tmp_path: Path) -> None:
    controller = Controller(tmp_path, gpus="simulated:4xa100")
    controller.start()
    first = submit_text(controller, "run: sleep 60")[0].id
    wait_until_running(controller, first)
    after = submit_text(controller, f"run: 'true'\ndepends_on: {first}:end")[0].id
    never = submit_text(controller, f"run: 'true'\ndepends_on: {first}")[0].id
    sweep = submit_text(controller, "run: sleep 60${n}\nmatrix: {n: 1..3}\nmax_parallel: 1")
    wait_until_running(controller, sweep[0].id)
    controller.stop()
    with run_controller(tmp_path) as again:
        wait_for_reason(again, sweep[1].id, "Its sweep runs at most 1 at once.")
        assert again.job(after).state == "PENDING"
        again.cancel(first)
        assert wait_until_over(again, after).state == "SUCCEEDED"
        assert wait_until_over(again, never).state == "CANCELLED"
        again.cancel(sweep[0].id)
        wait_until_running(again, sweep[1].id)
        assert again.job(sweep[2].id).withheld


def test_an_end_that_was_stored_before_a_crash_is_noticed(tmp_path: Path) -> None:
    controller = Controller(tmp_path, gpus="simulated:4xa100")  # its threads do not run
    first = submit_text(controller, "run: sleep 60", held=True)[0].id
    after = submit_text(controller, f"run: 'true'\ndepends_on: {first}")[0].id
    controller.store.append(NewEvent(controller.clock(), "ended", first, {"state": "SUCCEEDED", **ENDED}))
    controller.stop()
    with run_controller(tmp_path) as again:
        assert wait_until_over(again, after).state == "SUCCEEDED"


def test_a_disk_that_is_full_delays_admission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wattline.service.admission._RETRY_S", 0.05)
    with run_controller(tmp_path) as controller:
        first = submit_text(controller, "run: 'true'", held=True)[0].id
        after = submit_text(controller, f"run: 'true'\ndepends_on: {first}:end")[0].id
        write, failures = controller.store.append, list[int]()

        def fail_first(*events: NewEvent) -> int:
            if events[0].kind == "admitted" and len(failures) < 3:
                failures.append(1)
                raise StoreError("disk is full")
            return write(*events)

        monkeypatch.setattr(controller.store, "append", fail_first)
        controller.cancel(first)
        assert wait_until_over(controller, after).state == "SUCCEEDED"
        assert len(failures) == 3


def test_the_values_of_the_matrix_are_stored_for_every_job(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller, open_client(controller) as client:
        text = "run: true ${lr} ${seed}\nmatrix: {lr: [1e-3, .inf], seed: 0..1}\nmax_parallel: 1"
        jobs = submit_text(controller, text, held=True)
        values = [client.get(f"/api/v1/jobs/{job.id}").json() for job in jobs]
        assert [one["matrix"] for one in values][:2] == [{"lr": 0.001, "seed": 0}, {"lr": 0.001, "seed": 1}]
        assert values[3]["matrix"]["seed"] == 1
        assert (values[0]["max_parallel"], values[0]["depends_on"]) == (1, [])
        controller.store.rebuild()
        assert [job.matrix for job in controller.store.jobs()] == [one["matrix"] for one in values]

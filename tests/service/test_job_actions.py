from __future__ import annotations

from pathlib import Path

import pytest

from support.controllers import open_client, run_controller, submit_text, wait_until, wait_until_running
from wattline.errors import Conflict, NotFound, StoreError
from wattline.service.controller import Controller
from wattline.service.storage.selection import JobSelection

SWEEP = "run: sleep 60${n}\nmatrix: {n: 1..%d}\nresources: {gpus: 4}\nname: lr${n}"


def has_no_live_jobs(controller: Controller) -> bool:
    return not controller.store.has_live_jobs()


@pytest.mark.slow
def test_a_sweep_is_cancelled_by_one_request_in_one_transaction(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller, open_client(controller) as client:
        first = submit_text(controller, SWEEP % 300)[0].id
        other = submit_text(controller, "run: sleep 60")[0].id
        wait_until_running(controller, first)
        batches: list[int] = []
        write = controller.store._execute
        controller.store._execute = lambda events, statements: (  # type: ignore[method-assign]
            batches.append(len(list(events))),
            write(events, statements),
        )[1]
        request = {"action": "cancel", "select": {"sweep": first}}
        answer = client.post("/api/v1/jobs/actions", json=request).json()
        assert (answer["matched"], answer["changed"], answer["refused"]) == (300, 300, 0)
        assert len(answer["ids"]) == 300
        wait_until(lambda: controller.store.count_by_state().get("CANCELLED") == 300)
        assert sorted(batches)[-2:] == [299, 300]  # the requests, and the ends of those that waited
        assert controller.job(other).state in ("PENDING", "RUNNING")
        again = client.post("/api/v1/jobs/actions", json=request).json()
        assert (again["matched"], again["changed"]) == (0, 0)  # they have ended


@pytest.mark.slow
def test_filters_select_jobs_and_refusals_are_counted_by_reason(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller, open_client(controller) as client:

        def act(action: str, dry_run: bool = False, **more: object) -> dict[str, object]:
            priority = {"priority": more.pop("priority")} if "priority" in more else {}
            request = {"action": action, "select": more, "dry_run": dry_run, **priority}
            response = client.post("/api/v1/jobs/actions", json=request)
            assert response.status_code == 200, response.text
            return response.json()  # type: ignore[no-any-return]

        sweep = [job.id for job in submit_text(controller, SWEEP % 4)]
        vision = submit_text(controller, "run: sleep 60\nteam: vision\nresources: {gpus: 4}")[0].id
        wait_until_running(controller, sweep[0])
        assert act("hold", dry_run=True, sweep=sweep[0])["ids"] == sweep[1:]
        assert not controller.job(sweep[1]).held
        held = act("hold", sweep=sweep[0])
        assert (held["changed"], held["refused"], held["reasons"]) == (3, 1, {"RUNNING": 1})
        assert act("hold", sweep=sweep[0])["unchanged"] == 3
        assert act("release", name="lr[34]")["ids"] == sweep[2:]
        assert act("priority", priority=7, team="vision")["ids"] == [vision]
        assert controller.job(vision).priority == 7
        assert act("priority", priority=7, all=True)["changed"] == 4
        assert act("hold", jobs=[f"{sweep[1]}..{sweep[3]}"], state=["PENDING"])["changed"] == 2
        named = act("cancel", jobs=[sweep[3], "999", sweep[1]])
        assert (named["changed"], named["reasons"]) == (2, {"not_found": 1})
        wait_until(lambda: controller.job(sweep[3]).state == "CANCELLED")
        assert act("cancel", jobs=[sweep[3]])["unchanged"] == 1  # repeating it is no error
        assert act("cancel", jobs=["1.."])["changed"] == 3
        wait_until(lambda: has_no_live_jobs(controller))
        assert act("cancel", all=True)["matched"] == 0
        assert act("hold", jobs=[sweep[3]])["reasons"] == {"CANCELLED": 1}


def test_a_user_changes_only_its_own_jobs(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        own = submit_text(controller, "run: sleep 60", held=True)[0].id
        store = controller.store
        with open_client(controller, "user", "daemon") as client:
            path = "/api/v1/jobs/actions"
            everything = client.post(path, json={"action": "cancel", "select": {"all": True}}).json()
            assert everything["matched"] == 0
            named = client.post(path, json={"action": "cancel", "select": {"jobs": [own]}}).json()
            assert (named["changed"], named["reasons"]) == (0, {"not_owner": 1})
            assert named["errors"][0]["code"] == "not_allowed"
        with open_client(controller, "viewer") as client:
            assert client.post(path, json={"action": "cancel", "select": {"all": True}}).status_code == 403
        assert not store.job(own).cancelled  # type: ignore[union-attr]


def test_an_empty_selection_and_an_unknown_sweep_are_refused(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller, open_client(controller) as client:
        with pytest.raises(Conflict, match="no jobs are selected"):
            controller.actions.change_all("cancel", JobSelection())
        with pytest.raises(NotFound, match="there is no sweep '77'"):
            controller.actions.change_all("cancel", JobSelection(sweep="77"))
        path = "/api/v1/jobs/actions"
        for request in ({"action": "priority", "select": {"all": True}}, {"action": "hold", "select": {}}):
            assert client.post(path, json=request).status_code == 409


def test_a_request_that_fails_changes_nothing_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_controller(tmp_path) as controller:
        submit_text(controller, SWEEP % 5, held=True)
        write = controller.store.append
        monkeypatch.setattr(controller.store, "append", lambda *events: fail())

        def fail() -> int:
            raise StoreError("disk is full")

        with pytest.raises(StoreError):
            controller.actions.change_all("cancel", JobSelection(all=True))
        assert not any(job.cancelled for job in controller.store.jobs())
        monkeypatch.setattr(controller.store, "append", write)
        assert len(controller.actions.change_all("cancel", JobSelection(all=True)).changed) == 5
        wait_until(lambda: has_no_live_jobs(controller))


def test_a_bulk_cancellation_that_a_crash_interrupts_is_finished(tmp_path: Path) -> None:
    controller = Controller(tmp_path, gpus="simulated:4xa100")  # its loop does not run
    submit_text(controller, SWEEP % 20)
    controller.actions.change_all("cancel", JobSelection(all=True))
    assert controller.store.count_by_state() == {"PENDING": 20}
    controller.stop()
    with run_controller(tmp_path) as again:
        wait_until(lambda: again.store.count_by_state() == {"CANCELLED": 20})

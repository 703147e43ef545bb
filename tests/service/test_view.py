from __future__ import annotations

from pathlib import Path

from support.controllers import run_controller, submit_text, wait_until, wait_until_over, wait_until_running


def test_a_view_shows_the_queue_of_the_last_decision(tmp_path: Path) -> None:
    with run_controller(tmp_path, "simulated:1xa100") as controller:
        assert controller.view().queue_position("1") is None
        first = submit_text(controller, "run: sleep 60")[0].id
        wait_until_running(controller, first)
        second = submit_text(controller, "run: 'true'")[0].id
        wait_until(lambda: controller.view().queue_position(second) == 1)
        assert controller.view().queue_position(first) == 0


def test_later_decisions_do_not_change_a_view(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        job = submit_text(controller, "run: sleep 0.5")[0].id
        wait_until_running(controller, job)
        wait_until(lambda: controller.view().queue_position(job) is not None)
        view = controller.view()
        wait_until_over(controller, job)
        wait_until(lambda: controller.view().queue_position(job) is None)
        assert view.queue_position(job) == 0
        assert view.step is not None
        assert len(view.step.state.queue) == 1
        controller.set_budgets(["800W"])
        assert (view.budgets, controller.view().budgets) == ((), ("800W",))

"""Plans: the energy of all leases of a job, and jobs that no budget ever allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.controllers import run_controller, submit_text, wait_until, wait_until_running
from wattline.jobfile import read_job
from wattline.service.controller import Controller
from wattline.service.http.schemas import PlanResponse
from wattline.service.planning import plan_job

JOB = "run: 'true'\nmodel: resnet50\nresources: {time: 10m}"


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    with run_controller(tmp_path_factory.mktemp("service")) as one:
        yield one


def plan(controller: Controller, text: str = JOB) -> PlanResponse:
    return plan_job(controller.view(), read_job(text, "job.yaml"), "", "/")


def set_budgets(controller: Controller, *budgets: str) -> None:
    """Set budgets and wait until the loop decides under them."""
    epoch = controller.view().epoch
    controller.set_budgets(budgets)
    wait_until(lambda: controller.view().epoch > epoch)


def test_the_energy_is_that_of_all_leases(tmp_path: Path) -> None:
    with run_controller(tmp_path, "simulated:1xa100", policy="las:quantum=60s") as controller:
        alone = plan(controller).expected
        assert alone is not None
        assert alone.energy_j is not None
        assert alone.energy_method == "predicted from measurements of resnet50 on a100"
        (other,) = submit_text(controller, "run: sleep 600\nmodel: resnet50\nresources: {time: 10m}")
        wait_until_running(controller, other.id)
        wait_until(lambda: controller.view().queue_position(other.id) is not None)  # follows the store
        shared = plan(controller).expected  # they take turns, so each has many leases
        assert shared is not None
        assert shared.ends_s is not None
        assert alone.ends_s is not None
        assert shared.ends_s > alone.ends_s + 300
        assert shared.energy_j == pytest.approx(alone.energy_j, rel=0.05)


def test_a_job_that_no_budget_allows_is_infeasible_with_the_reason(controller: Controller) -> None:
    set_budgets(controller, "50W")
    found = plan(controller)
    assert not found.feasible
    assert "The energy budget never allows it" in found.reason
    assert found.expected is not None
    assert found.expected.never_starts
    set_budgets(controller)
    assert plan(controller).feasible


def test_a_budget_that_is_used_up_never_lets_a_job_start(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller:
        set_budgets(controller, "1J")
        found = plan(controller)
        assert not found.feasible
        assert "budget" in found.reason

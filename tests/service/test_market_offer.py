"""Explanations and plans by the prices of the market, in a running service."""

from __future__ import annotations

from pathlib import Path

from support.controllers import run_controller, submit_text, wait_until, wait_until_running
from wattline.jobfile import read_job
from wattline.service.explain import explain
from wattline.service.planning import plan_job

JOB = "run: sleep 600\nmodel: resnet50\nresources: {time: 10m}\npreemptible: false"


def test_a_job_that_waits_and_one_that_is_planned_see_their_price(tmp_path: Path) -> None:
    with run_controller(tmp_path, "simulated:1xa100", policy="market") as controller:
        (first,) = submit_text(controller, JOB)
        wait_until_running(controller, first.id)
        (second,) = submit_text(controller, JOB)
        wait_until(lambda: controller.view().queue_position(second.id) is not None)
        waits = explain(controller.view(), controller.job(second.id))
        assert waits.market is not None
        assert waits.market.gpu_h["a100"] > 0
        assert f"job {second.id} waits: a GPU-hour costs" in waits.market.text
        assert any("At the market's prices" in fact for fact in waits.evidence)
        runs = explain(controller.view(), controller.job(first.id))
        assert runs.market is not None
        assert runs.market.missing_per_gpu_h == 0
        planned = plan_job(controller.view(), read_job(JOB, "job.yaml"), "", "/")
        assert planned.market is not None
        assert planned.market.offer_per_gpu_h is not None
        assert any("job new waits" in note for note in planned.notes)


def test_a_policy_without_prices_explains_none(tmp_path: Path) -> None:
    with run_controller(tmp_path, "simulated:1xa100", policy="fifo") as controller:
        planned = plan_job(controller.view(), read_job(JOB, "job.yaml"), "", "/")
        assert planned.market is None
        assert not any("market" in note for note in planned.notes)

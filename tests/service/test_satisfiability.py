"""Jobs that the cluster can never run are refused, or kept with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from support.controllers import run_controller, submit_text, wait_until, wait_until_over
from wattline.cluster import join_nodes, nodes
from wattline.errors import Unsatisfiable
from wattline.jobfile import read_job
from wattline.service.controller import Controller
from wattline.service.explain import describe_reason
from wattline.service.satisfiability import find_unmet_requests
from wattline.service.submission import build_submissions

IMPOSSIBLE: list[tuple[dict[str, Any], str, str, str]] = [
    ({"resources": {"gpus": 99}}, "resources.gpus", "is 99", "this cluster has 4 GPUs: 4 a100"),
    ({"resources": {"gpus": "3..5", "gpu_type": "a100"}}, "resources.gpus", "is '3..5'", "accepts a100"),
    ({"resources": {"gpus": "7.."}, "elastic": True}, "resources.gpus", "is '7..'", "4 GPUs"),
    ({"resources": {"gpu_type": "h100"}}, "resources.gpu_type", "is 'h100'", "4 a100"),
    ({"resources": {"gpu_type": ["tpu", "A10O"]}}, "resources.gpu_type", "tpu or A10O", "4 a100"),
    ({"resources": {"memory_per_gpu": "9999T"}}, "resources.memory_per_gpu", "is '9999T'", "GiB of memory"),
    ({"resources": {"cpus_per_gpu": 9999}}, "resources.cpus_per_gpu", "is 9999", "CPU cores"),
    ({"energy": {"power": "10W"}}, "energy.power", "is '10W'", "100 W to 400 W on a100"),
    ({"deadline": "2020-01-01T00:00Z"}, "deadline", "is '2020-01-01T00:00Z'", "that has passed"),
    ({"model": "resnet5O"}, "model", "is 'resnet5O'", "have no such workload"),
]


@pytest.mark.parametrize(("fields", "field", "value", "limit"), IMPOSSIBLE)
def test_an_impossible_job_is_refused_with_field_value_and_limit(
    client: TestClient, controller: Controller, fields: dict[str, Any], field: str, value: str, limit: str
) -> None:
    before = len(controller.store.jobs(limit=1000))
    response = client.post("/api/v1/jobs", json={"run": "true ${n}", "matrix": {"n": "1..2"}, **fields})
    problem = response.json()
    assert response.status_code == 422
    assert (problem["type"], problem["field"]) == ("urn:wattline:unsatisfiable", field)
    assert problem["detail"].startswith(f"{field} ")
    assert value in problem["detail"]
    assert limit in problem["detail"]
    assert len(controller.store.jobs(limit=1000)) == before
    plan = client.post("/api/v1/plan", json={"run": "true", **fields}).json()
    assert (plan["feasible"], plan["field"], plan["reason"]) == (False, field, problem["detail"])


@pytest.mark.parametrize(
    ("fields", "nearest"),
    [({"resources": {"gpu_type": "a10O"}}, "a100"), ({"model": "resnet5O"}, "resnet50")],
)
def test_the_hint_names_the_nearest(client: TestClient, fields: dict[str, Any], nearest: str) -> None:
    hint = client.post("/api/v1/jobs", json={"run": "true", **fields}).json()["hint"]
    assert hint.startswith(f"did you mean {nearest}?")


@pytest.mark.parametrize(
    "fields",
    [
        {"resources": {"gpus": 4}},
        {"resources": {"gpus": 2, "gpu_type": ["A100", "h100"]}},
        {"energy": {"power": "5kW"}},
        {"deadline": "2099-01-01T00:00Z"},
        {"model": "ResNet-50"},
        {"resources": {"memory_per_gpu": "100M", "cpus_per_gpu": 1}},
    ],
)
def test_a_job_that_can_run_is_accepted(client: TestClient, fields: dict[str, Any]) -> None:
    response = client.post("/api/v1/jobs?held=true", json={"run": "true", **fields})
    assert response.status_code == 201, response.text
    client.post(f"/api/v1/jobs/{response.json()['jobs'][0]['id']}/cancel")


def test_a_job_runs_on_gpus_of_one_kind(controller: Controller) -> None:
    mixed = join_nodes(nodes("a100", gpus=4), nodes("v100", gpus=2))
    view = replace(controller.view(), nodes=mixed, cap_ranges_w=((100.0, 400.0), (150.0, 300.0)))

    def find(text: str) -> list[str]:
        (one,) = build_submissions(read_job(f"run: 'true'\n{text}", "job"), "", "/")
        return [str(unmet) for unmet in find_unmet_requests(view, one.spec, one.columns)]

    assert find("resources: {gpus: 4}") == find("energy: {power: 120W}") == []
    (gpus,) = find("resources: {gpus: 5}")
    assert gpus.endswith("this cluster has 6 GPUs: 4 a100, 2 v100; a job runs on GPUs of one kind")
    (gpus,) = find("resources: {gpus: 3, gpu_type: v100}")
    assert gpus.endswith("the job accepts v100")
    (power,) = find("resources: {gpu_type: v100}\nenergy: {power: 120W}")
    assert power.endswith("can be set from 150 W to 300 W on v100")


def test_an_elastic_job_requests_no_more_than_there_is(controller: Controller) -> None:
    (job,) = submit_text(controller, "run: 'true'\nelastic: true\nresources: {gpus: 1..99}")
    assert job.submission["columns"]["gpus"] == 4
    assert wait_until_over(controller, job.id).state == "SUCCEEDED"


@pytest.mark.parametrize("text", ["{gpus: 99}", "{gpu_type: h100}", "{memory_per_gpu: 9999T}"])
def test_a_job_that_is_kept_waits_with_what_is_missing(controller: Controller, text: str) -> None:
    job_text = f"run: 'true'\nresources: {text}"
    with pytest.raises(Unsatisfiable):
        submit_text(controller, job_text)
    (job,) = submit_text(controller, job_text, allow_unsatisfiable=True)
    field = f"resources.{text[1:].partition(':')[0]}"
    wait_until(lambda: field in describe_reason(controller.view(), controller.job(job.id)))
    assert "this cluster has" in describe_reason(controller.view(), controller.job(job.id))
    controller.cancel(job.id)
    assert wait_until_over(controller, job.id).state == "CANCELLED"


def test_a_repeated_request_returns_its_jobs_though_the_deadline_has_passed(tmp_path: Path) -> None:
    now_s = [1_700_000_000.0]
    with run_controller(tmp_path, clock=lambda: now_s[0]) as controller:
        text = "run: 'true'\ndeadline: 2023-11-14T22:30Z"
        (first,) = submit_text(controller, text, key="k", held=True)
        now_s[0] += 86400
        (again,) = submit_text(controller, text, key="k", held=True)
        assert again.id == first.id
        with pytest.raises(Unsatisfiable):
            submit_text(controller, text, key="another")

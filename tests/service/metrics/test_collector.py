"""Metrics scraped from a running service and read by prometheus_client's own parser."""

from __future__ import annotations

import json
import re
import sqlite3
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from support.controllers import open_client, run_controller, submit_text, wait_until, wait_until_over
from support.controllers import wait_until_running as wait_running
from support.http_service import serve_http
from wattline.service.controller import Controller
from wattline.service.http.app import create_app
from wattline.service.http.metrics_routes import read_grafana_dashboard
from wattline.service.metric_settings import MetricSettings
from wattline.service.metrics import collector
from wattline.service.metrics.labels import MOST_TEAMS, OTHER_TEAMS, clean_label, merge_teams
from wattline.service.settings import ServiceSettings

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]
EVIL = 'a"} 1 fake_metric{x="\\'


def parse(text: str) -> Samples:
    """Return all samples: by name, then by labels."""
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in samples.setdefault(sample.name, {}), f"{sample.name}{labels} stands twice"
            samples[sample.name][labels] = sample.value
    return samples


def scrape(client: TestClient) -> Samples:
    answer = client.get("/metrics", headers={"Authorization": ""})
    assert answer.status_code == 200, answer.text
    return parse(answer.text)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Controller, Samples]]:
    """Run a service with ended, running, waiting, held and late jobs, and scrape it over HTTP."""
    folder = tmp_path_factory.mktemp("service")
    with serve_http(folder) as controller:
        controller.set_budgets(["1500W", "vision:200kWh/day"])
        (ended,) = submit_text(controller, "run: [sleep, '0.3']\nteam: vision")
        wait_until_over(controller, ended.id)
        (running,) = submit_text(controller, "run: sleep 60\nteam: vision\ndeadline: 2031-01-01T00:00+00:00")
        wait_running(controller, running.id)
        submit_text(controller, f"run: sleep 60\nteam: {json.dumps(EVIL)}", held=True)
        submit_text(controller, "run: sleep 60\nresources: {gpus: 4}")
        wait_until(lambda: controller.store.meter_totals().get("vision", 0.0) > 0.0)
        wait_until(lambda: controller.store.first_power_s(0, 1e12))
        url = (folder / "url").read_text().strip()
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = answer.read().decode()
        yield controller, parse(text)


def test_the_names_of_the_conventions_are_there(served: tuple[Controller, Samples]) -> None:
    _, samples = served
    for name in (
        "wattline_job_energy_joules_total",
        "wattline_cluster_power_watts",
        "wattline_cluster_power_budget_watts",
        "wattline_queue_pending_jobs",
        "wattline_job_wait_seconds_bucket",
        "wattline_job_deadline_slack_seconds",
        "wattline_budget_used_ratio",
    ):
        assert samples.get(name), name
    labels = {tuple(name for name, _ in key) for key in samples["wattline_job_energy_joules_total"]}
    assert labels == {("backend", "job", "team")}


def test_each_value_is_that_of_the_database(served: tuple[Controller, Samples]) -> None:
    controller, samples = served
    with sqlite3.connect(controller.folder / "state.db") as database:
        ended_j, method = database.execute(
            "SELECT energy_j, energy_method FROM job WHERE number = 1"
        ).fetchone()
        waits = database.execute(
            "SELECT count(*), sum(first_start_s - submit_s) FROM job WHERE starts"
        ).fetchone()
    assert method == "simulated"
    key = (("backend", "local"), ("job", "1"), ("team", "vision"))
    assert samples["wattline_job_energy_joules_total"][key] == pytest.approx(ended_j)
    team_j = samples["wattline_team_energy_joules_total"][(("team", "vision"),)]
    of_jobs = [value for labels, value in samples["wattline_job_energy_joules_total"].items()]
    assert team_j == pytest.approx(sum(of_jobs), rel=0.2)  # the running job is read twice
    assert samples["wattline_job_wait_seconds_count"][()] == waits[0]
    assert samples["wattline_job_wait_seconds_sum"][()] == pytest.approx(waits[1])
    assert samples["wattline_cluster_power_budget_watts"][()] == 1500.0
    pending = {
        dict(labels)["reason"]: value for labels, value in samples["wattline_queue_pending_jobs"].items()
    }
    assert pending["held"] == 1.0
    assert sum(pending.values()) == samples["wattline_jobs"][(("state", "PENDING"),)] == 2.0


def test_every_query_of_the_grafana_dashboard_names_metrics_that_exist(
    served: tuple[Controller, Samples],
) -> None:
    _, samples = served
    dashboard = json.loads(json.dumps(read_grafana_dashboard()))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) >= 12
    for query in queries:
        names = re.findall(r"wattline_\w+", query)
        assert names, query
        for name in names:
            assert samples.get(name), f"{name} of {query!r} is not exported"
        labels = {label for name in names for key in samples[name] for label, _ in key}
        for used in re.findall(r"\{(\w+)=", query) + re.findall(r"by \((\w+)\)", query):
            assert used in labels, f"{used} of {query!r} is no label"
    used_names = {word for panel in dashboard["panels"] for t in panel["targets"]
                  for word in re.findall(r"\{\{(\w+)\}\}", t["legendFormat"])}  # fmt: skip
    assert used_names <= {label for series in samples.values() for key in series for label, _ in key}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_a_team_cannot_write_metrics(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller, open_client(controller) as client:
        surrogate = client.post(
            "/api/v1/jobs",
            content='{"run": ["true"], "team": "lone \\ud800"}',
            headers={"Content-Type": "application/json"},
        )
        (job,) = submit_text(controller, f"run: 'true'\nteam: {json.dumps(EVIL)}")
        wait_until_over(controller, job.id)
        samples = scrape(client)
        assert "fake_metric" not in samples
        teams = {dict(labels)["team"] for labels in samples["wattline_team_energy_joules_total"]}
        assert clean_label(EVIL) in teams
        assert surrogate.status_code in (201, 422)


def test_a_label_is_valid_text_of_limited_length() -> None:
    assert clean_label("lone \ud800") == "lone ?"
    assert clean_label("a\nb\x00\u202ec") == "a�b��c"
    assert len(clean_label("x" * 1000)) == 128


def test_many_teams_share_a_series() -> None:
    values = {f"team{number}": 1.0 for number in range(MOST_TEAMS + 50)}
    merged = merge_teams(values)
    assert len(merged) == MOST_TEAMS + 1
    assert merged[OTHER_TEAMS] == 50.0


def test_job_series_are_limited_and_the_limit_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "MOST_JOBS", 2)
    with run_controller(tmp_path) as controller, open_client(controller) as client:
        jobs = submit_text(controller, "run: [sleep, '0.05', '${x}']\nmatrix: {x: ['0', '0.0', '0.00']}")
        for job in jobs:
            wait_until_over(controller, job.id)
        samples = scrape(client)
        assert {dict(key)["job"] for key in samples["wattline_job_energy_joules_total"]} == {"2", "3"}
        assert samples["wattline_job_series_limited"][()] == 1.0


def test_counters_go_on_when_old_jobs_are_deleted_and_begin_anew_after_a_restart(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller, open_client(controller) as client:
        (job,) = submit_text(controller, "run: [sleep, '0.2']\nteam: a")
        wait_until_over(controller, job.id)
        before = scrape(client)["wattline_team_energy_joules_total"][(("team", "a"),)]
        assert before > 0.0
        controller.store.delete(("DELETE FROM job WHERE id = '1'", ()))
        assert scrape(client)["wattline_team_energy_joules_total"][(("team", "a"),)] == before
        (running,) = submit_text(controller, "run: sleep 60\nteam: a")
        wait_running(controller, running.id)
        wait_until(lambda: (controller.live_status(running.id).get("energy_j") or 0.0) > 20.0)
        app = create_app(controller)  # as after a restart
        with TestClient(app) as fresh:
            again = scrape(fresh).get("wattline_team_energy_joules_total", {})
        assert again.get((("team", "a"),), 0.0) < 20.0


def test_metrics_need_no_token_unless_the_settings_require_one(tmp_path: Path) -> None:
    settings = ServiceSettings(metrics=MetricSettings(require_token=True))
    with (
        run_controller(tmp_path, settings=settings) as controller,
        open_client(controller, "viewer") as client,
    ):
        for path in ("/metrics", "/metrics/grafana.json"):
            assert client.get(path).status_code == 200
            assert client.get(path, headers={"Authorization": ""}).status_code == 401
            assert client.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401

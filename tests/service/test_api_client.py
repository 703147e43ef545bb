"""The typed client: a method for each operation, called against a service."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.controllers import wait_until_over
from support.http_service import serve_http
from wattline.errors import BackendError, NotFound
from wattline.service.api_client import ApiClient, _parse, connect_service
from wattline.service.controller import Controller
from wattline.service.http.app import create_app
from wattline.service.http.schemas import HealthResponse

HEALTH = {"check_health", "check_readiness"}  # for probes, without a token and outside /api/v1
MONITORING = {"show_metrics", "show_grafana_dashboard"}  # for Prometheus and Grafana, outside /api/v1
COOKIES = {"log_in", "log_out"}  # sessions of browsers; a client has its token
OTHERS = HEALTH | MONITORING | COOKIES


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    with serve_http(tmp_path_factory.mktemp("service")) as controller:
        yield controller


@pytest.fixture
def client(service: Controller, monkeypatch: pytest.MonkeyPatch) -> ApiClient:
    for name in ("WATTLINE_URL", "WATTLINE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return connect_service(None, str(service.folder))


def test_every_operation_of_the_openapi_document_has_a_method(service: Controller) -> None:
    document = create_app(service, rate=1.0).openapi()
    names = {
        operation["summary"].casefold().replace(" ", "_"): operation
        for path in document["paths"].values()
        for operation in path.values()
    }
    missing = {name for name in names if not hasattr(ApiClient, name)} - OTHERS
    assert not missing
    for name in names.keys() - OTHERS:
        parameters = set(inspect.signature(getattr(ApiClient, name)).parameters)
        expected = {
            parameter["name"].replace("-", "_")
            for parameter in names[name].get("parameters", [])
            if parameter["in"] in ("query", "path")
        } - {"follow", "raw", "since"}  # of the methods follow_…
        assert expected <= parameters, f"{name} lacks {expected - parameters}"


def test_jobs_go_through_all_their_operations(client: ApiClient, service: Controller, tmp_path: Path) -> None:
    document = {"run": ["bash", "-c", "echo hello"], "workdir": str(tmp_path), "name": "typed"}
    (held,) = client.submit_job(document, held=True).jobs
    assert held.held
    assert client.change_priority(held.id, 5).priority == 5
    assert "held" in client.explain_job(held.id).reason.casefold()
    assert client.plan_submission(document)
    assert client.release_job(held.id).id == held.id
    lines = [event.data for event in client.follow_job_log(held.id) if event.kind == "message"]
    assert lines == ["hello"]
    assert client.show_job_log(held.id) == "hello\n"
    page = client.show_log_lines(held.id, search="HELL")
    assert (page.lines, page.before) == (["hello"], None)
    end = client.show_log_lines(held.id).end
    assert end is not None
    assert [event.kind for event in client.follow_job_log(held.id, since=end)] == ["end"]
    (other,) = client.submit_job({**document, "run": "sleep 600"}, held=True).jobs
    assert client.change_jobs("hold", {"jobs": [other.id]}, dry_run=True).matched == 1
    assert client.hold_job(other.id).held
    assert client.cancel_job(other.id).id == other.id
    wait_until_over(service, other.id)
    assert client.show_job(other.id).state == "CANCELLED"
    assert [job.id for job in client.list_jobs(after=held.id, limit=1).jobs] == [other.id]
    assert client.list_events(after=0, limit=1).events
    assert next(iter(client.follow_events(after=0))).data
    assert next(iter(client.show_run_log()))
    assert client.show_attempts(held.id).attempts[0].outcome
    assert client.show_series(held.id).metrics == {}
    assert client.convert_job_file("run: echo hello\n").job == {"run": "echo hello"}
    members = client.submit_job({"run": "echo ${seed}", "matrix": {"seed": [1, 2]}}, held=True).jobs
    assert len(client.show_sweep(members[0].id).members) == 2
    assert json.loads(next(iter(client.follow_changes())).data)["seq"] > 0
    with pytest.raises(NotFound, match="999"):
        client.show_job("999")


def test_studies_teams_and_bills_have_their_operations(client: ApiClient) -> None:
    assert client.show_me().role == "operator"
    assert client.show_gpus().gpus
    assert client.show_groups().groups == {}
    with pytest.raises(NotFound, match="nightly"):
        client.show_group("nightly")
    (job,) = client.submit_job({"run": "true", "team": "vision"}, held=True).jobs
    assert "vision" in {team.team for team in client.show_teams().teams}
    assert client.show_bill(team="vision").team == client.show_team_bill("vision").team == "vision"
    trace = b"job_id,submit_s,duration_s,gpus\n1,0,60,1\n2,5,60,1\n"
    study = client.start_study(["fifo"], trace, cluster="1xa100:2", name="two jobs")
    assert client.show_study(study.id).id == study.id
    assert study.id in {one.id for one in client.list_studies().studies}
    client.cancel_job(job.id)


def test_operators_have_their_operations(client: ApiClient) -> None:
    assert client.show_cluster()
    assert client.set_budgets(["5kW"]).budgets == ["5kW"]
    assert client.set_budgets([]).budgets == client.show_budgets().budgets == []
    assert client.set_quota(team="vision", gpus=2).quotas
    assert client.show_quotas().quotas
    assert not client.unset_quota(team="vision").quotas
    assert client.create_token("typed", "viewer").token
    assert client.rotate_token("typed").token
    assert "typed" in {token["name"] for token in client.list_tokens().tokens}
    client.revoke_token("typed")
    assert client.show_audit(limit=1).records
    assert client.show_power(limit=1).method
    assert client.prune(dry_run=True)


def test_a_response_of_another_version_is_an_error() -> None:
    with pytest.raises(BackendError, match=r"another HealthResponse: status: ") as error:
        _parse(HealthResponse, {"state": "ok"})
    assert "same version" in error.value.hint

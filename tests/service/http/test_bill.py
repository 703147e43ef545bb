"""Bills and budgets of a running service; every figure is computed again from its database."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from support.controllers import (
    open_client,
    run_controller,
    submit_text,
    wait_until,
    wait_until_over,
    wait_until_running,
)
from wattline.energy.prices import Price
from wattline.service.billing.settings import BillSettings
from wattline.service.controller import Controller
from wattline.service.settings import ServiceSettings

PRICE, CARBON, PUE = 0.25, 380.0, 1.2


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    bill = BillSettings(Price.flat(PRICE, PUE), Price.flat(CARBON, PUE), "EUR")
    folder = tmp_path_factory.mktemp("service")
    with run_controller(folder, settings=ServiceSettings(bill=bill)) as one:
        yield one


@pytest.fixture(scope="module")
def client(controller: Controller) -> Iterator[TestClient]:
    with open_client(controller, "viewer") as one:
        yield one


@pytest.mark.slow
def test_a_bill_is_computed_from_real_runs(controller: Controller, client: TestClient) -> None:
    (killed,) = submit_text(
        controller,
        "run: [sh, -c, 'cd $WATTLINE_CHECKPOINT_DIR; test -e x || { touch x; kill -9 $$$$; }']"
        "\nteam: a/b\nretry: {limit: 1, delay: 0s}",
    )
    others = submit_text(controller, "run: [sleep, '0.2']\nteam: nlp\nmodel: resnet50")
    for job in (killed, *others):
        assert wait_until_over(controller, job.id).state == "SUCCEEDED"
    answer = client.get("/api/v1/bill").json()
    with sqlite3.connect(controller.folder / "state.db") as database:
        rows = database.execute(
            "SELECT job, data FROM event WHERE kind = 'ended' ORDER BY CAST(job AS INTEGER)"
        ).fetchall()
        attempts = database.execute(
            "SELECT count(*) FROM event WHERE job = ? AND kind = 'started'", killed.id
        )
        assert attempts.fetchone()[0] == 2
    energy_j = {job: json.loads(data)["energy_j"] for job, data in rows}
    assert {one["job"]: one["energy_j"] for one in answer["jobs"]} == pytest.approx(energy_j)
    total_j = sum(energy_j.values())
    assert answer["month"] == time.strftime("%Y-%m", time.gmtime())
    assert answer["total"]["energy_j"] == pytest.approx(total_j)
    assert answer["total"]["money"] == pytest.approx(total_j / 3.6e6 * PRICE * PUE)
    assert answer["total"]["co2_kg"] == pytest.approx(total_j / 3.6e6 * CARBON * PUE / 1000)
    assert answer["total"]["methods"] == ["simulated"]
    assert (answer["currency"], answer["pue"]) == ("EUR", PUE)
    team = client.get("/api/v1/teams/a/b/bill").json()
    assert [one["job"] for one in team["jobs"]] == [killed.id]
    assert team["total"]["energy_j"] == pytest.approx(energy_j[killed.id])
    assert client.get("/api/v1/teams/nlp/bill", params={"month": "2020-02"}).json()["jobs"] == []


def test_wrong_months_and_missing_tokens_are_refused(client: TestClient) -> None:
    assert client.get("/api/v1/bill", params={"month": "2026-13"}).status_code == 409
    assert client.get("/api/v1/bill", params={"month": "soon"}).status_code == 422
    assert client.get("/api/v1/bill", headers={"Authorization": ""}).status_code == 401


@pytest.mark.slow
def test_budgets_show_what_is_used_left_and_when_they_are_exhausted(
    controller: Controller, client: TestClient
) -> None:
    controller.set_budgets(["10kWh", "vision:100kWh/day", "5kW", "eta=0.5"])
    (job,) = submit_text(controller, "run: sleep 60\nteam: vision")
    wait_until_running(controller, job.id)

    def read() -> list[dict[str, float]] | None:
        usage = client.get("/api/v1/budgets").json()["usage"]
        return usage if usage[1]["rate_w"] else None

    total, team, power, eta = wait_until(read)
    controller.cancel(job.id)
    with sqlite3.connect(controller.folder / "state.db") as database:
        readings = database.execute("SELECT at_s, team, joules FROM meter ORDER BY at_s").fetchall()
        samples = database.execute("SELECT at_s, power_w, jobs FROM power_sample ORDER BY at_s").fetchall()
    for one, name, limit_j in ((total, "*", 3.6e7), (team, "vision", 3.6e8)):
        at_s, used_j = [row for row in readings if row[1] == name and row[0] <= one["as_of_s"]][-1][::2]
        watts: dict[float, float] = {}
        for sample_s, power_w, jobs in samples:
            if sample_s <= one["as_of_s"] and (name == "*" or jobs == job.id):
                watts[sample_s] = watts.get(sample_s, 0.0) + power_w
        for sample_s in sorted(watts):
            if sample_s > at_s:
                used_j, at_s = used_j + watts[sample_s] * (sample_s - at_s), sample_s
        assert one["limit"] == limit_j
        assert one["used"] == pytest.approx(used_j)
        assert one["left"] == limit_j - one["used"]
        assert one["rate_w"] > 0
    assert total["exhausted_s"] == pytest.approx(total["as_of_s"] + total["left"] / total["rate_w"])
    assert team["resets_s"] % 86400 == 0
    left_s = team["resets_s"] - team["as_of_s"]
    if team["left"] / team["rate_w"] > left_s:
        assert team["exhausted_s"] is None
    else:
        assert team["exhausted_s"] == pytest.approx(team["as_of_s"] + team["left"] / team["rate_w"])
    assert (power["unit"], power["limit"], power["exhausted_s"]) == ("W", 5000.0, None)
    assert power["left"] == 5000.0 - power["used"]
    assert (eta["unit"], eta["used"]) == ("eta", None)

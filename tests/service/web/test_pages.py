"""Pages without a browser: base path, proxy, errors, charts and files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC

import pytest
from fastapi.testclient import TestClient

from support.controllers import run_controller
from wattline.errors import WattlineError
from wattline.service.controller import Controller
from wattline.service.http.app import create_app
from wattline.service.http.auth import TokenStore
from wattline.service.http.whatif_routes import build_arguments, spell_cluster
from wattline.service.storage.events import NewEvent
from wattline.service.web.charts import PageCurve, draw_chart
from wattline.service.web.price_history import read_prices
from wattline.service.web.static_files import STATIC
from wattline.service.web.text import parse_zone, show_hidden
from wattline.service.web_settings import WebSettings

PATHS = ("/", "/jobs", "/groups", "/teams", "/prices", "/whatif", "/submit", "/audit")


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    with run_controller(tmp_path_factory.mktemp("pages")) as one:
        yield one


def open_client(controller: Controller, web: WebSettings) -> TestClient:
    return TestClient(create_app(controller, rate=1e6, web=web), base_url="http://localhost:7717")


def test_under_a_base_path_all_addresses_have_it(controller: Controller) -> None:
    token = TokenStore(controller.store, controller.clock).create("based", "operator")
    with open_client(controller, WebSettings(base_path="/wattline")) as client:
        assert client.get("/", follow_redirects=False).headers["location"] == "/wattline/login"
        form = {"token": token}
        answer = client.post("/api/v1/session", data=form, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/wattline/")
        for path in PATHS:
            for prefix in ("", "/wattline"):  # a proxy may strip it
                page = client.get(f"{prefix}{path}")
                assert page.status_code == 200, path
                addresses = page.text.replace("'", '"').split('href="')[1:] + page.text.split('src="')[1:]
                for address in addresses:
                    assert address.startswith(("/wattline/", "#", "?")), address[:60]
        style = f"/wattline{STATIC.address('style.css')}"
        assert client.get(style).headers["content-type"].startswith("text/css")


def test_a_proxy_logs_its_user_in(controller: Controller) -> None:
    TokenStore(controller.store, controller.clock).create("zoe", "viewer")
    web = WebSettings(user_header="X-Remote-User", proxies=("testclient",))
    with open_client(controller, web) as client:
        page = client.get("/", headers={"X-Remote-User": "zoe"})
        assert page.status_code == 200
        assert "zoe · viewer" in page.text
        assert "wattline_session" in client.cookies
        assert client.get("/jobs").status_code == 200
        assert client.get("/jobs", headers={"X-Remote-User": "other"}).status_code == 403


def test_errors_are_pages(controller: Controller) -> None:
    token = TokenStore(controller.store, controller.clock).create("wrong", "viewer")
    with open_client(controller, WebSettings()) as client:
        client.post("/api/v1/session", json={"token": token})
        for path, status in (
            ("/jobs/99", 404), ("/sweeps/99", 404), ("/team?name=none", 404), ("/group?name=none", 404),
            ("/whatif/0123456789abcdef", 404), ("/audit", 403), ("/submit", 403), ("/jobs?page=0", 422),
            ("/jobs?reason=none_such", 422),
        ):  # fmt: skip
            answer = client.get(path)
            assert answer.status_code == status, path
            assert answer.headers["content-type"].startswith("text/html")
            assert "This did not work" in answer.text
        failed = client.post("/api/v1/session", data={"token": "nope"})
        assert "The token is unknown" in failed.text
        assert client.post("/api/v1/session", json={"tokn": "x"}).status_code == 422


def test_the_documentation_lists_every_operation(controller: Controller) -> None:
    with open_client(controller, WebSettings()) as client:
        text = client.get("/docs").text
        document = client.get("/api/v1/openapi.json").json()
    for path in document["paths"]:
        assert f"</strong> {path}</code>" in text
    assert 'href="http' not in text  # examples in descriptions are text
    assert 'src="http' not in text


def test_a_chart_starts_at_zero_and_keeps_gaps() -> None:
    points = [(0.0, 100.0), (10.0, 200.0), (40.0, None), (50.0, 150.0)]
    chart = draw_chart("Power", "W", [PageCurve("power", points, "main")], UTC, span=(0.0, 100.0))
    assert chart is not None
    assert chart.y_labels == ["200", "150", "100", "50", "0"]
    assert chart.lines[0].path == "M0.0 500.0L100.0 0.0M500.0 250.0"
    assert chart.rows[0][1] == "100"
    assert json.loads(chart.data)["points"] == [[0.0, 100.0], [10.0, 200.0], [50.0, 150.0]]
    assert draw_chart("Nothing", "", [PageCurve("none", [], "main")], UTC) is None


def test_prices_come_from_the_rounds_of_the_log(controller: Controller) -> None:
    assert read_prices(controller).prices == {}
    epoch = controller.view().epoch
    for number, price in ((10**6, 0.5), (10**6 + 1, 0.75)):
        line = json.dumps(
            {"t": number, "prices": {"a100": price, "energy": 0.1, "bad": "x"}}, separators=(",", ":")
        )
        controller.store.add_round(epoch, number, line)
    history = read_prices(controller)
    assert history.prices == {
        "a100": [(1e6, 0.5), (1e6 + 1, 0.75)], "energy": [(1e6, 0.1), (1e6 + 1, 0.1)],
    }  # fmt: skip
    assert history.bottleneck == "a100"


def test_teams_have_the_energy_of_their_attempts(controller: Controller) -> None:
    with open_client(controller, WebSettings()) as client:
        token = TokenStore(controller.store, controller.clock).create("teams", "viewer")
        client.post("/api/v1/session", json={"token": token})
        spec = {"spec": {}, "columns": {"gpus": 1}}
        common = {
            "name": "x",
            "user": "",
            "team": "sums",
            "priority": 0,
            "sweep": "",
            "submit_s": 1.0,
            "fuse": "",
        }
        ended = {"message": "", "completed_fraction": 0, "service_s": 1.0, "energy_method": "nvml"}
        controller.store.append(
            NewEvent(1e9, "accepted", "90001", {**common, "submission": spec}),
            NewEvent(1e9 + 1, "retry", "90001", {**ended, "energy_j": 40.0}),
            NewEvent(1e9 + 2, "ended", "90001", {**ended, "energy_j": 100.0, "state": "FAILED"}),
        )
        for since, joules in ((0, 100.0), (1e9 + 1.5, 60.0), (1e9 + 5, 0.0)):
            teams = {one["team"]: one for one in client.get(f"/api/v1/teams?since={since}").json()["teams"]}
            assert teams["sums"]["energy_j"] == joules
            assert teams["sums"]["counts"] == {"FAILED": 1}


@pytest.mark.parametrize(
    "arguments",
    [
        (["nope"], "1xa100:4", "", ""), ([], "1xa100:4", "", ""), (["fifo"], "/etc/passwd", "", ""),
        (["fifo"], "cluster.toml", "", ""), (["fifo"], "1xa100:4", "soon", ""),
        (["fifo"] * 13, "1xa100:4", "", ""),
    ],
)  # fmt: skip
def test_a_study_with_invalid_arguments_is_refused(arguments: tuple[list[str], str, str, str]) -> None:
    with pytest.raises(WattlineError):
        build_arguments(*arguments)


def test_the_cluster_of_a_service_is_spelled_as_the_command_line_reads_it(controller: Controller) -> None:
    cluster = spell_cluster(controller.view().nodes)
    assert cluster == "1xa100:4"
    assert build_arguments(["fifo"], cluster, "2kW", "ann") == [
        "--cluster", "1xa100:4", "--policies", "fifo", "--budget", "2kW", "--user", "ann",
    ]  # fmt: skip


def test_hidden_characters_are_shown_and_zones_checked() -> None:
    assert show_hidden("a\u202eb\x1b[0m\nc\td") == "a⟦U+202E⟧b⟦U+001B⟧[0m\nc\td"
    assert str(parse_zone("Europe/Berlin")) == "Europe/Berlin"
    for name in ("", "../../etc/passwd", "Nowhere/None", "x" * 100):
        assert parse_zone(name) is UTC

"""Pages without a browser: base path, proxy, errors, charts and files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from fastapi.testclient import TestClient

from support.controllers import run_controller
from wattline.errors import WattlineError
from wattline.service.controller import Controller
from wattline.service.gpu_status import read_gpus
from wattline.service.http.app import create_app
from wattline.service.http.auth import TokenStore
from wattline.service.http.whatif_routes import build_arguments, spell_cluster
from wattline.service.storage.events import NewEvent, PowerSample
from wattline.service.sweep_table import find_common_name
from wattline.service.web.charts import PageCurve, choose_time_ticks, draw_chart
from wattline.service.web.fronts import draw_front, summarize_front
from wattline.service.web.overview import choose_colours
from wattline.service.web.price_history import read_prices
from wattline.service.web.static_files import STATIC
from wattline.service.web.text import (
    mark_code,
    parse_zone,
    show_change,
    show_command,
    show_hidden,
    show_sentence,
    show_short,
)
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


def test_an_unknown_address_is_a_page_for_browsers_and_a_problem_for_programs(controller: Controller) -> None:
    html = {"accept": "text/html,*/*;q=0.8"}
    for web in (WebSettings(), WebSettings(base_path="/wattline")):
        with open_client(controller, web) as client:
            page = client.get(f"{web.base_path}/nothing/<b>here", headers=html)
            assert page.status_code == 404
            assert page.headers["content-type"].startswith("text/html")
            assert "There is no page /nothing/&lt;b&gt;here." in page.text
            for path, headers in (("/nothing", {}), ("/api/v1/nothing", html)):
                problem = client.get(f"{web.base_path}{path}", headers=headers)
                assert problem.status_code == 404
                assert problem.headers["content-type"] == "application/problem+json"


def test_an_error_is_a_sentence_and_says_what_to_type(controller: Controller) -> None:
    token = TokenStore(controller.store, controller.clock).create("typing", "viewer")
    with open_client(controller, WebSettings()) as client:
        client.post("/api/v1/session", json={"token": token})
        text = client.get("/jobs/99").text
    assert "There is no job &#39;99&#39;." in text
    assert "In a terminal: <code>wattline queue --all</code>" in text


def test_a_session_that_has_ended_leads_to_the_login_and_back(controller: Controller) -> None:
    token = TokenStore(controller.store, controller.clock).create("returns", "viewer")
    with open_client(controller, WebSettings()) as client:
        assert client.get("/jobs?text=a b", follow_redirects=False).headers["location"] == (
            "/login?next=%2Fjobs%3Ftext%3Da%2520b"
        )
        client.cookies.set("wattline_session", "0" * 64)
        login = client.get("/jobs/7")
        assert login.url.path == "/login"
        assert "Your session has ended." in login.text
        assert 'name="next" value="/jobs/7"' in login.text
        wrong = client.post("/api/v1/session", data={"token": "no", "next": "/jobs?text=x"})
        assert 'name="next" value="/jobs?text=x"' in wrong.text
        form = {"token": token, "next": "/jobs?text=x"}
        back = client.post("/api/v1/session", data=form, follow_redirects=False)
        assert back.headers["location"] == "/jobs?text=x"


@pytest.mark.parametrize(
    "path", ["//evil.example", "/\\evil.example", "https://evil.example", "evil", "/a\nb", "/ä", "/a\\b"]
)
def test_a_login_never_leads_to_another_service(controller: Controller, path: str) -> None:
    token = TokenStore(controller.store, controller.clock).create(f"safe{abs(hash(path))}", "viewer")
    with open_client(controller, WebSettings()) as client:
        assert 'name="next"' not in client.get("/login", params={"next": path}).text
        form = {"token": token, "next": path}
        assert client.post("/api/v1/session", data=form, follow_redirects=False).headers["location"] == "/"


def test_the_documentation_marks_code(controller: Controller) -> None:
    with open_client(controller, WebSettings()) as client:
        text = client.get("/docs").text
    assert "<code>POST /jobs</code>" in text
    assert "`" not in text
    assert mark_code("a `b < c` d") == "a <code>b &lt; c</code> d"
    assert mark_code("one ` alone") == "one ` alone"


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


@pytest.mark.parametrize(
    ("span_s", "expected"),
    [
        (100.0, ["02:01:00", "02:01:30"]),
        (200.0, ["02:01", "02:02", "02:03", "02:04"]),
        (3600.0, ["02:15", "02:30", "02:45"]),
        (86400.0, ["06:00", "12:00", "18:00", "00:00"]),
        (7 * 86400.0, ["01-03", "01-05", "01-07"]),
        (0.2, ["02:00:50"]),
    ],
)
def test_ticks_of_a_chart_are_round_times_in_the_zone_of_the_viewer(
    span_s: float, expected: list[str]
) -> None:
    start_s = datetime(2026, 1, 1, 1, 0, 50, tzinfo=UTC).timestamp()  # 02:00:50 in Berlin
    ticks = choose_time_ticks(start_s, start_s + span_s, ZoneInfo("Europe/Berlin"))
    texts = [tick.text for tick in ticks]
    assert 1 <= len(texts) <= 5
    assert texts[: len(expected)] == expected
    for tick in ticks:
        assert 0 <= tick.percent <= 96  # so that no label leaves the chart


def test_values_of_a_chart_of_many_days_have_their_date() -> None:
    points = [(86400.0 * day, float(day)) for day in range(5)]
    chart = draw_chart("Power", "W", [PageCurve("power", points, "main")], UTC)
    assert chart is not None
    assert json.loads(chart.data)["labels"][2] == "01-03 00:00:00"


def test_jobs_on_neighbouring_gpus_have_different_colours() -> None:
    found = choose_colours(["12", "20", "28", "12"])
    assert found["12"] == 12 % 8
    assert len(set(found.values())) == 3
    many = choose_colours([str(number) for number in range(1, 40)])
    assert set(many.values()) == set(range(8))


def build_policy_row(name: str, energy_j: float, jct_s: float, spread: float = 0.0) -> dict[str, Any]:
    ratio = {"value": 0.5, "low": 0.5 - spread, "high": 0.5 + spread} if spread else NO_RATIO
    common = {"energy_ratio": ratio, "jct_ratio": ratio, "pareto": True}
    return {"policy": name, "energy_j": energy_j, "jct_mean_s": jct_s, **common}


NO_RATIO = {"value": 1.0, "low": None, "high": None}


def test_the_front_of_a_study_has_round_axes_in_fitting_units_and_intervals() -> None:
    rows = [build_policy_row("fifo", 3600.0 * 19, 57.0), build_policy_row("las", 3600.0 * 8, 30.0, 0.1)]
    front = draw_front({"policies": rows})
    assert front is not None
    assert (front.energy_unit, front.time_unit) == ("Wh", "s")
    assert front.x_labels == ["0", "5", "10", "15", "20"]
    assert front.y_labels == ["60", "45", "30", "15", "0"]
    fifo, las = front.points
    assert (fifo.x, fifo.x_bar) == (950.0, None)
    assert las.x_bar == (320.0, 480.0)  # 0.4 and 0.6 of 16 Wh, of 20
    assert las.y_bar == pytest.approx((1000 - 1000 * 24 / 60, 1000 - 1000 * 36 / 60))
    assert front.has_bars
    assert (fifo.is_left, las.is_left) == (True, False)
    assert summarize_front({"policies": rows})[0] == (
        "Least energy: las (against fifo: energy −50 %, completion time −50 %)."
    )
    assert summarize_front({"policies": rows[::-1]})[0] == (
        "Least energy: las, with which the others are compared."
    )
    assert summarize_front({"policies": rows[:1]}) == []


def test_names_of_policies_with_nearly_equal_results_do_not_cover_each_other() -> None:
    names = ("srtf", "powerflow", "las", "fifo")
    rows = [build_policy_row(name, 100.0 + n, 10.0 + n / 10) for n, name in enumerate(names)]
    front = draw_front({"policies": rows})
    assert front is not None
    assert len({(point.is_left, point.is_below) for point in front.points}) == 4


def test_a_cap_that_the_policy_has_just_changed_is_not_called_one_of_the_session(
    controller: Controller,
) -> None:
    spec = {"spec": {"power_w": None}, "columns": {"gpus": 1}}
    common = {"name": "x", "user": "", "team": "", "priority": 0, "sweep": "", "submit_s": 1.0, "fuse": ""}
    allocation = {"gpus": [0], "kind": "a100", "cap_w": 314.0, "attempt": 1}
    store, node = controller.store, str(controller.view().nodes.name[0])
    store.append(
        NewEvent(2e9, "accepted", "90007", {**common, "submission": spec}),
        NewEvent(2e9 + 1, "started", "90007", allocation),
    )
    store.add_power_samples([PowerSample(2e9 + 5, node, 0, 100.0, 314.0, ("90007",))])
    assert [(gpu.cap_w, gpu.origin) for gpu in read_gpus(controller)[0] if gpu.jobs] == [(314.0, "policy")]
    store.append(NewEvent(2e9 + 6, "retuned", "90007", {"cap_w": 200.0}))
    assert [(gpu.cap_w, gpu.origin) for gpu in read_gpus(controller)[0] if gpu.jobs] == [(200.0, "policy")]
    store.add_power_samples([PowerSample(2e9 + 15, node, 0, 100.0, 150.0, ("90007",))])
    assert [(gpu.cap_w, gpu.origin) for gpu in read_gpus(controller)[0] if gpu.jobs] == [(150.0, "session")]
    ended = {"message": "", "completed_fraction": 0, "service_s": 1.0, "energy_method": "simulated"}
    store.append(NewEvent(2e9 + 20, "ended", "90007", {**ended, "energy_j": 1.0, "state": "SUCCEEDED"}))


def test_messages_and_commands_are_shown_as_people_write_them() -> None:
    assert show_sentence("it exceeded its time limit of 3 s") == "It exceeded its time limit of 3 s."
    assert show_sentence("Not yet scheduled.") == "Not yet scheduled."
    assert show_sentence("") == ""
    assert show_command(["sh", "-c", "echo 'a b'; exit 3"]) == "sh -c 'echo '\"'\"'a b'\"'\"'; exit 3'"
    assert show_change({"role": "operator", "user": ""}) == "role operator, user –"
    assert show_change(["1500W", "3kWh/day"]) == "1500W, 3kWh/day"
    assert show_change(None) == "–"
    assert [show_short(value) for value in (0.0930407, 12345.6, 0.0, 1e-9, None)] == [
        "0.093", "12,346", "0", "<0.001", "–",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["resnet lr=0.1 b=32", "resnet lr=0.3 b=64"], "resnet"),
        (["gpt-lr0.1", "gpt-lr0.3"], "gpt-lr"),
        (["same", "same"], "same"),
        (["1", "2"], "1"),
        (["run 10", "run 11 again"], "run"),
    ],
)
def test_a_sweep_has_the_name_that_its_members_share(names: list[str], expected: str) -> None:
    assert find_common_name(names) == expected


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

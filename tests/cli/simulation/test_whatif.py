"""`wattline whatif` on records that a known scheduler made."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.command_line import parse_strict_json, run_command, run_json_command
from support.recorded_trace import CLUSTER, build_jobs, record_schedule, write_records
from wattline.policy import fifo

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three hundred jobs that first in, first out with easy backfill has scheduled, each start taking 4 s."""
    jobs = build_jobs()
    start_s, end_s = record_schedule(jobs, fifo, "easy", start_s=4.0)
    path = write_records(tmp_path_factory.mktemp("records") / "r.csv", jobs, start_s, end_s)
    return ["--trace", str(path), "--cluster", CLUSTER, "--jobs", "1"]


@pytest.fixture(scope="module")
def answer(records: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answer with three policies, and its page under "page"."""
    import contextlib
    import io

    from wattline.cli import main

    page = tmp_path_factory.mktemp("page") / "whatif.html"
    words = ["whatif", *records, "--policies", "fifo,sjf,srtf", "--user", "user-1", "--html", str(page)]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*words, "--json"]) == 0
    found: dict[str, Any] = parse_strict_json(out.getvalue())
    return found | {"page": page.read_text(encoding="utf-8")}


def test_the_scheduler_that_made_the_records_is_found_and_has_no_error(answer: dict[str, Any]) -> None:
    reproduction = answer["reproduction"]
    assert reproduction["scheduler"] == "fifo, easy backfill"
    assert reproduction["start_delay_s"] == pytest.approx(4.0, abs=0.01)
    second = reproduction["second_half"]
    assert abs(second["wait_error"]) < 0.02
    assert abs(second["utilisation_error"]) < 0.01
    assert second["order"] < 0.01


def test_the_recorded_schedule_is_a_row_of_its_own(answer: dict[str, Any]) -> None:
    recorded, reproduced = answer["recorded"], answer["reproduction"]["metrics"]
    assert recorded["jobs"] == 300
    assert recorded["wait_mean_s"] > 0
    assert recorded["jct_mean_s"] == pytest.approx(reproduced["jct_mean_s"], rel=0.02)
    assert recorded["energy_j"] == pytest.approx(reproduced["energy_j"], rel=0.02)


def test_policies_are_compared_with_the_reproduction(answer: dict[str, Any]) -> None:
    (world,) = answer["worlds"]
    rows = {row["policy"]: row for row in world["policies"]}
    assert list(rows) == ["reproduction", "fifo", "sjf", "srtf"]
    assert rows["reproduction"]["jct_ratio"]["value"] == 1
    assert rows["fifo"]["jct_ratio"]["value"] == pytest.approx(1, rel=1e-6)
    better = rows["srtf"]["jct_ratio"]
    assert better["value"] < 1
    assert better["low"] <= better["value"] <= better["high"]
    assert answer["block"] in ("week", "day", "6 h", "hour")
    assert "off by a factor" in rows["srtf"]["estimates"]


def test_every_assumption_states_how_much_it_matters(answer: dict[str, Any]) -> None:
    found = {one["name"]: one for one in answer["assumptions"]}
    assert set(found) == {"scaling", "watts", "restart", "checkpoints", "durations", "start"}
    assert found["durations"]["value"] == "limit"
    assert found["scaling"]["effect"] is None  # it is the pessimistic value
    watts = found["watts"]["effect"]
    assert watts["pessimistic"] == "limit"
    assert all(change["energy"] > 1 and change["jct"] == 1 for change in watts["policies"].values())
    assert found["restart"]["effect"]["policies"]["srtf"]["jct"] >= 1


def test_teams_and_the_user_see_their_own_change(answer: dict[str, Any]) -> None:
    assert sum(team["jobs"] for team in answer["teams"]) == 300
    assert answer["user"]["name"] == "user-1"
    assert set(answer["user"]["policies"]) == {"fifo", "sjf", "srtf"}


def test_the_page_holds_all_parts_and_loads_nothing(answer: dict[str, Any]) -> None:
    page = answer["page"]
    for text in (
        "as recorded",
        "error on the second half",
        "Assumptions",
        "Teams",
        "Jobs of user-1",
        "front-0",
    ):
        assert text in page
    assert "src=" not in page.split("<script")[0]


def test_the_text_fits_into_80_columns(capsys: pytest.CaptureFixture[str], records: list[str]) -> None:
    code, out, _ = run_command(capsys, "whatif", *records, "--policies", "srtf", "--to", "8d")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for text in (
        "as recorded",
        "reproduced by fifo, easy backfill",
        "x: compared with reproduction",
        "recurring:",
    ):
        assert text in " ".join(out.split()) or text in out


def test_worlds_are_swept_and_windows_leave_jobs_out(
    capsys: pytest.CaptureFixture[str], records: list[str]
) -> None:
    found = run_json_command(
        capsys, "whatif", *records, "--cluster", "8xv100:4", "--load", "0.8,1.2", "--policies", "srtf",
        "--seeds", "2", "--job-failure", "0.1", "--warmup", "6h", "--cooldown", "6h", "--to", "6d",
    )  # fmt: skip
    worlds = [(world["cluster"], world["load"]) for world in found["worlds"]]
    assert worlds == [(CLUSTER, 0.8), (CLUSTER, 1.2), ("8xv100:4", 0.8), ("8xv100:4", 1.2)]
    assert 0 < found["counted"] < found["jobs"] < 300
    (low, _, wide, _) = (world["policies"][0]["jct_mean_s"] for world in found["worlds"])
    assert wide < low


def test_a_trace_without_records_says_so_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["whatif", "--trace", "synth:count=60,gpus_total=8", "--cluster", "1xv100:8", "--jobs", "1"]
    found = run_json_command(capsys, *words, "--policies", "fifo", "srtf")
    assert found["recorded"] is None
    assert found["reproduction"] is None
    assert "records no start and end" in found["notes"][0]
    assert [row["policy"] for row in found["worlds"][0]["policies"]] == ["fifo", "srtf"]
    assert {one["name"]: one["value"] for one in found["assumptions"]}["durations"] == "history"


def test_an_export_of_sacct_can_be_given_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [
        "JobIDRaw|User|Account|Partition|State|Submit|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES|JobName"
    ]
    for n in range(60):
        begin = n * 5
        times = "|".join(f"2026-01-01T{m // 60:02}:{m % 60:02}:00" for m in (begin, begin + 1, begin + 21))
        rows.append(f"{n}|ann|lab|gpu|COMPLETED|{times}|1200|60|gres/gpu=1|train{n % 3}")
    path = tmp_path / "sacct.txt"
    path.write_text("\n".join((*rows, "")))
    code, out, _ = run_command(
        capsys, "whatif", "--sacct", str(path), "--cluster", "1xa100:8", "--policies", "fifo", "--jobs", "1",
        "--json",
    )  # fmt: skip
    assert code == 0
    found = json.loads(out)
    assert found["recorded"]["wait_mean_s"] == 60
    assert found["reproduction"]["second_half"]["wait_error"] == pytest.approx(0, abs=0.02)


def test_an_unknown_user_is_refused(capsys: pytest.CaptureFixture[str], records: list[str]) -> None:
    code, _, err = run_command(capsys, "whatif", *records, "--policies", "fifo", "--user", "nemo")
    assert code == 2
    assert "no such user" in err

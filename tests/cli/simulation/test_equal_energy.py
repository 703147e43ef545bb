"""`wattline compare --equal-energy --equal-jct --front` as a user types it."""

import re
from pathlib import Path
from typing import Any

import pytest

from support.command_line import parse_strict_json, run_command, run_json_command

POLICIES = ["--policy", "fifo", "--policy", "powerflow", "--policy", "srtf"]
KEYS = {
    "baseline",
    "policy",
    "eta",
    "knob",
    "reached",
    "side",
    "energy_ratio",
    "jct_ratio",
    "energy_j",
    "jct_mean_s",
    "unfinished",
    "baseline_energy_j",
    "baseline_jct_mean_s",
    "baseline_unfinished",
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("equal") / "page.html"


@pytest.fixture(scope="module")
def found(page: Path, few: list[str]) -> Any:
    """All at once, because the runs are the same."""
    from contextlib import redirect_stdout
    from io import StringIO

    from wattline.cli import main

    words = [*few, *POLICIES, "--equal-energy", "--equal-jct", "--front", "--html", str(page), "--json"]
    with redirect_stdout(StringIO()) as out:
        assert main(["compare", *words]) == 0
    return parse_strict_json(out.getvalue())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["equal_energy", "equal_jct"])
def test_every_other_policy_is_a_baseline_with_the_figures_of_its_report(found: Any, name: str) -> None:
    rows = found[name]
    assert [row["baseline"] for row in rows] == ["fifo", "srtf"]
    reports = {row["policy"]: row for row in found["reports"]}
    for row in rows:
        assert set(row) == KEYS
        assert row["policy"] == "powerflow"
        assert row["baseline_energy_j"] == reports[row["baseline"]]["energy_j"]
        assert row["baseline_jct_mean_s"] == reports[row["baseline"]]["jct_mean_s"]
        assert row["energy_ratio"] == row["baseline_energy_j"] / row["energy_j"]
        assert row["jct_ratio"] == row["baseline_jct_mean_s"] / row["jct_mean_s"]


def test_a_match_is_within_one_percent(found: Any) -> None:
    for name, ratio in (("equal_energy", "energy_ratio"), ("equal_jct", "jct_ratio")):
        for row in found[name]:
            assert row["reached"] == (row["side"] == "")
            if row["reached"]:
                assert row[ratio] == pytest.approx(1, abs=0.0102)
            elif row["side"] in ("above", "under"):
                assert row[ratio] > 1
            else:
                assert row[ratio] < 1


def test_a_run_with_the_chosen_eta_has_the_printed_figures(
    capsys: pytest.CaptureFixture[str], few: list[str], found: Any
) -> None:
    row = found["equal_energy"][0]
    again = run_json_command(capsys, "simulate", *few, "--policy", f"powerflow:eta={row['eta']}")
    assert again["energy_j"] == row["energy_j"]
    assert again["jct_mean_s"] == row["jct_mean_s"]


def test_the_front_has_a_row_for_every_tenth_of_eta(found: Any) -> None:
    assert [row["eta"] for row in found["front"]] == [step / 10 for step in range(11)]
    assert all(set(row) == {"eta", "energy_j", "jct_mean_s"} for row in found["front"])
    own = found["reports"][1]
    assert found["front"][-1]["energy_j"] == own["energy_j"]  # its own eta is 1
    assert found["front"][-1]["jct_mean_s"] == own["jct_mean_s"]


def test_the_page_shows_both_tables_and_the_line(page: Path, found: Any) -> None:
    text = page.read_text(encoding="utf-8")
    for title in ("At equal energy: powerflow against each", "At equal mean JCT: powerflow against each"):
        assert f"<h2>{title}" in text
    row = found["equal_energy"][0]
    assert f"<td>{row['jct_ratio']:.2f} x</td>" in text
    assert "what powerflow does with other values of eta" in text
    assert re.search(r'data-t="powerflow, eta 0.1\n', text)


@pytest.mark.slow
def test_the_text_has_tables_with_the_load(capsys: pytest.CaptureFixture[str], few: list[str]) -> None:
    code, out, err = run_command(capsys, "compare", *few, *POLICIES[:4], "--equal-energy", "--front")
    assert code == 0
    assert re.search(r"At equal energy: powerflow against each, at an offered load of \d", out)
    lines = out.splitlines()
    head = next(at for at, line in enumerate(lines) if line.startswith("baseline"))
    assert lines[head + 1].split()[0] == "fifo"
    assert len(re.findall(r"\d x\b", out)) == 2
    assert "What eta does to powerflow" in out
    assert "runs with other values of eta" in err


@pytest.mark.slow
def test_without_the_flags_the_keys_are_missing(capsys: pytest.CaptureFixture[str], few: list[str]) -> None:
    found = run_json_command(capsys, "compare", *few, "--policy", "powerflow")
    assert not {"front", "equal_energy", "equal_jct"} & set(found)
    found = run_json_command(capsys, "compare", *few, "--policy", "powerflow", "--equal-energy")
    assert found["equal_energy"] == []


def test_without_a_policy_that_has_an_eta_there_is_nothing_to_choose(
    capsys: pytest.CaptureFixture[str], few: list[str]
) -> None:
    for option in ("--equal-energy", "--equal-jct", "--front"):
        code, out, err = run_command(capsys, "compare", *few, "--policy", "fifo", "--policy", "las", option)
        assert (code, out) == (2, "")
        assert "none of fifo, las has an energy knob" in err


@pytest.mark.slow
def test_of_several_policies_with_an_eta_that_with_budgets_is_compared(
    capsys: pytest.CaptureFixture[str], few: list[str]
) -> None:
    words = ["--policy", "fifo+cap", "--policy", "cap+powerflow", "--front"]
    found = run_json_command(capsys, "compare", *few, *words)
    fastest = run_json_command(capsys, "simulate", *few, "--policy", "cap+powerflow")
    assert found["front"][-1]["eta"] == 1.0
    assert found["front"][-1]["jct_mean_s"] == fastest["jct_mean_s"]
    assert found["front"][0]["energy_j"] < found["front"][-1]["energy_j"]


def test_jobs_that_take_no_time_leave_nothing_to_compare(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("id,submit_s,gpus,duration_s\na,0,1,0\nb,5,1,0\n")
    words = ["--trace", str(trace), "--cluster", "1xa100:8", "--policy", "powerflow", "--policy", "fifo"]
    assert run_json_command(capsys, "compare", *words, "--equal-jct", "--equal-energy")["equal_jct"] == []


@pytest.mark.slow
def test_a_budget_too_small_for_any_job_leaves_nothing_to_compare(
    capsys: pytest.CaptureFixture[str], few: list[str]
) -> None:
    words = ["--policy", "powerflow", "--policy", "fifo", "--budget", "1kW", "--equal-energy", "--json"]
    code, out, _ = run_command(capsys, "compare", *few, *words)
    assert code == 0
    assert parse_strict_json(out)["equal_energy"] == []


@pytest.mark.slow
def test_several_processes_give_the_same_result(
    capsys: pytest.CaptureFixture[str], few: list[str], found: Any
) -> None:
    words = [*few, *POLICIES, "--equal-energy", "--equal-jct", "--front", "--jobs", "2"]
    again = run_json_command(capsys, "compare", *words)
    for name in ("equal_energy", "equal_jct", "front"):
        assert again[name] == found[name]

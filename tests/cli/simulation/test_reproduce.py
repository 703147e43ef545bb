"""`wattline reproduce`."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import parse_strict_json, run_command, run_json_command
from wattline.cli.simulation.reproduce import NAMES
from wattline.papers.reproductions import EXPERIMENTS

Capsys = pytest.CaptureFixture[str]
QUICK = ("--quick", "--seeds", "2", "--jobs", "1")


@pytest.fixture(autouse=True)
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("WATTLINE_DATA", raising=False)


def test_the_names_are_those_of_the_experiments() -> None:
    assert (*EXPERIMENTS, "all") == NAMES


def test_without_data_a_paper_runs_on_a_labelled_stand_in(capsys: Capsys, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, out, err = run_command(capsys, "reproduce", "zeus", *QUICK, "--html", str(page))
    assert code == 0
    assert "15.3 to 75.8 % less energy" in out
    assert out.count("SYNTHETIC") == 2
    assert max(map(len, out.splitlines())) <= 80
    assert "wattline data fetch all gets the public data" in err
    assert "the figures mean nothing" in err
    assert "SYNTHETIC" in page.read_text()


def test_json_has_the_spread_of_every_figure(capsys: Capsys) -> None:
    found = run_json_command(capsys, "reproduce", "zeus", *QUICK)
    zeus = found["papers"]["zeus"]
    assert zeus["claim"] == {"text": "15.3 to 75.8 % less energy", "low": 15.3, "high": 75.8}
    for case in zeus["cases"]:
        assert case["data"] == "SYNTHETIC"
        assert len(case["ours"]["values"]) == len(case["original"]["values"]) == 2
        low, high = case["ours"]["interval"]
        assert low <= case["ours"]["mean"] <= high


@pytest.mark.slow
def test_the_same_seeds_give_the_same_figures_at_any_number_of_processes(capsys: Capsys) -> None:
    first, second = (
        run_json_command(capsys, "reproduce", "zeus", *QUICK[:-1], jobs)["papers"]["zeus"] for jobs in "12"
    )
    assert first["cases"] == second["cases"]


def test_an_unknown_paper_gets_the_nearest(capsys: Capsys) -> None:
    code, _, err = run_command(capsys, "reproduce", "zues")
    assert code == 2
    assert "did you mean zeus?" in err


@pytest.mark.parametrize("folder", ["missing", "."])
def test_a_folder_without_data_is_refused(capsys: Capsys, tmp_path: Path, folder: str) -> None:
    code, out, _ = run_command(capsys, "reproduce", "zeus", "--data", str(tmp_path / folder), "--json")
    assert code == 2
    assert "--data" in parse_strict_json(out)["error"]["message"]


@pytest.mark.slow
def test_all_papers_run_without_any_data_and_fit_80_columns(capsys: Capsys, tmp_path: Path) -> None:
    page = tmp_path / "all.html"
    code, out, _ = run_command(
        capsys, "reproduce", "all", "--quick", "--seeds", "1", "--jobs", "1", "--html", str(page)
    )
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for claim in ("15.3 to 75.8 %", "1.57 to 3.39x", "up to 3.4x", "up to 15.1x", "30 to 62 %"):
        assert claim in out
    assert "What composes and what interferes" in page.read_text()

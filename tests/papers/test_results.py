"""Figures of reproduced experiments and their spread."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from wattline.papers.reproduction_text import (
    STEP_COLUMNS,
    format_losses,
    format_sample,
    list_rows,
    list_step_rows,
    list_summary,
)
from wattline.papers.results import SYNTHETIC, CaseResult, Experiments, PaperResult, Sample, group_samples
from wattline.public_data.cache import find_folder, list_data_folders
from wattline.text_table import format_table


def build_reproduction(**changes: object) -> PaperResult:
    cases = (
        CaseResult("one", SYNTHETIC, Sample((2.0, 4.0)), Sample((3.0, 3.0))),
        CaseResult("two", SYNTHETIC, Sample((1.0, 0.5)), baseline=1.0),
    )
    values: dict[str, object] = {
        "name": "demo",
        "title": "Demo (made up): gain",
        "claim": "up to 3x, at best",
        "unit": "x",
        "low": math.nan,
        "high": 3.0,
        "original": "none",
        "conditions": "none",
        "cases": cases,
    }
    return PaperResult(**{**values, **changes})  # type: ignore[arg-type]


def test_a_sample_has_a_mean_a_range_and_an_interval_within_it() -> None:
    sample = Sample((1.0, 2.0, 6.0))
    assert sample.mean == 3.0
    assert sample.range == (1.0, 6.0)
    low, high = sample.interval
    assert 1.0 <= low < 3.0 < high <= 6.0


def test_losses_are_counted_against_the_original_or_the_baseline() -> None:
    one, two = build_reproduction().cases
    assert (one.losses, two.losses) == (1, 1)
    assert format_losses(one) == "1/2"


def test_rows_name_spread_losses_and_data() -> None:
    assert list_rows(build_reproduction())[0] == ("one", "3.00x", "3.00x (2.00..4.00)", "1/2", "SYNTHETIC")
    assert list_rows(build_reproduction())[1][1] == "-"
    assert format_sample(Sample((74.81,)), " %") == "74.8 %"


def test_the_summary_has_the_least_and_most_mean() -> None:
    assert list_summary([build_reproduction()]) == [
        ("demo", "up to 3x", "3.00x", "0.75 to 3.00x", "SYNTHETIC")
    ]
    empty = build_reproduction(cases=(), left_out="no torch")
    assert list_summary([empty])[0][3] == "left out"


def test_the_steps_of_an_ablation_fit_80_columns() -> None:
    figure = {"mean": 3320.4, "interval": [1404.0, 7065.0]}
    names = ("jct_mean_h", "energy_kwh", "cost", "deadlines_missed")
    step: dict[str, object] = {"lever": "+ elasticity", **dict.fromkeys(names, figure)}
    step["jct_mean_h"] = {"mean": 26.6, "interval": [19.2, 36.3]}
    step["deadlines_missed"] = {"mean": 0.35, "interval": [0.2, 0.5]}
    rows = list_step_rows(build_reproduction(extra={"steps": [step]}))
    assert rows[0][1:4] == ("26.6 (19.2..36.3)", "3.32 (1.40..7.07)", "3,320 (1,404..7,065)")
    assert max(map(len, format_table(STEP_COLUMNS, rows))) <= 80


def test_figures_of_seeds_are_grouped_by_case() -> None:
    found = group_samples([("a", (1.0, 2.0)), ("b", (5.0, 6.0)), ("a", (3.0, 4.0))])
    assert [sample.values for sample in found["a"]] == [(1.0, 3.0), (2.0, 4.0)]
    assert [sample.values for sample in found["b"]] == [(5.0,), (6.0,)]


def test_tasks_keep_their_order_and_report_progress() -> None:
    seen: list[tuple[int, int]] = []
    experiments = Experiments(progress=lambda done, total: seen.append((done, total)))
    assert experiments.run(str, [3, 1, 2]) == ["3", "1", "2"]
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.slow
def test_processes_return_the_same_in_the_same_order() -> None:
    assert Experiments(processes=2).run(math.sqrt, [4.0, 9.0, 16.0]) == [2.0, 3.0, 4.0]


def test_data_is_looked_for_in_the_cache_before_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("WATTLINE_DATA", str(tmp_path / "other"))
    for folder in (tmp_path / "other" / "zeus", tmp_path / "cache" / "wattline" / "data" / "zeus"):
        folder.mkdir(parents=True)
        assert find_folder(list_data_folders(None), "zeus", "a.csv") != folder
        (folder / "a.csv").touch()
        assert find_folder(list_data_folders(None), "zeus", "a.csv") == folder
    assert list_data_folders("here") == (Path("here"),)

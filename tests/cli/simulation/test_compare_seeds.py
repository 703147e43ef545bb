"""`wattline compare --seeds`: means and intervals in the table, in JSON and on the page."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from scipy.stats import t

from support.command_line import run_command, run_json_command
from wattline.trace.reader import shift_seed

SCENE = ["--trace", "synth:count=40,seed=5,gpus_total=16,load=1.2", "--cluster", "2xv100:8", "--no-bound"]
POLICIES = ["--policy", "fifo", "--policy", "srtf+cap"]


def test_means_and_intervals_are_those_of_separate_runs_with_each_seed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    together = run_json_command(capsys, "compare", *SCENE, *POLICIES, "--models", "library", "--seeds", "3")
    single = []
    for number in range(3):
        scene = ["--trace", f"synth:count=40,seed={5 + number},gpus_total=16,load=1.2", *SCENE[2:]]
        words = [*scene, *POLICIES, "--models", "library", "--seed", str(number)]
        single.append(run_json_command(capsys, "compare", *words)["reports"])
    seeds = together["seeds"]
    assert (seeds["count"], seeds["seeds"]) == (3, [0, 1, 2])
    for row in range(2):
        for name in ("jct_mean_s", "energy_j", "wait_mean_s"):
            values = [reports[row][name] for reports in single]
            mean = sum(values) / 3
            variance = sum((value - mean) ** 2 for value in values) / 2
            half = t.ppf(0.975, 2) * math.sqrt(variance / 3)
            found = seeds["means"][name][row]
            assert found["value"] == pytest.approx(mean)
            assert (found["low"], found["high"]) == pytest.approx((mean - half, mean + half))
        ratios = [reports[row]["energy_j"] / reports[0]["energy_j"] for reports in single]
        assert seeds["ratios"]["energy_j"][row]["value"] == pytest.approx(sum(ratios) / 3)


def test_other_keys_are_those_of_the_first_seed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    first = run_json_command(capsys, "compare", *SCENE, *POLICIES)
    several = run_json_command(capsys, "compare", *SCENE, *POLICIES, "--seeds", "2")
    assert set(several) - set(first) == {"seeds"}
    for name in ("ratios", "pareto", "differs", "assumptions", "read"):
        assert several[name] == first[name]
    for one, other in zip(first["reports"], several["reports"], strict=True):
        cost = {"cpu_s", "peak_rss_mb"}
        assert {k: v for k, v in one.items() if k not in cost} == {
            k: v for k, v in other.items() if k not in cost
        }


def test_the_table_shows_intervals_and_the_number_of_seeds_in_80_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run_command(capsys, "compare", *SCENE, *POLICIES, "--seeds", "3")
    assert code == 0
    assert "means over 3 seeds (0 to 2)" in out
    assert re.search(r"^fifo +\S+ (s|min|h|d) ± \S+ (s|min|h|d) +1\.00 ", out, re.MULTILINE)
    assert re.search(r"^srtf\+cap .* \d\.\d\d \[-?\d\.\d\d, \d\.\d\d\]", out, re.MULTILINE)
    assert max(map(len, out.splitlines())) <= 80
    assert "x 3 seeds in" in err


def test_the_page_has_error_bars_and_says_how_many_seeds_there_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    assert run_command(capsys, "compare", *SCENE, *POLICIES, "--seeds", "3", "--html", str(page))[0] == 0
    text = page.read_text()
    assert text.count('class="error"') == 2 * 2 * 2  # both axes of two policies, for screens and for phones
    assert "2 policies, each compared with fifo, simulated with 3 seeds:" in text
    assert "bars their 95 % intervals" in text
    assert "Only the seed 0 is shown, the first of 3." in text
    assert 'class="spread">±' in text
    assert page.stat().st_size < 1.5e6


def test_without_seeds_the_page_has_no_bars(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run_command(capsys, "compare", *SCENE, *POLICIES, "--html", str(page))
    text = page.read_text()
    assert 'class="error"' not in text
    assert 'class="spread"' not in text


def test_one_policy_with_seeds_has_its_means_on_the_page(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    words = [*SCENE, "--policy", "fifo", "--seeds", "2", "--html", str(page)]
    assert run_command(capsys, "compare", *words)[0] == 0
    assert "One policy, simulated with 2 seeds:" in page.read_text()


def test_every_seed_has_its_own_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run_command(capsys, "compare", *SCENE, *POLICIES, "--seeds", "2", "--logs", str(tmp_path))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"{name}-seed{seed}.jsonl.gz" for name in ("fifo", "srtf+cap") for seed in (0, 1)]


def test_parts_of_one_seed_are_refused_with_several(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_command(capsys, "compare", *SCENE, "--policy", "powerflow", "--seeds", "2", "--front")
    assert code == 2
    assert "--front are of one seed" in err


def test_a_trace_that_no_seed_changes_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("id,submit_s,gpus,duration_s\n" + "".join(f"{n},{n},1,60\n" for n in range(5)))
    words = ["--trace", str(trace), "--cluster", "1xv100:8", "--policy", "fifo", "--seeds", "2"]
    code, out, err = run_command(capsys, "compare", *words)
    assert code == 0
    assert "has the same jobs with every seed" in err
    assert "±" not in out.split("x:")[0]  # equal seeds have no spread


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("synth", "synth:seed=2"),
        ("synth:count=5,seed=3", "synth:count=5,seed=5"),
        ("combined: seed=1 ,count=9", "combined:count=9,seed=3"),
        ("jobs.csv", "jobs.csv"),
    ],
)
def test_the_seed_of_a_synthetic_trace_moves_on(text: str, expected: str) -> None:
    assert shift_seed(text, 2) == expected
    assert shift_seed(text, 0) == text

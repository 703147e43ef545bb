"""`--budget` as a user types it."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from support.command_line import parse_strict_json, run_command, run_json_command


def most_w(log: Path) -> float:
    """The largest mean power between two readings of the whole cluster's meter."""
    rounds = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    read = [
        (event["at_s"], event["energy_j"])
        for found in rounds
        for event in found["events"]
        if event.get("metered") == -1
    ]
    steps = pairwise(read)
    return max(
        (then_j - now_j) / (then_s - now_s) for (now_s, now_j), (then_s, then_j) in steps if then_s > now_s
    )


def test_a_budget_of_watts_is_held(
    capsys: pytest.CaptureFixture[str], few: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "run.jsonl"
    found = run_json_command(
        capsys, "simulate", *few, "--policy", "powerflow", "--budget", "5kW", "--log", str(log)
    )
    assert found["finished"] == 12
    assert "budgets=5kW" in found["policy_exact"]
    assert most_w(log) <= 5000 * 1.001


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["5kW", "b:1kW", "150kWh/day", "eta=0.5"])
def test_a_run_with_a_budget_can_be_replayed_with_it(
    capsys: pytest.CaptureFixture[str], few: list[str], tmp_path: Path, budget: str
) -> None:
    log = str(tmp_path / "run.jsonl")
    words = ["--policy", "powerflow", "--models", "library", "--budget", budget]
    run_json_command(capsys, "simulate", *few, *words, "--log", log)
    assert run_json_command(capsys, "replay", log, *words)["same"]
    code, _, err = run_command(capsys, "replay", log, *words[:-2], "--budget", "3kW")
    assert code == 1
    assert "of the log" in err


@pytest.mark.slow
def test_several_budgets_hold_together(capsys: pytest.CaptureFixture[str], few: list[str]) -> None:
    words = ["simulate", *few, "--policy", "powerflow", "--budget", "6kW"]
    both = run_json_command(capsys, *words, "--budget", "b:500W")
    assert "budgets=6kW and b:500W" in both["policy_exact"]
    assert both["jct_mean_s"] > run_json_command(capsys, *words)["jct_mean_s"]


def test_a_budget_reaches_a_stage_of_a_chain(capsys: pytest.CaptureFixture[str], few: list[str]) -> None:
    found = run_json_command(capsys, "simulate", *few, "--policy", "fifo+powerflow", "--budget", "5kW")
    assert "budgets=5kW" in found["policy_exact"]


def test_a_budget_in_which_no_job_can_start_is_exit_code_4(
    capsys: pytest.CaptureFixture[str], few: list[str]
) -> None:
    words = ["simulate", *few, "--policy", "powerflow", "--budget", "1kW"]
    code, out, err = run_command(capsys, *words, "--json")
    assert code == 4
    found = parse_strict_json(out)
    assert found["never_started"] == 12
    assert found["left"] == {"never_in_budget": 12}
    assert "The energy budget never allows it, not even alone and at its lowest power." in err
    assert "budget 1kW: idle nodes draw 2.78 kW, the most modest job" in err
    code, _, err = run_command(capsys, "compare", *words[1:])
    assert code == 4
    assert err.count("never allows it") == 1


@pytest.mark.slow
def test_a_small_team_budget_leaves_only_jobs_of_that_team_unfinished(
    capsys: pytest.CaptureFixture[str], few: list[str]
) -> None:
    words = [*few, "--policy", "powerflow", "--budget", "b:20W"]
    code, out, err = run_command(capsys, "simulate", *words, "--json")
    assert code == 0
    found = parse_strict_json(out)
    assert 0 < found["unfinished"] < 12
    assert found["left"] == {"never_in_budget": found["unfinished"]}
    assert f"{found['unfinished']} of 12 jobs were left unfinished by the budget b:20W" in err
    code, _, err = run_command(capsys, "compare", *words, "--policy", "fifo")
    assert code == 0
    assert "powerflow: " in err
    assert "left unfinished by the budget" in err


def test_a_team_budget_that_is_too_small_prints_what_its_smallest_job_draws(
    capsys: pytest.CaptureFixture[str], few: list[str]
) -> None:
    words = ["--team", "b", "--policy", "powerflow", "--budget", "b:20W"]
    code, _, err = run_command(capsys, "simulate", *few, *words)
    assert code == 4
    assert "the most modest job of b draws 100 W" in err


@pytest.mark.slow
def test_compare_names_policies_that_cannot_hold_a_budget(
    capsys: pytest.CaptureFixture[str], few: list[str]
) -> None:
    words = ["--policy", "powerflow", "--policy", "fifo", "--policy", "las+keep", "--budget", "5kW"]
    code, out, err = run_command(capsys, "compare", *few, *words, "--json")
    assert code == 0
    assert "simulated without the budget, because they cannot hold one: fifo, las+keep" in err
    exact = [row["policy_exact"] for row in parse_strict_json(out)["reports"]]
    assert ["5kW" in text for text in exact] == [True, False, False]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "fifo", "--budget", "5kW"], "fifo cannot hold a budget, expected one of"),
        (["--policy", "powerflow", "--budget", "lots"], "budget 'lots': expected"),
        (["--policy", "powerflow", "--budget", "nowhere.csv"], "nowhere.csv: cannot be read"),
        (
            ["--policy", "powerflow", "--budget", "z:5kW"],
            "budget 'z:5kW': team 'z' has no jobs in",
        ),
        (["--policy", "powerflow", "--team", "a", "--budget", "b:5kW"], "expected one of a"),
        (
            ["--policy", "powerflow+afs", "--budget", "5kW"],
            "powerflow+afs cannot hold a budget: afs allocates",
        ),
        (["--policy", "powerflow+las+pollux", "--budget", "5kW"], "put pollux before powerflow"),
        (["--policy", "powerflow", "--budget", "eta=2"], "budget 'eta=2': eta must be from 0 to 1"),
        (["--policy", "powerflow", "--budget", "5GJ/0d"], "budget '5GJ/0d': '0d' is not a duration above 0"),
        (["--policy", "powerflow:interval=0"], "policy 'powerflow:interval=0': powerflow's interval_s must"),
        (["--policy", "fifo", "--seed", "\N{SUPERSCRIPT TWO}"], "is not a whole number of at least 0"),
    ],
)
def test_a_budget_that_makes_no_sense_is_explained(
    capsys: pytest.CaptureFixture[str], few: list[str], words: list[str], message: str
) -> None:
    for command in ("simulate", "compare"):
        code, out, err = run_command(capsys, command, *few, *words)
        assert (code, out) == (2, "")
        assert message in err


def test_a_budget_of_a_team_needs_a_trace_that_names_teams(
    capsys: pytest.CaptureFixture[str], few: list[str], tmp_path: Path
) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("id,submit_s,gpus,duration_s\na,0,1,50\n")
    words = ["--trace", str(trace), "--cluster", "1xa100:8", "--policy", "powerflow", "--budget", "vc1:5kW"]
    code, _, err = run_command(capsys, "simulate", *words)
    assert code == 2
    assert "which names no teams" in err


def test_a_broken_tariff_is_a_bad_setting_and_no_bad_trace(
    capsys: pytest.CaptureFixture[str], few: list[str], tmp_path: Path
) -> None:
    tariff = tmp_path / "tariff.csv"
    tariff.write_text("time_s,watts\n0,x\n")
    code, out, _ = run_command(
        capsys, "simulate", *few, "--policy", "powerflow", "--budget", str(tariff), "--json"
    )
    assert code == 2
    assert '"bad_config"' in out
    assert "tariff.csv:2: watts is 'x'" in out

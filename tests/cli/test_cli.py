"""The command line as a user types it."""

import json
from pathlib import Path
from typing import Any

import pytest

from wattline.cli import main
from wattline.policy import ELASTIC, ORDERS

SYNTH = ["--trace", "synth:count=60,seed=1", "--cluster", "2xv100:8"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def data(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    code, out, _ = run(capsys, *words, "--json")
    assert code == 0
    return json.loads(out)


def test_simulate_prints_these_numbers_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, "simulate", *SYNTH, "--policy", "las")
    assert found["policy"] == "las"
    assert found["policy_exact"] == "las"
    assert found["jobs"] == found["finished"] == 60
    assert found["seed"] == 0
    numbers = "jct_mean_s jct_p50_s jct_p99_s wait_mean_s makespan_s gpu_utilisation preemptions energy_j"
    numbers += " cpu_s peak_rss_mb"
    assert all(isinstance(found[name], int | float) for name in numbers.split())


def test_simulate_prints_the_report_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "simulate", *SYNTH)
    assert code == 0
    assert "fifo" in out
    assert "energy" in out
    assert "CPU s" in err


def test_a_log_is_written_reported_and_replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = str(tmp_path / "run.jsonl.gz")
    simulated = data(capsys, "simulate", *SYNTH, "--policy", "srtf", "--log", log)
    reported = data(capsys, "report", log)
    assert reported["jct_mean_s"] == simulated["jct_mean_s"]
    assert reported["energy_j"] == simulated["energy_j"]
    assert data(capsys, "replay", log, "--policy", "srtf")["same"]
    code, _, err = run(capsys, "replay", log, "--policy", "fifo")
    assert code == 1
    assert "of the log" in err


@pytest.mark.slow
def test_the_same_seed_writes_the_same_log_with_any_number_of_processes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["--node-mtbf", "2d", "--job-failure", "0.1", "--seed", "7"]
    run(capsys, "simulate", *SYNTH, *options, "--policy", "las", "--log", str(tmp_path / "alone.jsonl.gz"))
    for jobs in ("1", "2"):
        words = ["--policy", "las", "--policy", "fifo", "--jobs", jobs, "--logs", str(tmp_path / jobs)]
        code, _, _ = run(capsys, "compare", *SYNTH, *options, *words)
        assert code == 0
    alone = (tmp_path / "alone.jsonl.gz").read_bytes()
    assert (tmp_path / "1" / "las.jsonl.gz").read_bytes() == alone
    assert (tmp_path / "2" / "las.jsonl.gz").read_bytes() == alone


@pytest.mark.slow
def test_compare_lists_policies_and_writes_a_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "compare.html"
    found = data(capsys, "compare", *SYNTH, "--policies", "all", "--html", str(page))
    assert [row["policy"] for row in found["reports"]] == [*ORDERS, *ELASTIC]
    assert len(found["reports"]) == 14
    assert page.stat().st_size > 100_000
    code, out, _ = run(capsys, "compare", *SYNTH, "--policy", "fifo", "--policy", "srtf+keep")
    assert code == 0
    assert "srtf+keep" in out


def test_sweeps_are_fused_and_a_trace_without_keys_causes_a_warning(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("submit_s,gpus,duration_s,fuse\n" + "0,1,50,lr\n" * 2 + "0,1,50,\n" * 6)
    words = ["simulate", "--cluster", "1xv100:1", "--policy", "fifo+fuse:limit=4"]
    assert data(capsys, *words, "--trace", str(trace))["fused_jobs"] == 2
    assert "no job of this trace has a fusion key" not in run(capsys, *words, "--trace", str(trace))[2]
    trace.write_text("submit_s,gpus,duration_s\n0,1,50\n")
    assert "no job of this trace has a fusion key" in run(capsys, *words, "--trace", str(trace))[2]


def test_one_team_can_be_simulated_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("id,submit_s,gpus,duration_s,team\na,0,1,50,vision\nb,0,1,50,speech\nc,5,1,50,vision\n")
    words = ["simulate", "--trace", str(trace), "--cluster", "1xv100:1"]
    assert data(capsys, *words, "--team", "vision")["jobs"] == 2
    code, _, err = run(capsys, *words, "--team", "nlp")
    assert code == 2
    assert "expected one of speech, vision" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["simulate", "--trace", "nowhere.csv", "--cluster", "1xv100:8"], "nowhere.csv"),
        (["simulate", *SYNTH, "--policy", "fiffo"], "unknown stage 'fiffo'"),
        (["simulate", "--trace", "synth", "--cluster", "1xv999:8"], "unknown GPU kind 'v999'"),
        (["simulate", "--trace", "synth:cuont=3", "--cluster", "1xv100:8"], "cuont"),
        (["simulate", *SYNTH, "--quantum", "often"], "'often' is not a duration"),
        (["simulate", *SYNTH, "--backfill", "maybe"], "maybe"),
        (["simulate", *SYNTH, "--format", "phily"], "phily"),
        (["simulate", *SYNTH, "--span-penalty", "0.5"], "span_penalty must be at least 1"),
        (["simulate"], "--trace"),
        (["compare", *SYNTH], "no policy given"),
        (["compare", *SYNTH, "--policy", "fifo", "--policy", "nope"], "unknown stage 'nope'"),
        (["compare", *SYNTH, "--policies", "all", "--jobs", "0"], "at least 1"),
        (["report", "nowhere.jsonl"], "nowhere.jsonl"),
        (["dance"], "dance"),
        (["simulate", *SYNTH, "--seed", "-1"], "at least 0"),
        (["simulate", "--trace", "synth", "--cluster", "1xv100,gpus=nan"], "gpus must be above 0, got nan"),
        (["simulate", "--trace", "synth", "--cluster", "1xv100:99999999999999999999"], "whole number up to"),
        (["simulate", "--trace", "synth", "--cluster", "9999999999999xv100:8"], "whole number up to"),
        (["simulate", "--trace", "synth", "--cluster", "1xv100,gpus=2.7"], "whole number up to"),
        (["simulate", *SYNTH, "--span-penalty", "inf"], "at least 1 and finite"),
        (["simulate", *SYNTH, "--policy", "las:quantum=5,quantum=9"], "given twice"),
        (["simulate", *SYNTH, "--team", "no-such-team"], "no-such-team"),
        (["simulate", *SYNTH, "--jso"], "--jso"),
    ],
)
def test_bad_arguments_are_explained_as_text_and_as_json(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert message in err
    code, out, err = run(capsys, *words, "--json")
    assert (code, err) == (2, "")
    error = json.loads(out)["error"]
    assert set(error) == {"code", "message", "hint"}
    assert message in error["message"]


def test_a_cluster_on_which_nothing_can_run_is_exit_code_4(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("id,submit_s,gpus,duration_s\na,0,64,50\n")
    code, out, err = run(capsys, "simulate", "--trace", str(trace), "--cluster", "1xv100:8", "--json")
    assert code == 4
    assert json.loads(out)["never_started"] == 1
    assert "no job could start" in err


def test_a_file_that_cannot_be_written_is_found_before_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for option in ("--log", "--html"):
        code, out, err = run(capsys, "simulate", *SYNTH, option, str(tmp_path / "file" / "x"))
        assert (code, out) == (2, "")
        assert "cannot be written" in err
    code, out, err = run(
        capsys, "compare", *SYNTH, "--policy", "fifo", "--logs", str(tmp_path / "file" / "x")
    )
    assert (code, out) == (2, "")
    assert "cannot be written" in err


def test_a_run_that_is_refused_leaves_no_file_behind(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, _ = run(capsys, "simulate", *SYNTH, "--policy", "nope", "--log", str(tmp_path / "x.jsonl"))
    assert code == 2
    assert not list(tmp_path.iterdir())


def test_broken_rows_are_counted_with_skip_bad(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("id,submit_s,gpus,duration_s\na,0,1,50\nb,0,1,-3\nc,0,1,9\n")
    words = ["simulate", "--trace", str(trace), "--cluster", "1xv100:8", "--json"]
    code, out, _ = run(capsys, *words)
    assert code == 2
    assert f"{trace}:3" in json.loads(out)["error"]["message"]
    code, out, err = run(capsys, *words, "--skip-bad")
    assert code == 0
    assert json.loads(out)["jobs"] == 2
    assert "1 broken row" in err


def test_policies_and_version_can_be_read_by_programs(capsys: pytest.CaptureFixture[str]) -> None:
    names = {row["name"] for row in data(capsys, "policies")}
    assert {"fifo", "las", "keep", "gandiva"} <= names
    assert data(capsys, "version")["wattline"]
    assert "las" in run(capsys, "policies")[1]
    assert run(capsys, "version")[1].startswith("wattline ")
